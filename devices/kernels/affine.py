"""The fused ScaleShift: a factor and a summand per channel, then an activation."""

from __future__ import annotations

from collections.abc import Sequence

from devices.kernels.element_types import Array, Xp, in_float32
from devices.kernels.fused_activation import activate
from devices.kernels.registry import op


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
    per_channel = (-1, *(1,) * (x.ndim - 2))
    y = x * scale.reshape(per_channel)
    y += shift.reshape(per_channel)
    activate(xp, y, activation, activation_params)
    return y
