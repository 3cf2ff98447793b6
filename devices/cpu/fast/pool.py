"""Bindings of pooling with channels last: one axis after the other, in runs of whole pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from math import inf, prod
from typing import Any

import numpy as np

from devices.cpu.fast.channels_last import is_last
from devices.interpreter.calls import Call, Scratch, makes_calls
from devices.interpreter.copies import copy_call
from devices.kernels.window import Window, sliding_window

Ints = Sequence[int]

#: Bytes of rows that are reduced along one axis before the other.
_BLOCK_NBYTES = 1 << 19


def _suits(y: np.ndarray, x: np.ndarray, kinds: str = "f") -> bool:
    """Tell whether the calls below compute what the kernel does of such arrays."""
    wide = x.dtype.kind != "f" or x.dtype.itemsize >= np.dtype(np.float32).itemsize
    return (
        wide
        and x.dtype.kind in kinds
        and bool(y.size)
        and is_last(x)
        and is_last(y)
        and not x.flags.c_contiguous
    )


@makes_calls("MaxPool", 1, any_order=True)
def max_pool_calls(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *,
    ceil_mode: int = 0, kernel_shape: Ints, storage_order: int = 0, n_outputs: int = 1,
    **sliding: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the maximum of each window."""
    if not _suits(y, x, "fiu"):
        return None
    least = -inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
    window = sliding_window(x.shape[2:], kernel_shape, ceil_mode, **sliding)
    return list(_reduce_calls(scratch, y, x, window, np.maximum, least))


@makes_calls("AveragePool", 1, any_order=True)
def average_pool_calls(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *,
    ceil_mode: int = 0, count_include_pad: int = 0, kernel_shape: Ints, **sliding: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the mean of each window."""
    if not _suits(y, x):
        return None
    window = sliding_window(x.shape[2:], kernel_shape, ceil_mode, **sliding)
    if window.kernel == window.input and not any((*window.begin, *window.end)):
        count = np.asarray(prod(window.input), x.dtype)
        return [
            partial(np.add.reduce, x, (2, 3), None, y, True),
            partial(np.divide, y, count, y),
        ]
    down, across = (
        np.asarray(window.counts(axis, bool(count_include_pad)), x.dtype) for axis in (0, 1)
    )
    count = down[:, None, None] * across[:, None]
    last = y.transpose(0, 2, 3, 1)
    if count.min() == count.max():
        divide = partial(np.divide, last, count[0, 0, 0], last)
    else:
        divide = partial(np.divide, last, count, last)
    return [*_reduce_calls(scratch, y, x, window, np.add, 0), divide]


def _reduce_calls(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, window: Window, combine: np.ufunc, start: float
) -> Iterator[Call]:
    """Yield the calls that reduce the windows of x, in the kernel's order."""
    x, y = x.transpose(0, 2, 3, 1), y.transpose(0, 2, 3, 1)
    (height, width), (left, size, c) = window.output, (window.begin[1], *x.shape[2:])
    stride, dilation, taps = window.strides[1], window.dilations[1], window.kernel[1]
    wide = max(left + size, (width - 1) * stride + (taps - 1) * dilation + 1)
    rows = min(height, max(1, _BLOCK_NBYTES // (wide * c * x.itemsize)))
    space = scratch((rows, wide, c), x.dtype)
    sides = (space[:, :left], space[:, left + size :])
    yield from (partial(side.fill, start) for side in sides if side.size)
    order = _order(window, 1)
    for image, to in zip(x, y, strict=True):
        for first in range(0, height, rows):
            block = to[first : first + rows]
            reduced = space[: len(block)]
            yield from _down(image, reduced[:, left : left + size], window, first, combine, start)
            reads = [
                reduced[:, k * dilation : k * dilation + (width - 1) * stride + 1 : stride]
                for k in order
            ]
            yield from _combined(block, reads, combine, start)


def _order(window: Window, axis: int) -> list[int]:
    """Return the kernel's elements along an axis as they are combined: first what all read."""
    reads = [window.valid(axis, k)[0] for k in range(window.kernel[axis])]
    whole = [k for k, to in enumerate(reads) if to == slice(0, window.output[axis])][:2]
    return whole + [k for k in range(len(reads)) if k not in whole]


def _down(
    x: np.ndarray, y: np.ndarray, window: Window, first: int, combine: np.ufunc, start: float
) -> Iterator[Call]:
    """Yield the calls that reduce rows of x to those of y, which are the outputs from `first`."""
    stride, dilation = window.strides[0], window.dilations[0]
    order = _order(window, 0)
    starts = [row * stride - window.begin[0] for row in range(first, first + len(y))]

    def inside(row: int) -> list[int]:
        return [k for k in order if 0 <= starts[row] + k * dilation < len(x)]

    for valid, group in groupby(range(len(y)), inside):
        rows = list(group)
        reads = [
            x[starts[rows[0]] + k * dilation : starts[rows[-1]] + k * dilation + 1 : stride]
            for k in valid
        ]
        yield from _combined(y[rows[0] : rows[-1] + 1], reads, combine, start)


def _combined(
    y: np.ndarray, reads: Sequence[np.ndarray], combine: np.ufunc, start: float
) -> Iterator[Call]:
    """Yield the calls that combine arrays into y."""
    if len(reads) < 2:
        yield copy_call(y, reads[0]) if reads else partial(y.fill, start)
        return
    yield partial(combine, reads[0], reads[1], out=y)
    for read in reads[2:]:
        yield partial(combine, y, read, out=y)
