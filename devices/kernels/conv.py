"""Convolutions: Conv, ConvTranspose, DeformConv and the fused FusedConv.

A convolution is a matrix product of the weights, as rows, with the input's windows, as columns.
The columns are built a few output rows at a time, so that they are still in cache when the product
reads them; a 1x1 kernel needs none, and a kernel with one channel per group is a sum of shifted
inputs. Sizes are written N, C, M (output channels), G (groups), and L for all spatial positions.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from devices.kernels.registry import op
from devices.kernels.precision import wide
from devices.kernels.window import Window, per_axis, sliding_window

#: Bytes of columns to hold at once: about what a second-level cache keeps beside the weights.
_COLUMN_BYTES = 1 << 19

#: Columns below which a matrix product no longer pays for packing the weights.
_FEWEST_COLUMNS = 192

#: Called with (slice of output channels, slice of output rows, block) to finish a block in place.
_Finish = Callable[[Any, slice, slice], None]


@op("Conv", since=1)
def conv_1(
    xp, x, w, b=None, *,
    auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None, strides=None, out=None,
):  # fmt: skip
    """Return the convolution of x (N, C, ...) with w (M, C/group, ...), plus b (M)."""
    window = _conv_window(x, w, auto_pad, dilations, group, kernel_shape, pads, strides)
    return convolve(xp, x, w, b, None, window, group, _identity, out)


@op("FusedConv", since=1, domain="hetero")
def fused_conv_1(
    xp, x, w, b=None, z=None, *,
    auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None, strides=None,
    activation="", activation_params=(), out=None,
):  # fmt: skip
    """Return ``activation(Conv(x, w, b) + z)``, the last two steps done while a block is in cache.

    `activation_params` are the activation's attributes in the order of its specification: Clip's
    (min, max), LeakyRelu's (alpha), HardSigmoid's (alpha, beta).
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"activation {activation!r} is not one of {sorted(_ACTIVATIONS)}")
    window = _conv_window(x, w, auto_pad, dilations, group, kernel_shape, pads, strides)

    def activate(xp, y):
        _ACTIVATIONS[activation](xp, y, *activation_params)

    return convolve(xp, x, w, b, z, window, group, activate, out)


def _identity(xp, y):
    pass


def _relu(xp, y):
    xp.maximum(y, 0, out=y)


def _clip(xp, y, low=-float("inf"), high=float("inf")):
    xp.maximum(y, low, out=y)
    xp.minimum(y, high, out=y)


def _leaky_relu(xp, y, alpha=0.01):
    xp.copyto(y, y * alpha, where=y < 0)


def _sigmoid(xp, y):
    xp.negative(y, out=y)
    xp.exp(y, out=y)
    y += 1
    xp.reciprocal(y, out=y)


def _hard_sigmoid(xp, y, alpha=0.2, beta=0.5):
    y *= alpha
    y += beta
    _clip(xp, y, 0, 1)


def _times(gate):
    def activate(xp, y, *params):
        factor = y.copy()
        gate(xp, factor, *params)
        y *= factor

    return activate


def _tanh(xp, y):
    xp.tanh(y, out=y)


def _hard_swish_gate(xp, y):
    _hard_sigmoid(xp, y, 1 / 6, 0.5)


_ACTIVATIONS = {
    "": _identity,
    "Relu": _relu,
    "Clip": _clip,
    "LeakyRelu": _leaky_relu,
    "Sigmoid": _sigmoid,
    "HardSigmoid": _hard_sigmoid,
    "Tanh": _tanh,
    "HardSwish": _times(_hard_swish_gate),
    "Swish": _times(_sigmoid),
}


def _conv_window(x, w, auto_pad, dilations, group, kernel_shape, pads, strides):
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ValueError(f"input has shape {x.shape}, weights {w.shape}: ranks must agree, above 2")
    if group < 1 or x.shape[1] != w.shape[1] * group or w.shape[0] % group:
        raise ValueError(
            f"input has {x.shape[1]} channels, weights {w.shape} with group {group} want "
            f"{w.shape[1] * group}, and output channels divisible by group"
        )
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(f"kernel_shape {tuple(kernel_shape)} is not that of weights {w.shape}")
    return sliding_window(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad)


