"""Convolution with channels last: products of pixels and weights that lie ready for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

from hetero.devices.cpu.fast import winograd as winograd_
from hetero.devices.cpu.fast.bands import BandScratch, bands
from hetero.devices.cpu.fast.channels_last import (
    ROW,
    is_last,
    pad_calls,
    pixel_calls,
    planes,
    row_calls,
    windows,
)
from hetero.devices.interpreter.calls import CALL_MAKERS, Call, Scratch, copy_call
from hetero.devices.kernels import KernelRegistry
from hetero.devices.kernels.element_types import Xp
from hetero.devices.kernels.registry import op, taking
from hetero.devices.kernels.window import Window, sliding_window

Ints = Sequence[int]

#: The kernel that suits only a CPU.
FAST: Final = KernelRegistry()

#: Bytes of columns, or of the input, to hold at once, and of the output beside them.
_BLOCK_BYTES = 1 << 19
_LEAST_BLOCK_BYTES = 3 << 16
#: Elements of a row that are multiplied at once by weights of single channels, in whole pixels.
_RUN = 1024
#: Pixels below which a product no longer pays for packing the weights.
_FEWEST_PIXELS = 192


def prepare(
    w: np.ndarray, group: int, tile: int, b: np.ndarray | None = None, pixels: int = _RUN
) -> np.ndarray:
    """Return weights (M, C/group, kh, kw) as the kernel below takes them.

    One channel a group: (kh, kw, C) for some of a row's `pixels`, one after the other; with a
    Winograd tile as `winograd.prepare` says; otherwise (group, kh * kw * C/group, M/group) and,
    below, a row of the bias b where there is one, which saves a pass over the output where columns
    are copied anyway.
    """
    m, c = w.shape[:2]
    if tile:
        return winograd_.prepare(w, tile)
    if c == 1 and m == group > 1:
        # What numpy multiplies in one go is a run of memory, of several pixels.
        columns = np.tile(w[:, 0].transpose(1, 2, 0), min(pixels, -(-_RUN // m)))
        return np.ascontiguousarray(columns)  # a tile of one is as the transposition lies
    rows = w.reshape(group, m // group, c, -1).transpose(0, 3, 2, 1)
    columns = rows.reshape(group, -1, m // group)
    if b is not None:
        columns = np.concatenate([columns, b.reshape(group, 1, -1)], 1)
    return np.ascontiguousarray(columns)


def copies_columns(kernel: Ints, strides: Ints, group: int) -> bool:
    """Tell whether a product's columns are a copy of the input, not a view of its pixels."""
    return set(kernel) != {1} or set(strides) != {1} or group > 1


@op("ChannelsLastConv", since=1, domain="hetero", registry=FAST)
@taking(sliding_window)
def channels_last_conv(
    xp: Xp,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints,
    winograd: int = 0,
    bias_row: int = 0,
    **sliding: Any,
) -> np.ndarray:
    """Return what Conv does, of weights and a bias row that lie as `prepare` says.

    `bias_row` tells that the bias is the weights' last row. The result has its channels last in
    memory; x is read fastest where it does too.
    """
    window = sliding_window(x.shape[2:], kernel_shape, **sliding)
    by_channel = _is_by_channel(w, window, group, winograd)
    channels = group if by_channel else w.shape[-1] * group
    depth = (w.shape[1] - bias_row) // (1 if winograd else prod(window.kernel))
    read = 1 if by_channel else depth
    if x.ndim != 4 or x.shape[1] != read * group:
        raise ValueError(f"input has shape {x.shape}; {group} groups of {read} channels wanted")
    y = planes(np.empty((x.shape[0], *window.output, channels), x.dtype))
    for call in _calls(Scratch(), y, x, w, b, window, group=group, winograd=winograd):
        call()
    return y


def _make_calls(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    kernel_shape: Ints,
    group: int = 1,
    winograd: int = 0,
    bias_row: int = 0,
    **sliding: Any,
) -> list[Call] | None:
    """Return the calls of the kernel above."""
    window = sliding_window(x.shape[2:], kernel_shape, **sliding)
    calls = _calls(scratch, y, x, w, b, window, group=group, winograd=winograd)
    return list(calls) if is_last(y) else None


CALL_MAKERS[channels_last_conv] = _make_calls


def _is_by_channel(w: np.ndarray, window: Window, group: int, winograd: int) -> bool:
    return w.ndim == 3 and not winograd and w.shape[:2] == window.kernel and group > 1


