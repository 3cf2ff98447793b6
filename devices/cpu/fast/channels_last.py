"""Channels last: a tensor whose memory runs over channels first, though its shape is ONNX's.

A value (N, C, H, W) then is a transposed view of an array (N, H, W, C). Every kernel takes it, for
only its strides are unusual; those here read and write whole pixels, which are runs of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from hetero.devices.cpu.fast.bands import BandScratch
from hetero.devices.interpreter.calls import Call, copy_call

#: Elements that one inner loop of numpy should have: fewer cost more for the loop than for them.
ROW = 2048
#: Up to as many channels, copying them one by one is faster than numpy's copy of pixels.
_FEW_CHANNELS = 8


def is_last(x: np.ndarray) -> bool:
    """Tell whether x is (N, C, H, W) with its channels last in memory."""
    return x.ndim == 4 and x.transpose(0, 2, 3, 1).flags.c_contiguous


def planes(y: np.ndarray) -> np.ndarray:
    """Return an array (N, H, W, C) as a value (N, C, H, W)."""
    return y.transpose(0, 3, 1, 2)


def windows(
    x: np.ndarray,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    output: Sequence[int],
) -> np.ndarray:
    """Return a view (N, *output, *kernel, C) of what windows of contiguous x (N, H, W, C) read."""
    n, row, column, channel = x.strides
    shape = (x.shape[0], *output, *kernel, x.shape[3])
    steps = [row * strides[0], column * strides[1], row * dilations[0], column * dilations[1]]
    return np.ndarray(shape, x.dtype, x, 0, (n, *steps, channel))


def row_calls(operation: np.ufunc, y: np.ndarray, row: np.ndarray) -> Iterator[Call]:
    """Yield calls for ``y = operation(y, row)``, the row again and again along contiguous y."""
    flat = y.reshape(-1)
    whole = flat.size // row.size * row.size
    if whole:
        main = flat[:whole].reshape(-1, row.size)
        yield partial(operation, main, row, out=main)
    if whole < flat.size:
        rest = flat[whole:]
        yield partial(operation, rest, row[: rest.size], out=rest)


def pixel_calls(scratch: BandScratch, x: np.ndarray) -> tuple[np.ndarray, list[Call]]:
    """Return x (N, C, H, W) as an array (N, H, W, C), and the calls that put it there."""
    last = x.transpose(0, 2, 3, 1)
    if last.flags.c_contiguous:
        return last, []
    y = scratch(last.shape, x.dtype)
    return y, copy_pixels(y, last)


def pad_calls(
    scratch: BandScratch, x: np.ndarray, before: Sequence[int], size: Sequence[int]
) -> tuple[np.ndarray, list[Call]]:
    """Return the same with zeros around it, of spatial `size`, and the calls that do it."""
    (n, c, h, w), (top, left) = x.shape, before
    if (h, w) == tuple(size):
        return pixel_calls(scratch, x)
    y = scratch((n, *size, c), x.dtype)
    rows = y[:, top : top + h]
    rims = [y[:, :top], y[:, top + h :]]
    if scratch.is_new:  # nobody else writes to the sides
        rims += [rows[:, :, :left], rows[:, :, left + w :]]
    calls: list[Call] = [partial(rim.fill, 0) for rim in rims if rim.size]
    return y, calls + copy_pixels(rows[:, :, left : left + w], x.transpose(0, 2, 3, 1))


def copy_pixels(y: np.ndarray, x: np.ndarray) -> list[Call]:
    """Return the calls that copy x (N, H, W, C) to y."""
    if x.shape[3] > _FEW_CHANNELS or x.flags.c_contiguous:
        return [copy_call(y, x)]
    return [partial(np.copyto, y[..., i], x[..., i]) for i in range(x.shape[3])]