def convolve(xp, x, w, b, z, window, group, activate, out=None):
    """Return ``activate(x convolved with w, + b, + z)`` of shape (N, M, *window.output).

    Parameters
    ----------
    x, w : array
        Input (N, C, ...) and weights (M, C/group, ...), of one type.
    b, z : array or None
        Bias (M), and a tensor to add, of the output's shape.
    window : Window
    group : int
    activate : callable
        Called as ``activate(xp, y)`` to change a block of the output in place.
    out : array or None
        Where to write the result.
    """
    n, m = x.shape[0], w.shape[0]
    shape = (n, m, *window.output)
    dtype = x.dtype
    x, w, b, z = wide(xp, x, w, b, z)
    if b is not None and b.shape != (m,):
        raise ValueError(f"bias has shape {b.shape}; {(m,)} wanted")
    if z is not None and z.shape != shape:
        raise ValueError(f"residual has shape {z.shape}; {shape} wanted")
    y = out if out is not None and out.dtype == x.dtype else xp.empty(shape, x.dtype)
    bias = None if b is None else b.reshape(m, *(1,) * len(window.output))

    def finish(block, image, channels, rows):
        if bias is not None:
            block += bias[channels]
        if z is not None:
            block += z[image, channels, rows]
        activate(xp, block)

    per_group = w.shape[1]
    if per_group == 1 and group > 1 and m == group and window.kernel != (1,) * len(window.output):
        run = _depthwise
    elif set(window.kernel) == {1} and not any(window.begin) and not any(window.end):
        run = _pointwise
    elif _wide_pays(window, m // group):
        run = _by_wide_rows
    else:
        run = _by_columns
    for image in range(n):
        run(xp, x[image], w, window, group, y[image], lambda *a, i=image: finish(a[0], i, *a[1:]))
    return y.astype(dtype, copy=False)


def _pointwise(xp, x, w, window, group, y, finish):
    """A kernel of one element: the input is its own columns."""
    if any(s > 1 for s in window.strides):
        x = x[(slice(None), *window.slices((0,) * len(window.kernel)))]
    m, c = w.shape[:2]
    columns = x.reshape(group, c, -1)
    xp.matmul(w.reshape(group, m // group, c), columns, out=y.reshape(group, m // group, -1))
    finish(y, slice(None), slice(None))


def _pad(xp, x, window, extra=0):
    """Return x (C, ...) with zeros around it; `extra` more rows at the first axis's end."""
    if not any(window.begin) and not any(window.end) and not extra:
        return x
    shape = [b + n + e for b, n, e in zip(window.begin, window.input, window.end, strict=True)]
    shape[0] += extra
    padded = xp.zeros((x.shape[0], *shape), x.dtype)
    inside = (slice(b, b + n) for b, n in zip(window.begin, window.input, strict=True))
    padded[(slice(None), *inside)] = x
    return padded


def _rows_at_once(window, depth, itemsize, width):
    """Return how many output rows (first spatial axis) make a good block of columns."""
    columns = max(_FEWEST_COLUMNS, _COLUMN_BYTES // (depth * itemsize))
    blocks = max(1, -(-window.output[0] * width // columns))
    return -(-window.output[0] // blocks)


def _by_columns(xp, x, w, window, group, y, finish):
    """Copy each window into a column, some output rows at a time."""
    m, c, size = w.shape[0], w.shape[1], prod(window.kernel)
    padded = _pad(xp, x, window)
    weights = w.reshape(group, m // group, c * size)
    rest = window.output[1:]
    step = _rows_at_once(window, c * size * group, x.dtype.itemsize, prod(rest))
    buffer = xp.empty(group * c * size * step * prod(rest), x.dtype)
    for first in range(0, window.output[0], step):
        rows = min(step, window.output[0] - first)
        block = buffer[: group * c * size * rows * prod(rest)]
        columns = block.reshape(group * c, size, rows, *rest)
        for k, position in enumerate(window.positions()):
            row, *others = window.slices(position)
            start = row.start + first * window.strides[0]
            row = slice(start, start + (rows - 1) * window.strides[0] + 1, window.strides[0])
            columns[:, k] = padded[(slice(None), row, *others)]
        target = y[:, first : first + rows]
        flat = y.reshape(group, m // group, -1)
        flat = flat[:, :, first * prod(rest) : (first + rows) * prod(rest)]
        xp.matmul(weights, block.reshape(group, c * size, -1), out=flat)
        finish(target, slice(None), slice(first, first + rows))


def _wide_pays(window: Window, m: int) -> bool:
    """Whether whole padded rows as columns cost less than copying windows one row at a time.

    The product then also computes the columns between two rows, which costs about 0.02 ns each
    per output channel; a copy of one row costs about 12 ns however short it is.
    """
    if len(window.output) != 2:
        return False
    return (_wide_width(window) - window.output[1]) * m < 512


def _wide_width(window: Window) -> int:
    reach = (window.kernel[1] - 1) * window.dilations[1] // window.strides[1]
    return window.output[1] + reach


def _phases(xp, x, window):
    """Return x padded and split by stride: (C, stride, stride, rows * width + slack), and width.

    Output row r, column q reads for kernel element (i, j) the phase (i % stride, j % stride) at
    ``(r + i // stride) * width + q + j // stride``: for all r and q that is one run of memory.
    """
    (sh, sw), (oh, _) = window.strides, window.output
    width = _wide_width(window)
    height = oh + (window.kernel[0] - 1) * window.dilations[0] // sh + 1
    phases = xp.zeros((x.shape[0], sh, sw, height, width), x.dtype)
    (top, left), (h, w) = window.begin, window.input
    for i in range(sh):
        for j in range(sw):
            first_row, first_column = -(-(top - i) // sh), -(-(left - j) // sw)
            part = x[:, first_row * sh + i - top :: sh, first_column * sw + j - left :: sw]
            part = part[:, : height - first_row, : width - first_column]
            rows = slice(first_row, first_row + part.shape[1])
            phases[:, i, j, rows, first_column : first_column + part.shape[2]] = part
    return phases.reshape(x.shape[0], sh, sw, height * width), width


def _run(window, position, width):
    """Return the phase that a kernel element reads, and the offset of its run."""
    i, j = (k * d for k, d in zip(position, window.dilations, strict=True))
    (sh, sw) = window.strides
    return i % sh, j % sw, (i // sh) * width + j // sw


def _by_wide_rows(xp, x, w, window, group, y, finish):
    """Copy runs of whole rows into the columns; the product's surplus columns are dropped."""
    m, c, size = w.shape[0], w.shape[1], prod(window.kernel)
    phases, width = _phases(xp, x, window)
    weights = w.reshape(group, m // group, c * size)
    oh, ow = window.output
    step = _rows_at_once(window, c * size * group, x.dtype.itemsize, width)
    buffer = xp.empty((group * c * size * step * width), x.dtype)
    product = xp.empty((m * step * width), x.dtype)
    for first in range(0, oh, step):
        rows = min(step, oh - first)
        length = rows * width
        block = buffer[: group * c * size * length]
        columns = block.reshape(group * c, size, length)
        for k, position in enumerate(window.positions()):
            i, j, offset = _run(window, position, width)
            offset += first * width
            columns[:, k] = phases[:, i, j, offset : offset + length]
        wide_rows = product[: m * length].reshape(group, m // group, length)
        xp.matmul(weights, block.reshape(group, c * size, length), out=wide_rows)
        target = y[:, first : first + rows]
        target[...] = wide_rows.reshape(m, rows, width)[:, :, :ow]
        finish(target, slice(None), slice(first, first + rows))


def _depthwise(xp, x, w, window, group, y, finish):
    """One channel per group: the sum over kernel elements of the input, shifted and scaled."""
    planar = len(window.output) == 2
    m, weights = w.shape[0], w.reshape(w.shape[0], -1)
    length = prod(window.output)
    step = max(1, _COLUMN_BYTES // (4 * length * x.dtype.itemsize))
    for first in range(0, m, step):
        channels = slice(first, min(m, first + step))
        if planar:
            phases, width = _phases(xp, x[channels], window)
            length = window.output[0] * width
            views = [
                phases[:, i, j, offset : offset + length]
                for i, j, offset in (_run(window, p, width) for p in window.positions())
            ]
        else:
            padded = _pad(xp, x[channels], window)
            views = [padded[(slice(None), *window.slices(p))] for p in window.positions()]
        scales = weights[channels].T.reshape(-1, views[0].shape[0], *(1,) * (views[0].ndim - 1))
        total = views[0] * scales[0]
        term = xp.empty_like(total)
        for view, scale in zip(views[1:], scales[1:], strict=True):
            xp.multiply(view, scale, out=term)
            total += term
        if planar:
            total = total.reshape(-1, window.output[0], width)[:, :, : window.output[1]]
        target = y[channels]
        target[...] = total
        finish(target, channels, slice(None))


@op("ConvTranspose", since=1)
def conv_transpose_1(
    xp, x, w, b=None, *,
    auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, output_padding=None,
    output_shape=None, pads=None, strides=None,
):  # fmt: skip
    """Return the transposed convolution of x (N, C, ...) with w (C, M/group, ...), plus b (M).

    Each input element adds its multiple of the kernel to the output, `strides` apart.
    """
    if x.ndim < 3 or w.ndim != x.ndim:
        raise ValueError(f"input has shape {x.shape}, weights {w.shape}: ranks must agree, above 2")
    if group < 1 or x.shape[1] != w.shape[0] or w.shape[0] % group:
        raise ValueError(f"input has {x.shape[1]} channels; weights {w.shape} with group {group}")
    if kernel_shape and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(f"kernel_shape {tuple(kernel_shape)} is not that of weights {w.shape}")
    window = _transposed_window(
        x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad, output_padding, output_shape
    )
    dtype = x.dtype
    x, w, b = wide(xp, x, w, b)
    n, c, m = x.shape[0], x.shape[1] // group, w.shape[1] * group
    weights = w.reshape(group, c, -1).swapaxes(1, 2)
    columns = xp.matmul(weights, x.reshape(n, group, c, -1))
    columns = columns.reshape(n, m, prod(window.kernel), *window.output)
    size = [
        max((o - 1) * s + (k - 1) * d + 1, begin + i)
        for o, s, k, d, begin, i in zip(
            window.output, window.strides, window.kernel, window.dilations,
            window.begin, window.input, strict=True,
        )
    ]  # fmt: skip
    full = xp.zeros((n, m, *size), x.dtype)
    for k, position in enumerate(window.positions()):
        full[(slice(None), slice(None), *window.slices(position))] += columns[:, :, k]
    inside = (slice(begin, begin + i) for begin, i in zip(window.begin, window.input, strict=True))
    y = full[(slice(None), slice(None), *inside)]
    if b is not None:
        y = y + b.reshape(m, *(1,) * len(size))
    return xp.ascontiguousarray(y).astype(dtype, copy=False)


def _transposed_window(
    spatial, kernel, strides, dilations, pads, auto_pad, output_padding, output_shape
):
    """Return the window of the convolution whose transpose this is: its input is our output."""
    rank = len(spatial)
    strides, dilations = per_axis(strides, rank, "strides"), per_axis(dilations, rank, "dilations")
    extra = per_axis(output_padding, rank, "output_padding", default=0)
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [
        s * (n - 1) + p + e for s, n, p, e in zip(strides, spatial, extra, extent, strict=True)
    ]
    if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(output_shape)[-rank:] if output_shape else tuple(
            n * s for n, s in zip(spatial, strides, strict=True)
        )  # fmt: skip
        total = [max(f - o, 0) for f, o in zip(full, wanted, strict=True)]
        begin = tuple(t // 2 if auto_pad == "SAME_UPPER" else t - t // 2 for t in total)
        end = tuple(t - s for t, s in zip(total, begin, strict=True))
    else:
        both = per_axis(None if auto_pad == "VALID" else pads, 2 * rank, "pads", default=0)
        begin, end = both[:rank], both[rank:]
        wanted = tuple(f - s - e for f, s, e in zip(full, begin, end, strict=True))
    if min(wanted) < 1:
        raise ValueError(f"the output would have spatial size {wanted}: padding exceeds it")
    return Window(tuple(kernel), strides, dilations, begin, end, wanted, tuple(spatial))


@op("DeformConv", since=19)
def deform_conv_19(
    xp, x, w, offset, b=None, mask=None, *,
    dilations=None, group=1, kernel_shape=None, offset_group=1, pads=None, strides=None,
):  # fmt: skip
    """Return a 2-D convolution whose every window element is read at its own offset.

    `offset` (N, offset_group * kh * kw * 2, oh, ow) holds (y, x) shifts, `mask` (N,
    offset_group * kh * kw, oh, ow) factors. Values between pixels are interpolated bilinearly;
    outside the input they are zero.
    """
    if x.ndim != 4:
        raise ValueError(f"input has shape {x.shape}; DeformConv is for two spatial axes")
    window = _conv_window(x, w, "NOTSET", dilations, group, kernel_shape, pads, strides)
    dtype = x.dtype
    x, w, offset, b, mask = wide(xp, x, w, offset, b, mask)
    (n, c, height, width), (oh, ow), size = x.shape, window.output, prod(window.kernel)
    if offset.shape != (n, offset_group * size * 2, oh, ow) or c % offset_group:
        raise ValueError(
            f"offset has shape {offset.shape}; {(n, offset_group * size * 2, oh, ow)} wanted"
        )
    shift = offset.reshape(n, offset_group, size, 2, oh, ow)
    kernel = xp.asarray(list(window.positions()), dtype=x.dtype)
    (sh, sw), (dh, dw), (top, left) = window.strides, window.dilations, window.begin
    rows = shift[:, :, :, 0] + (kernel[:, 0] * dh)[:, None, None]
    rows += (xp.arange(oh, dtype=x.dtype) * sh - top)[:, None]
    columns = shift[:, :, :, 1] + (kernel[:, 1] * dw)[:, None, None]
    columns += xp.arange(ow, dtype=x.dtype) * sw - left
    planes = x.reshape(n, offset_group, c // offset_group, height * width)
    row, column = xp.floor(rows), xp.floor(columns)
    values = xp.zeros((n, offset_group, c // offset_group, size * oh * ow), x.dtype)
    for i, j in ((0, 0), (0, 1), (1, 0), (1, 1)):
        at_row, at_column = row + i, column + j
        weight = (1 - abs(rows - at_row)) * (1 - abs(columns - at_column))
        inside = (at_row >= 0) & (at_row < height) & (at_column >= 0) & (at_column < width)
        index = xp.where(inside, at_row * width + at_column, 0).astype(xp.int64)
        weight = xp.where(inside, weight, 0)
        taken = xp.take_along_axis(planes, index.reshape(n, offset_group, 1, -1), axis=3)
        values += taken * weight.reshape(n, offset_group, 1, -1)
    if mask is not None:
        values *= mask.reshape(n, offset_group, 1, -1)
    y = xp.matmul(
        w.reshape(group, w.shape[0] // group, -1),
        values.reshape(n, group, w.shape[1] * size, oh * ow),
    ).reshape(n, w.shape[0], oh, ow)
    if b is not None:
        y += b.reshape(-1, 1, 1)
    return y.astype(dtype, copy=False)