def _calls(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None,
    window: Window,
    *,
    group: int,
    winograd: int,
) -> Iterator[Call]:
    """Yield the calls that put the convolution into y, whose channels are last, band by band."""
    y = y.transpose(0, 2, 3, 1)
    pads, own = BandScratch(scratch), BandScratch(scratch)
    convolve: Callable[..., Iterator[Call]]
    if winograd:
        most = winograd_.tile_rows(w, -(-y.shape[2] // winograd)) * winograd
        convolve = partial(winograd_.tile_calls, own, w, winograd)
    elif _is_by_channel(w, window, group, winograd):
        most = _rows(x, y, window, group * (window.strides[0] + 1), True)
        convolve = partial(_by_channel, w, window)
    else:
        copied = copies_columns(window.kernel, window.strides, group)
        most = _rows(x, y, window, group * sum(w.shape[1:]), copied)
        convolve = partial(_by_columns, own, w, window)
    if most < y.shape[1] and 4 * x.nbytes <= y.nbytes:
        # Bands share rows, and a small input that is not in order is put so once.
        pixels, calls = pixel_calls(BandScratch(scratch), x)
        yield from calls
        x = planes(pixels)
    for images, rows in bands(len(y), y.shape[1], most, winograd or 1):
        pads.rewind()
        own.rewind()
        part, calls = _padded(pads, x[images], window, rows, winograd)
        yield from calls
        block = y[images, rows]
        yield from convolve(part, block)
        if b is not None:
            yield from row_calls(np.add, block, b)


def _rows(x: np.ndarray, y: np.ndarray, window: Window, elements: int, copied: bool) -> int:
    """Return how many output rows to compute at once, of which each pixel takes some elements.

    Copies take no more than input and output do. Few input rows are read for several such bands.
    """
    read_and_written = x.nbytes + y.nbytes if copied else _BLOCK_BYTES
    most = min(_BLOCK_BYTES, max(_LEAST_BLOCK_BYTES, read_and_written))
    stride, width = window.strides[0], window.output[1]
    shared = (window.kernel[0] - 1) * window.dilations[0] + 1 - stride
    fewest = max(-(-_FEWEST_PIXELS // width), -(-shared // stride), 1)
    return max(fewest, most // (elements * width * x.itemsize))


def _padded(
    scratch: BandScratch, x: np.ndarray, window: Window, rows: slice, winograd: int
) -> tuple[np.ndarray, list[Call]]:
    """Return the pixels that some output rows read, and the calls that put them there."""
    (top, left), (height, width), count = window.begin, window.input, rows.stop - rows.start
    wide = left + width + window.end[1]
    deep = (count - 1) * window.strides[0] + (window.kernel[0] - 1) * window.dilations[0] + 1
    if winograd:
        deep, wide = (-(-n // winograd) * winograd + 2 for n in (count, window.output[1]))
    elif count == window.output[0]:  # the whole of x, even if less is read: it needs no copy
        deep = top + height + window.end[0]
    start = rows.start * window.strides[0] - top
    first, end = (min(max(row, 0), height) for row in (start, start + deep))
    before = (min(first - start, deep), left)
    return pad_calls(scratch, x[:, :, first:end], before, (deep, wide))


def bias_row(b: np.ndarray) -> np.ndarray:
    """Return a bias (M) as the kernel above takes it: again and again, to a row worth a loop."""
    return np.tile(b, max(1, ROW // b.size))


def _by_columns(
    scratch: BandScratch, w: np.ndarray, window: Window, x: np.ndarray, y: np.ndarray
) -> Iterator[Call]:
    """Yield the calls that multiply what each pixel of y reads of x by weights."""
    group, depth, m = w.shape
    reads = windows(x, window.kernel, window.strides, window.dilations, y.shape[1:3])
    taps = prod(reads.shape[3:]) // group
    if group > 1:
        reads = reads.reshape(*reads.shape[:5], group, -1).transpose(5, 0, 1, 2, 3, 4, 6)
    else:
        reads = reads[None]
    if copies_columns(window.kernel, window.strides, group):
        columns = scratch((group, prod(y.shape[:3]), depth), x.dtype)
        if taps < depth and (scratch.is_new or group > 1):
            yield partial(columns[..., taps:].fill, 1)  # times the bias
        yield copy_call(columns[..., :taps].reshape(reads.shape), reads)
    else:
        columns = reads.reshape(group, -1, depth)
    if group == 1:
        yield partial(np.matmul, columns[0], w[0], y.reshape(-1, m))
    else:
        yield partial(np.matmul, columns, w, y.reshape(-1, group, m).transpose(1, 0, 2))


def _by_channel(w: np.ndarray, window: Window, x: np.ndarray, y: np.ndarray) -> Iterator[Call]:
    """Yield the calls that sum, channel by channel, pixels times weights (kh, kw, C and again)."""
    n, height, width, c = y.shape
    reads = windows(x, window.kernel, window.strides, window.dilations, y.shape[1:3])
    if window.strides[1] > 1:
        yield partial(np.einsum, "nhwijc,ijc->nhwc", reads, w[..., :c], out=y)
        return
    # Runs of about equal length, for a row's last pixels take as many calls.
    each = -(-width // -(-width * c // w.shape[2]))
    image, row, column, *inner = reads.strides
    whole = width // each * each
    for first, end, run in ((0, whole, each), (whole, width, width - whole)):
        if run:
            shape = (n, height, (end - first) // run, *window.kernel, run * c)
            strides = (image, row, run * column, *inner)
            lines = np.ndarray(shape, x.dtype, x, first * column, strides)
            sums = y[:, :, first:end].reshape(n, height, -1, run * c)
            terms = (lines, w[..., : run * c])
            yield partial(np.einsum, "nhrijx,ijx->nhrx", *terms, out=sums)
