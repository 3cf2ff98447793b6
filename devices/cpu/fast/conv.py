"""Convolution with channels last: products of pixels and weights that lie ready for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf, prod
from typing import NamedTuple

import numpy as np

from devices.cpu.binding.copies import copy_call
from devices.cpu.binding.quantize import rounding_calls
from devices.cpu.binding.registry import Call, Scratch, binds
from devices.cpu.fast import winograd as winograd_
from devices.cpu.fast.channels_last import (
    ROW,
    is_last,
    pad_calls,
    pixel_calls,
    planar,
    planes,
    row_calls,
    row_of,
    windows,
)
from devices.cpu.fast.registry import FAST
from devices.kernels.in_place import IN_PLACE
from devices.kernels.registry import op
from devices.kernels.window import Window, sliding_window

Ints = Sequence[int]

#: Bytes of columns to hold at once, and of the output beside them.
_BLOCK_BYTES = 1 << 19
#: Elements of a row that are multiplied at once by weights of single channels, at least a pixel's.
_RUN = 1024
#: Pixels below which a product no longer pays for packing the weights.
_FEWEST_PIXELS = 192


def prepare(w: np.ndarray, group: int, tile: int, b: np.ndarray | None = None) -> np.ndarray:
    """Return weights (M, C/group, kh, kw) as the kernel below takes them.

    One channel a group: (kh, kw, C); with a Winograd tile as `winograd.prepare` says; otherwise
    (group, kh * kw * C/group, M/group) and, below, a row of the bias b where there is one, which
    saves a pass over the output where columns are copied anyway.
    """
    m, c = w.shape[:2]
    if tile:
        return winograd_.prepare(w, tile)
    if c == 1 and m == group > 1:
        return np.ascontiguousarray(w[:, 0].transpose(1, 2, 0))
    rows = w.reshape(group, m // group, c, -1).transpose(0, 3, 2, 1)
    columns = rows.reshape(group, -1, m // group)
    if b is not None:
        columns = np.concatenate([columns, b.reshape(group, 1, -1)], 1)
    return np.ascontiguousarray(columns)


def copies_columns(kernel: Ints, strides: Ints, group: int) -> bool:
    """Tell whether a product's columns are a copy of the input, not a view of its pixels."""
    return set(kernel) != {1} or set(strides) != {1} or group > 1


