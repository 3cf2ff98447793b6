"""The fused ScaleShift: a factor and a summand per channel, then an activation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from devices.kernels.element_types import Array, Xp, in_float32
from devices.kernels.in_place import IN_PLACE
from devices.kernels.registry import op

#: Bytes of a block of channels that stay in cache from the first step to the last.
_BLOCK_NBYTES = 1 << 18


@op("ScaleShift", since=1, domain="hetero")
@in_float32
def scale_shift_1(
    xp: Xp,
    x: Array,
    scale: Array,
    shift: Array,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
) -> Array:
    """Return ``activation(x * scale + shift)`` for x (N, C, ...), scale (C) and shift (C)."""
    if x.ndim < 2 or scale.shape != x.shape[1:2] or shift.shape != scale.shape:
        raise ValueError(f"scale {scale.shape} and shift {shift.shape} do not fit x {x.shape}")
    y = xp.empty_like(x)
    per_channel = (-1, *(1,) * (x.ndim - 2))
    scale, shift = scale.reshape(per_channel), shift.reshape(per_channel)
    activate = IN_PLACE[activation]
    step = max(1, _BLOCK_NBYTES // max(1, prod(x.shape[2:]) * x.dtype.itemsize))
    if not x.flags.c_contiguous:  # channels last in memory: no block of them is in one piece
        step = max(1, x.shape[1])
    for image in range(x.shape[0]):
        for first in range(0, x.shape[1], step):
            channels = slice(first, first + step)
            block = y[image, channels]
            xp.multiply(x[image, channels], scale[channels], out=block)
            block += shift[channels]
            activate(xp, block, *activation_params)
    return y
