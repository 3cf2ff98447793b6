"""Convolution with channels last: products of pixels and weights that lie ready for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod

import numpy as np

from devices.cpu.fast import winograd as winograd_
from devices.cpu.fast.channels_last import (
    ROW,
    is_last,
    padded,
    pixels,
    planes,
    row_of,
    windows,
    with_row,
)
from devices.cpu.fast.registry import FAST
from devices.kernels.in_place import IN_PLACE
from devices.kernels.registry import op
from devices.kernels.window import Window, sliding_window

Ints = Sequence[int]

#: Bytes of columns to hold at once, and of the output beside them.
_BLOCK_BYTES = 1 << 20
#: Pixels below which a product no longer pays for packing the weights.
_FEWEST_PIXELS = 192


def prepare(w: np.ndarray, group: int, tile: int) -> np.ndarray:
    """Return weights (M, C/group, kh, kw) as the kernel below takes them.

    One channel a group: (kh, kw, C); with a Winograd tile as `winograd.prepare` says; otherwise
    (group, kh * kw * C/group, M/group).
    """
    m, c = w.shape[:2]
    if tile:
        return winograd_.prepare(w, tile)
    if c == 1 and m == group > 1:
        return np.ascontiguousarray(w[:, 0].transpose(1, 2, 0))
    rows = w.reshape(group, m // group, c, -1).transpose(0, 3, 2, 1)
    return np.ascontiguousarray(rows).reshape(group, -1, m // group)


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
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Return what FusedConv does, of weights and a bias row that lie as `prepare` says.

    The result has its channels last in memory; x and z are read fastest where they do too.
    """
    window = sliding_window(x.shape[2:], kernel_shape, strides, dilations, pads, auto_pad)
    by_channel = w.ndim == 3 and not winograd and w.shape[:2] == window.kernel and group > 1
    channels = w.shape[2] if by_channel else w.shape[-1] * group
    read = w.shape[2] if by_channel else w.shape[1] // (1 if winograd else prod(window.kernel))
    if x.ndim != 4 or x.shape[1] != (read if by_channel else read * group):
        raise ValueError(f"input has shape {x.shape}; {group} groups of {read} channels wanted")
    x = pixels(x)
    if out is None or not is_last(out):
        out = planes(np.empty((x.shape[0], *window.output, channels), x.dtype))
    y = out.transpose(0, 2, 3, 1)
    lines = y.reshape(-1, *y.shape[2:])
    residual = None if z is None else pixels(z).reshape(lines.shape)

    def finish(rows: slice) -> None:
        block = lines[rows]
        if alike is not None:
            block[...] = block[..., alike]
        if b is not None:
            with_row(np.add, block, b)
        if residual is not None:
            block += residual[rows]
        _activate(block, activation, activation_params)

    if winograd:
        height = window.output[0]
        for image in range(x.shape[0]):
            winograd_.convolve(x[image], w, winograd, window.begin, y[image])
            finish(slice(image * height, (image + 1) * height))
    elif by_channel:
        _by_channel(x, w, window, y)
        finish(slice(None))
    else:
        _by_columns(x, w, window, y, finish)
    return out


def bias_row(b: np.ndarray) -> np.ndarray:
    """Return a bias (M) as the kernel above takes it: again and again, to a row worth a loop."""
    return np.tile(b, max(1, ROW // b.size))


def _activate(y: np.ndarray, name: str, params: Sequence[float]) -> None:
    """Apply an activation of `IN_PLACE` to a contiguous block."""
    if name == "Relu":
        with_row(np.maximum, y, row_of(0.0, y.dtype))
    elif name == "Clip":
        low, high = params
        if low > -inf:
            with_row(np.maximum, y, row_of(low, y.dtype))
        if high < inf:
            with_row(np.minimum, y, row_of(high, y.dtype))
    else:
        IN_PLACE[name](np, y, *params)


def _read(x: np.ndarray, window: Window) -> np.ndarray:
    """Return x (N, H, W, C) with the padding that the windows read."""
    size = tuple(b + n + e for b, n, e in zip(window.begin, window.input, window.end, strict=True))
    return padded(x, window.begin, size)


def _by_columns(
    x: np.ndarray, w: np.ndarray, window: Window, y: np.ndarray, finish: Callable[[slice], None]
) -> None:
    """Multiply what the windows read, some output rows at a time, by the weights."""
    n, height, width, _ = y.shape
    group, depth, m = w.shape
    reads = windows(_read(x, window), window.kernel, window.strides, window.dilations, y.shape[1:3])
    if group > 1:
        reads = reads.reshape(*reads.shape[:5], group, -1).transpose(5, 0, 1, 2, 3, 4, 6)
    else:
        reads = reads[None]
    out = y.reshape(n * height, width, group, m)
    each = group * (depth + m) * width * x.itemsize
    step = max(-(-_FEWEST_PIXELS // width), _BLOCK_BYTES // each, 1)
    images = min(n, max(1, step // height))
    rows = -(-height // -(-height // step))
    for image in range(0, n, images):
        for first in range(0, height, rows):
            part = reads[:, image : image + images, first : first + rows]
            block = slice(image * height + first, image * height + first + prod(part.shape[1:3]))
            columns = part.reshape(group, -1, depth)
            if group == 1:
                np.matmul(columns[0], w[0], out=out[block].reshape(-1, m))
            else:
                np.matmul(columns, w, out=out[block].reshape(-1, group, m).transpose(1, 0, 2))
            finish(block)


def _by_channel(x: np.ndarray, w: np.ndarray, window: Window, y: np.ndarray) -> None:
    """Convolve each channel by itself: sums of pixels times weights (kh, kw, C)."""
    n, height, width, c = y.shape
    x = _read(x, window)
    reads = windows(x, window.kernel, window.strides, window.dilations, y.shape[1:3])
    if window.strides[1] > 1:
        np.einsum("nhwijc,ijc->nhwc", reads, w, out=y)
        return
    # The pixels of a row are one run of memory, for weights repeated for each pixel.
    shape = (n, height, *window.kernel, width * c)
    lines = np.ndarray(shape, x.dtype, x, 0, (*reads.strides[:2], *reads.strides[3:]))
    weights = np.broadcast_to(w[:, :, None], (*window.kernel, width, c))
    weights = weights.reshape(*window.kernel, -1)
    np.einsum("nhijx,ijx->nhx", lines, weights, out=y.reshape(n, height, -1))