@op("ChannelsLastConv", since=1, domain="hetero", registry=FAST)
def channels_last_conv_1(
    xp: object,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    z: np.ndarray | None = None,
    alike: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
    activation: str = "",
    activation_params: Sequence[float] = (),
    winograd: int = 0,
    bias_row: int = 0,
    shuffled: int = 1,
) -> np.ndarray:
    """Return what FusedConv does, of weights and a bias row that lie as `prepare` says.

    `bias_row` tells that the bias is the weights' last row; without Winograd's tiles, x's channels
    are read as shuffling `shuffled` groups of them gives.

    The result has its channels last in memory; x and z are read fastest where they do too. Those of
    (N, C, W) are taken as of a height of 1.
    """
    is_line = x.ndim == 3
    x, z = planar(x), planar(z)
    window = sliding_window(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    by_channel = _is_by_channel(w, window, group, winograd)
    channels = w.shape[2] if by_channel else w.shape[-1] * group
    depth = (w.shape[1] - bias_row) // (1 if winograd else prod(window.kernel))
    read = w.shape[2] // group if by_channel else depth
    if x.ndim != 4 or x.shape[1] != read * group:
        raise ValueError(f"input has shape {x.shape}; {group} groups of {read} channels wanted")
    y = planes(np.empty((x.shape[0], *window.output, channels), x.dtype))
    last = _Last(b, z, alike, activation, activation_params)
    for call in _calls(Scratch(), y, x, w, window, group, winograd, shuffled, last):
        call()
    return y[:, :, 0] if is_line else y


@binds("ChannelsLastConv", 1, domain="hetero", registry=FAST, any_order=True)
def bind_channels_last_conv(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    z: np.ndarray | None = None,
    alike: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
    activation: str = "",
    activation_params: Sequence[float] = (),
    winograd: int = 0,
    bias_row: int = 0,
    shuffled: int = 1,
) -> Sequence[Call] | None:
    """Bind the calls that the kernel above makes."""
    x, y, z = planar(x), planar(y), planar(z)
    if not is_last(y):
        return None
    window = sliding_window(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    last = _Last(b, z, alike, activation, activation_params)
    return list(_calls(scratch, y, x, w, window, group, winograd, shuffled, last))


def _is_by_channel(w: np.ndarray, window: Window, group: int, winograd: int) -> bool:
    return w.ndim == 3 and not winograd and w.shape[:2] == window.kernel and group > 1


class _Last(NamedTuple):
    """What is done to the output at last, block by block while it is in cache."""

    b: np.ndarray | None
    z: np.ndarray | None
    alike: np.ndarray | None
    activation: str
    params: Sequence[float]

    def calls(self, block: np.ndarray, residual: np.ndarray | None) -> Iterator[Call]:
        """Yield the calls for a contiguous block and what is added to it."""
        if self.alike is not None:
            yield partial(_repeat, block, self.alike)
        if self.b is not None:
            yield from row_calls(np.add, block, self.b)
        if residual is not None:
            yield partial(np.add, block, residual, block)
        if self.activation == "Relu":
            yield from row_calls(np.maximum, block, row_of(0.0, block.dtype))
        elif self.activation == "Clip":
            low, high = self.params
            if low > -inf:
                yield from row_calls(np.maximum, block, row_of(low, block.dtype))
            if high < inf:
                yield from row_calls(np.minimum, block, row_of(high, block.dtype))
        elif self.activation == "FakeQuantize":
            yield from rounding_calls(block, block, *self.params)
        elif self.activation:
            yield partial(IN_PLACE[self.activation], np, block, *self.params)


def _repeat(block: np.ndarray, alike: np.ndarray) -> None:
    """Give equal filters equal results."""
    block[...] = block[..., alike]


def _calls(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    w: np.ndarray,
    window: Window,
    group: int,
    winograd: int,
    shuffled: int,
    last: _Last,
) -> Iterator[Call]:
    """Yield the calls that put the convolution into y, whose channels are last."""
    y = y.transpose(0, 2, 3, 1)
    height = window.output[0]
    lines = y.reshape(-1, *y.shape[2:])
    residual = None
    if last.z is not None:
        z, calls = pixel_calls(scratch, last.z)
        yield from calls
        residual = z.reshape(lines.shape)
    if winograd:
        images = winograd_.convolutions(scratch, x, w, winograd, window.begin, y)
        for image, convolve in enumerate(images):
            yield from convolve
            rows = slice(image * height, (image + 1) * height)
            yield from last.calls(lines[rows], None if residual is None else residual[rows])
        return
    size = [b + n + e for b, n, e in zip(window.begin, window.input, window.end, strict=True)]
    x, calls = pad_calls(scratch, x, window.begin, size, shuffled)
    yield from calls
    reads = windows(x, window.kernel, window.strides, window.dilations, y.shape[1:3])
    if _is_by_channel(w, window, group, winograd):
        yield from _by_channel(x, reads, w, window, y)
        yield from last.calls(lines, residual)
        return
    for rows, products in _by_columns(scratch, reads, w, window, y):
        yield from products
        yield from last.calls(lines[rows], None if residual is None else residual[rows])


def bias_row(b: np.ndarray) -> np.ndarray:
    """Return a bias (M) as the kernel above takes it: again and again, to a row worth a loop."""
    return np.tile(b, max(1, ROW // b.size))


def _by_columns(
    scratch: Scratch, reads: np.ndarray, w: np.ndarray, window: Window, y: np.ndarray
) -> Iterator[tuple[slice, list[Call]]]:
    """Yield output rows, of all images', and the calls that multiply what they read by weights."""
    n, height, width, _ = y.shape
    group, depth, m = w.shape
    taps = prod(reads.shape[3:]) // group
    if group > 1:
        reads = reads.reshape(*reads.shape[:5], group, -1).transpose(5, 0, 1, 2, 3, 4, 6)
    else:
        reads = reads[None]
    out = y.reshape(n * height, width, group, m)
    each = group * (depth + m) * width * reads.itemsize
    step = max(-(-_FEWEST_PIXELS // width), _BLOCK_BYTES // each, 1)
    images = min(n, max(1, step // height))
    rows = -(-height // -(-height // step))
    copies, calls = None, list[Call]()
    if copies_columns(window.kernel, window.strides, group):
        copies = scratch((group, images * rows * width, depth), reads.dtype)
        calls += [partial(copies[..., taps:].fill, 1)] if taps < depth else []  # times the bias
    for image in range(0, n, images):
        for first in range(0, height, rows):
            part = reads[:, image : image + images, first : first + rows]
            block = slice(image * height + first, image * height + first + prod(part.shape[1:3]))
            if copies is None:
                columns = part.reshape(group, -1, depth)
            else:
                columns = copies[:, : prod(part.shape[1:4])]
                calls.append(copy_call(columns[..., :taps].reshape(part.shape), part))
            if group == 1:
                calls.append(partial(np.matmul, columns[0], w[0], out[block].reshape(-1, m)))
            else:
                products = out[block].reshape(-1, group, m).transpose(1, 0, 2)
                calls.append(partial(np.matmul, columns, w, products))
            yield block, calls
            calls = []


def _by_channel(
    x: np.ndarray, reads: np.ndarray, w: np.ndarray, window: Window, y: np.ndarray
) -> Iterator[Call]:
    """Yield the calls that sum, channel by channel, pixels times weights (kh, kw, C)."""
    n, height, width, c = y.shape
    if window.strides[1] > 1:
        yield partial(np.einsum, "nhwijc,ijc->nhwc", reads, w, out=y)
        return
    # Some pixels of a row are one run of memory, for weights repeated for each of them.
    each = -(-width // min(width, -(-width * c // _RUN)))
    weights = np.broadcast_to(w[:, :, None], (*window.kernel, each, c)).reshape(*window.kernel, -1)
    image, row, column, *inner = reads.strides
    whole = width // each * each
    for first, end, run in ((0, whole, each), (whole, width, width - whole)):
        if run:
            shape = (n, height, (end - first) // run, *window.kernel, run * c)
            strides = (image, row, run * column, *inner)
            lines = np.ndarray(shape, x.dtype, x, first * column, strides)
            sums = y[:, :, first:end].reshape(n, height, -1, run * c)
            terms = (lines, weights[..., : run * c])
            yield partial(np.einsum, "nhrijx,ijx->nhrx", *terms, out=sums)
