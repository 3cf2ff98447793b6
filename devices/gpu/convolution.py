"""Convolution for GPUs: the columns of whole images by strides, and one batched matrix product.

The CPU's convolution copies windows in blocks that fit its cache, a kernel launch each; a GPU needs
few launches with much work. Sizes are written N, C, M (output channels), and G (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hetero.devices.kernels.conv import conv_window
from hetero.devices.kernels.convolve import pad
from hetero.devices.kernels.element_types import Array, Xp, in_float32
from hetero.devices.kernels.registry import KernelRegistry, op, with_attributes_of
from hetero.devices.kernels.window import Window, sliding_window

#: Bytes of columns in memory at once: a small part of a GPU's memory.
_COLUMN_NBYTES = 1 << 29


def register_convolution(registry: KernelRegistry) -> None:
    """Add the kernel of Conv to a registry."""
    op("Conv", since=1, registry=registry)(conv)


@in_float32
@with_attributes_of(sliding_window)
def conv(
    xp: Xp,
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    **sliding: Any,
) -> Array:
    """Return the convolution of x (N, C, ...) with w (M, C/group, ...), plus b (M)."""
    window = conv_window(x, w, group=group, kernel_shape=kernel_shape, **sliding)
    n, m = x.shape[0], w.shape[0]
    if b is not None and b.shape != (m,):
        raise ValueError(f"bias: expected shape {(m,)}, got {b.shape}")
    weights = w.reshape(1, group, m // group, -1)
    y = xp.empty((n, m, *window.output), x.dtype)
    image_nbytes = x.shape[1] * prod(window.kernel) * prod(window.output) * x.dtype.itemsize
    step = max(1, _COLUMN_NBYTES // max(1, image_nbytes))
    for first in range(0, n, step):
        images = x[first : first + step]
        columns = _columns(xp, images, window).reshape(
            images.shape[0], group, weights.shape[3], prod(window.output)
        )
        y[first : first + step] = xp.matmul(weights, columns).reshape(
            images.shape[0], m, *window.output
        )
    return y if b is None else y + b.reshape(m, *(1,) * len(window.output))


def _columns(xp: Xp, x: Array, window: Window) -> Array:
    """Return a view of x (N, C, ...) of shape (N, C, *kernel, *output)."""
    padded = pad(xp, x, window)
    outer, inner = padded.strides[:2], padded.strides[2:]
    dilated = (s * d for s, d in zip(inner, window.dilations, strict=True))
    strided = (s * d for s, d in zip(inner, window.strides, strict=True))
    return xp.lib.stride_tricks.as_strided(
        padded,
        (*padded.shape[:2], *window.kernel, *window.output),
        (*outer, *dilated, *strided),
    )
