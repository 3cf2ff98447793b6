"""Convolutions: Conv, ConvTranspose and DeformConv."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hetero.devices.kernels.convolve import add_windows, convolve
from hetero.devices.kernels.element_types import Array, Xp, in_float32
from hetero.devices.kernels.registry import op, with_attributes_of
from hetero.devices.kernels.window import Window, per_axis, sliding_window

Ints = Sequence[int]


def _check_weights(x: Array, w: Array, kernel_shape: Ints | None) -> None:
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ValueError(
            f"expected input and weights of one rank above 2, got shapes {x.shape} and {w.shape}"
        )
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(
            f"kernel_shape: expected {w.shape[2:]}, as in the weights, got {tuple(kernel_shape)}"
        )


def conv_window(
    x: Array, w: Array, *, group: int = 1, kernel_shape: Ints | None = None, **sliding: Any
) -> Window:
    """Return the window of a convolution; ValueError if the shapes do not fit."""
    _check_weights(x, w, kernel_shape)
    if group < 1 or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"expected {w.shape[1] * group} input channels and output channels that group {group} "
            f"divides for weights {w.shape}, got {x.shape[1]} and {w.shape[0]} channels"
        )
    return sliding_window(x.shape[2:], w.shape[2:], **sliding)


@op("Conv", since=1)
@in_float32
@with_attributes_of(sliding_window)
def conv_1(
    xp: Xp,
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    **sliding: Any,
) -> Array:
    """Return the convolution of x (N, C, ...) with w (M, C/group, ...), plus b (M)."""
    window = conv_window(x, w, group=group, kernel_shape=kernel_shape, **sliding)
    return convolve(xp, x, w, b, window, group)


def transposed_window(
    spatial: Ints,
    kernel: Ints,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    output_padding: Ints | None = None,
    output_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Window:
    """Return the window of the transposed operation, a convolution from our output to our input."""
    rank = len(spatial)
    strides, dilations = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    extra = per_axis(output_padding, rank, "output_padding", default=0)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [s * (n - 1) + p + e for s, n, p, e in zip(strides, spatial, extra, extent, strict=True)]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        same = tuple(min(n * s, f) for n, s, f in zip(spatial, strides, full, strict=True))
        output = tuple(output_shape)[-rank:] if output_shape else same
        # A convolution ignores less than a stride at the end, which its transpose may add.
        most = tuple(f - p + s - 1 for f, p, s in zip(full, extra, strides, strict=True))
        if any(o > m for o, m in zip(output, most, strict=True)):
            raise ValueError(
                f"output_shape: expected at most {most} for an input of {tuple(spatial)}, kernel "
                f"{tuple(kernel)} and strides {strides}, got {output}"
            )
        total = [max(f - o, 0) for f, o in zip(full, output, strict=True)]
        begin = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
        end = tuple(t - s for t, s in zip(total, begin, strict=True))
    else:
        both = per_axis(None if auto_pad == "VALID" else pads, 2 * rank, "pads", default=0)
        begin, end = both[:rank], both[rank:]
        output = tuple(f - s - e for f, s, e in zip(full, begin, end, strict=True))
    if min(output) < 1:
        raise ValueError(
            f"pads: expected padding smaller than the output, got {begin} and {end} for spatial "
            f"size {tuple(full)}"
        )
    return Window(tuple(kernel), strides, dilations, begin, end, output, tuple(spatial))


@op("ConvTranspose", since=1)
@in_float32
@with_attributes_of(transposed_window)
def conv_transpose_1(
    xp: Xp,
    x: Array,
    w: Array,
    b: Array | None = None,
    *,
    group: int = 1,
    kernel_shape: Ints | None = None,
    **sliding: Any,
) -> Array:
    """Return the transposed convolution of x (N, C, ...) with w (C, M/group, ...), plus b (M).

    Each input element adds a multiple of the kernel to the output, at distances of `strides`.
    """
    _check_weights(x, w, kernel_shape)
    if group < 1 or x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(
            f"expected {w.shape[0]} input channels, which group {group} divides, for weights "
            f"{w.shape}, got {x.shape[1]}"
        )
    window = transposed_window(x.shape[2:], w.shape[2:], **sliding)
    n, c, m = x.shape[0], x.shape[1] // group, w.shape[1] * group
    weights = w.reshape(group, c, -1).swapaxes(1, 2)
    columns = xp.matmul(weights, x.reshape(n, group, c, prod(x.shape[2:])))
    columns = columns.reshape(n, m, prod(window.kernel), *window.output)
    y = add_windows(xp, columns, window)
    if b is not None:
        y = y + b.reshape(m, *(1,) * len(window.input))
    return xp.ascontiguousarray(y)


@op("DeformConv", since=19)
@in_float32
def deform_conv_19(
    xp: Xp,
    x: Array,
    w: Array,
    offset: Array,
    b: Array | None = None,
    mask: Array | None = None,
    *,
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    offset_group: int = 1,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Return a 2-D convolution in which each element of a window is read at its own offset.

    `offset` (N, offset_group * kh * kw * 2, oh, ow) holds (y, x) shifts, `mask` (N,
    offset_group * kh * kw, oh, ow) factors. Values between pixels are interpolated bilinearly;
    values outside the input are zero.
    """
    if x.ndim != 4:
        raise ValueError(f"DeformConv: expected an input of shape (N, C, H, W), got {x.shape}")
    sliding = {"dilations": dilations, "pads": pads, "strides": strides}
    window = conv_window(x, w, group=group, kernel_shape=kernel_shape, **sliding)
    (n, c, height, width), (oh, ow), size = x.shape, window.output, prod(window.kernel)
    if offset.shape != (n, offset_group * size * 2, oh, ow) or c % offset_group:
        raise ValueError(
            f"offset: expected shape {(n, offset_group * size * 2, oh, ow)}, got {offset.shape}"
        )
    shift = offset.reshape(n, offset_group, size, 2, oh, ow)
    kernel = xp.asarray(list(window.positions()), dtype=x.dtype)
    (sh, sw), (dh, dw), (top, left) = window.strides, window.dilations, window.begin
    rows = shift[:, :, :, 0] + (kernel[:, 0] * dh)[:, None, None]
    rows += (xp.arange(oh, dtype=x.dtype) * sh - top)[:, None]
    columns = shift[:, :, :, 1] + (kernel[:, 1] * dw)[:, None, None]
    columns += xp.arange(ow, dtype=x.dtype) * sw - left
    planes = x.reshape(n, offset_group, c // offset_group, height * width)
    flat = (n, offset_group, 1, size * oh * ow)
    row, column = xp.floor(rows), xp.floor(columns)
    values = xp.zeros((n, offset_group, c // offset_group, size * oh * ow), x.dtype)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        at_row, at_column = row + i, column + j
        weight = (1 - abs(rows - at_row)) * (1 - abs(columns - at_column))
        inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
        index = xp.where(inside, at_row * width + at_column, 0).astype(xp.int64)
        weight = xp.where(inside, weight, 0)
        values += xp.take_along_axis(planes, index.reshape(flat), axis=3) * weight.reshape(flat)
    if mask is not None:
        values *= mask.reshape(flat)
    y = xp.matmul(
        w.reshape(group, w.shape[0] // group, -1),
        values.reshape(n, group, w.shape[1] * size, oh * ow),
    ).reshape(n, w.shape[0], oh, ow)
    if b is not None:
        y += b.reshape(-1, 1, 1)
    return y
