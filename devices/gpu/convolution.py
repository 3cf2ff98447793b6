"""Convolution for GPUs: the columns of many images by strides, and one matrix product.

The CPU's convolution copies windows in blocks that fit its cache, a kernel launch each; a GPU needs
few launches with much work. Sizes are written N, C, M (output channels), and G (groups).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from hetero.devices.kernels.conv import conv_window
from hetero.devices.kernels.convolve import pad
from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.registry import KernelRegistry, op, with_attributes_of
from hetero.devices.kernels.window import Window, sliding_window

#: Bytes of columns in memory at once: a small part of a GPU's memory.
_COLUMN_NBYTES = 1 << 29


def register_convolution(registry: KernelRegistry) -> None:
    """Add the kernel of Conv to a registry."""
    op("Conv", since=1, registry=registry)(conv)


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
    """Return the convolution of x (N, C, ...) with w (M, C/group, ...), plus b (M).

    Products of float16 are added in float32; cuBLAS rounds some shapes once before it adds b.
    """
    window = conv_window(x, w, group=group, kernel_shape=kernel_shape, **sliding)
    n, m = x.shape[0], w.shape[0]
    if b is not None and b.shape != (m,):
        raise ValueError(f"bias: expected shape {(m,)}, got {b.shape}")
    if x.ndim == 4 and group == x.shape[1] > 1 and (depthwise := xp.depthwise_convolution):
        y = xp.empty((n, m, *window.output), x.dtype)
        depthwise(pad(xp, x, window), w, b, window, y)
        return y
    bias = None if b is None else b.reshape(group, m // group, 1)
    return _by_columns(xp, x, w.reshape(group, m // group, -1), bias, window)


def _by_columns(xp: Xp, x: Array, weights: Array, bias: Array | None, window: Window) -> Array:
    """Return weights (G, M/G, depth) times the columns of x plus bias (G, M/G, 1).

    The columns are computed in few parts of limited size.
    """
    columns = _columns(xp, x, window)
    parts = [*_parts(columns.shape, columns.dtype.itemsize, len(window.kernel))]
    if len(parts) == 1:
        return _product(xp, weights, columns, bias, window)
    y = xp.empty((x.shape[0], weights.shape[0] * weights.shape[1], *window.output), x.dtype)
    for images, rows in parts:
        part = columns[(..., images, rows, *(slice(None),) * (len(window.output) - 1))]
        y[images, :, rows] = _product(xp, weights, part, bias, window)
    return y


def _columns(xp: Xp, x: Array, window: Window) -> Array:
    """Return a view of x (N, C, ...) of shape (C, *kernel, N, *output)."""
    padded = pad(xp, x, window)
    (image, channel), inner = padded.strides[:2], padded.strides[2:]
    dilated = (s * d for s, d in zip(inner, window.dilations, strict=True))
    strided = (s * d for s, d in zip(inner, window.strides, strict=True))
    return xp.lib.stride_tricks.as_strided(
        padded,
        (x.shape[1], *window.kernel, x.shape[0], *window.output),
        (channel, *dilated, image, *strided),
    )


def _parts(shape: Sequence[int], itemsize: int, rank: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of images and of output rows whose columns fit into `_COLUMN_NBYTES`."""
    n, height = shape[rank + 1], shape[rank + 2]
    row_nbytes = max(1, prod(shape[: rank + 1]) * prod(shape[rank + 3 :]) * itemsize)
    rows = max(1, min(height, _COLUMN_NBYTES // row_nbytes))
    images = max(1, _COLUMN_NBYTES // (row_nbytes * height)) if rows == height else 1
    for image in range(0, max(1, n), images):
        for row in range(0, height, rows):
            yield slice(image, image + images), slice(row, row + rows)


def _product(xp: Xp, weights: Array, columns: Array, bias: Array | None, window: Window) -> Array:
    """Return weights (G, M/G, depth) times a view of columns plus bias, as (N, M, *output)."""
    group, m, depth = weights.shape
    n, *output = columns.shape[len(window.kernel) + 1 :]
    columns = columns.reshape(group, depth, n * prod(output))
    if group == 1:  # CuPy uses tensor cores for float16 in products of two matrices only
        weights, columns, bias = weights[0], columns[0], None if bias is None else bias[0]
    if bias is None:
        y = xp.matmul(weights, columns)
    else:
        y = xp.empty((*weights.shape[:-1], columns.shape[-1]), columns.dtype)
        y[...] = bias
        xp.add_product(weights, columns, y)
    y = y.reshape(group * m, n, *output)
    return y.reshape(n, group * m, *output) if n == 1 else xp.ascontiguousarray(y.swapaxes(0, 1))
