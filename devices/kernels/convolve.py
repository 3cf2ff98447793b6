"""Convolution as a matrix product: rows of weights times columns of input windows (im2col).

Sizes are written N, C, M (output channels), and G (groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hetero.devices.kernels.element_types import Array, Xp
from hetero.devices.kernels.window import Window

#: Bytes of columns in memory at once, which limits the memory that large images take.
_COLUMN_BYTES = 1 << 21
#: Least number of columns per product: with fewer, reading the weights takes most of the time.
_FEWEST_COLUMNS = 192


def convolve(xp: Xp, x: Array, w: Array, b: Array | None, window: Window, group: int) -> Array:
    """Return the convolution of x with w, plus b, of shape (N, M, *window.output).

    x is (N, C, ...), w (M, C/group, ...) and b (M); all have one element type.
    """
    n, m = x.shape[0], w.shape[0]
    if b is not None and b.shape != (m,):
        raise ValueError(f"bias: expected shape {(m,)}, got {b.shape}")
    y = xp.empty((n, m, *window.output), x.dtype)
    weights = w.reshape(group, m // group, -1)
    pointwise = set(window.kernel) == {1} and not any(window.begin) and not any(window.end)
    product = _pointwise if pointwise else _by_columns
    for image in range(n):
        product(xp, x[image], weights, window, y[image])
    if b is not None:
        y += b.reshape(m, *(1,) * len(window.output))
    return y


def _pointwise(xp: Xp, x: Array, w: Array, window: Window, y: Array) -> None:
    """Write the product into y (M, ...); x itself is the columns of a kernel of one element."""
    columns = x[(slice(None), *window.slices((0,) * len(window.kernel)))]
    group, m, c = w.shape
    xp.matmul(w, columns.reshape(group, c, -1), out=y.reshape(group, m, -1))


def _by_columns(xp: Xp, x: Array, w: Array, window: Window, y: Array) -> None:
    """Convolve one image into y (M, ...) by im2col, some output rows at a time.

    The windows of these rows are copied to columns, which the weights multiply.
    """
    group, m, depth = w.shape
    size, (height, *rest) = prod(window.kernel), window.output
    width = prod(rest)
    step = rows_at_once(depth * group * x.dtype.itemsize, window.output)
    padded = pad(xp, x, window)
    buffer = xp.empty(depth * group * step * width, x.dtype)
    flat = y.reshape(group, m, height * width)
    for first in range(0, height, step):
        count = min(step, height - first)
        columns = buffer[: depth * group * count * width].reshape(-1, size, count, *rest)
        for k, position in enumerate(window.positions()):
            row, *others = window.slices(position)
            start, stride = row.start + first * window.strides[0], window.strides[0]
            row = slice(start, start + (count - 1) * stride + 1, stride)
            columns[:, k] = padded[(slice(None), row, *others)]
        part = flat[:, :, first * width : (first + count) * width]
        xp.matmul(w, columns.reshape(group, depth, count * width), out=part)


def rows_at_once(column_nbytes: int, output: Sequence[int]) -> int:
    """Return the number of output rows whose columns are in memory at once."""
    height, *rest = output
    most = max(_FEWEST_COLUMNS, _COLUMN_BYTES // max(1, column_nbytes))
    return max(1, min(height, most // prod(rest)))


def pad(xp: Xp, x: Array, window: Window) -> Array:
    """Return x (..., *input) with the window's zero padding."""
    if not any(window.begin) and not any(window.end):
        return x
    shape = [b + n + e for b, n, e in zip(window.begin, window.input, window.end, strict=True)]
    padded = xp.zeros((*x.shape[: -len(shape)], *shape), x.dtype)
    inside = (slice(b, b + n) for b, n in zip(window.begin, window.input, strict=True))
    padded[(..., *inside)] = x
    return padded


def add_windows(xp: Xp, columns: Array, window: Window) -> Array:
    """Add columns (N, C, size, *output) at the elements that the window reads, (N, C, *input)."""
    size = [
        max(slide.stop, begin + n)
        for slide, begin, n in zip(
            window.slices([k - 1 for k in window.kernel]), window.begin, window.input, strict=True
        )
    ]
    full = xp.zeros((*columns.shape[:2], *size), columns.dtype)
    for k, position in enumerate(window.positions()):
        full[(..., *window.slices(position))] += columns[:, :, k]
    return full[(..., *(slice(b, b + n) for b, n in zip(window.begin, window.input, strict=True)))]
