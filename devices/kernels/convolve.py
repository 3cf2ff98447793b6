"""Convolution as a matrix product, by whichever way makes the columns cheapest.

A convolution is a matrix product of the weights, as rows, with the input's windows, as columns.
The columns are built a few output rows at a time, so that they are still in cache when the product
reads them; a 1x1 kernel needs none, and a kernel with one channel per group is a sum of shifted
inputs. Sizes are written N, C, M (output channels), and G (groups).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from devices.kernels.element_types import Array, Xp
from devices.kernels.precision import wide
from devices.kernels.window import Window

#: Changes a block of the output in place; called as ``activate(xp, block)``.
Activate = Callable[..., None]

#: Bytes of columns to hold at once: enough that packing the weights anew for each product is
#: cheap, little enough that small models stay within their memory.
_COLUMN_BYTES = 1 << 21

#: The same for kernels of one channel, whose product is cheap.
_CHANNEL_BYTES = 1 << 20

#: Bytes of all kernel elements' products that are worth holding.
_PRODUCT_BYTES = 1 << 22

#: Columns below which a matrix product no longer pays for packing the weights.
_FEWEST_COLUMNS = 192

#: Called with (slice of output channels, slice of output rows, block) to finish a block in place.
_Finish = Callable[[Array, slice, slice], None]


def convolve(
    xp: Xp,
    x: Array,
    w: Array,
    b: Array | None,
    z: Array | None,
    window: Window,
    group: int,
    activate: Activate,
    out: Array | None = None,
    alike: Array | None = None,
) -> Array:
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
    alike : array or None
        For each of the M filters the first one that equals it; they then get the same result to
        the last bit, whatever the BLAS does. Only for one group.
    """
    n, m = x.shape[0], w.shape[0]
    shape = (n, m, *window.output)
    dtype = x.dtype
    x, w, b, z = wide(xp, x, w, b, z)
    if b is not None and b.shape != (m,):
        raise ValueError(f"bias has shape {b.shape}; {(m,)} wanted")
    if z is not None and z.shape != shape:
        raise ValueError(f"residual has shape {z.shape}; {shape} wanted")
    y = out
    if y is None or y.dtype != x.dtype or not y.flags.c_contiguous:
        y = xp.empty(shape, x.dtype)
    bias = None if b is None else b.reshape(m, *(1,) * len(window.output))

    def finish(block: Array, image: int, channels: slice, rows: slice) -> None:
        if alike is not None:
            block[...] = block[alike]
        if bias is not None:
            block += bias[channels]
        if z is not None:
            block += z[image, channels, rows]
        activate(xp, block)

    if set(window.kernel) == {1} and not any(window.begin) and not any(window.end):
        run = _pointwise
    elif w.shape[1] == 1 and group > 1:
        run = _depthwise
    elif group == 1 and _by_outputs_pays(window, m, w.shape[1], x.dtype.itemsize):
        run = _by_outputs
    elif _wide_pays(window, m // group):
        run = _by_wide_rows
    else:
        run = _by_columns
    for image in range(n):
        run(xp, x[image], w, window, group, y[image], lambda *a, i=image: finish(a[0], i, *a[1:]))
    return y.astype(dtype, copy=False)


def first_alike(xp: Xp, w: Array) -> Array | None:
    """Return for each filter of w (M, ...) the first one that equals it; None if none does."""
    rows = w.reshape(w.shape[0], -1)
    if not w.size or xp.unique(rows[:, 0]).size == w.shape[0]:
        return None  # the first weights alone tell them apart
    if bool((rows == rows[0]).all()):
        return xp.zeros(w.shape[0], xp.int64)
    _, first, group = xp.unique(rows, axis=0, return_index=True, return_inverse=True)
    return None if first.size == w.shape[0] else first[group.reshape(-1)]


def _pointwise(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """A kernel of one element: the input is its own columns."""
    if any(s > 1 for s in window.strides):
        x = x[(slice(None), *window.slices((0,) * len(window.kernel)))]
    m, c = w.shape[:2]
    columns = x.reshape(group, c, -1)
    xp.matmul(w.reshape(group, m // group, c), columns, out=y.reshape(group, m // group, -1))
    finish(y, slice(None), slice(None))


def _pad(xp: Xp, x: Array, window: Window, extra: int = 0) -> Array:
    """Return x (C, ...) with zeros around it; `extra` more rows at the first axis's end."""
    if not any(window.begin) and not any(window.end) and not extra:
        return x
    shape = [b + n + e for b, n, e in zip(window.begin, window.input, window.end, strict=True)]
    shape[0] += extra
    padded = xp.zeros((x.shape[0], *shape), x.dtype)
    inside = (slice(b, b + n) for b, n in zip(window.begin, window.input, strict=True))
    padded[(slice(None), *inside)] = x
    return padded


def _rows_at_once(window: Window, depth: int, itemsize: int, width: int) -> int:
    """Return how many output rows (first spatial axis) make a good block of columns."""
    columns = max(_FEWEST_COLUMNS, _COLUMN_BYTES // (depth * itemsize))
    blocks = max(1, -(-window.output[0] * width // columns))
    return -(-window.output[0] // blocks)


def _by_columns(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
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


def _phases(xp: Xp, x: Array, window: Window) -> tuple[Array, int]:
    """Return x padded and split by stride: (C, stride, stride, rows * width + slack), and width.

    Output row r, column q reads for kernel element (i, j) the phase (i % stride, j % stride) at
    ``(r + i // stride) * width + q + j // stride``: for all r and q that is one run of memory.
    """
    (sh, sw), (oh, _) = window.strides, window.output
    width = _wide_width(window)
    height = oh + (window.kernel[0] - 1) * window.dilations[0] // sh + 1
    phases = xp.zeros((x.shape[0], sh, sw, height, width), x.dtype)
    top, left = window.begin
    for i in range(sh):
        for j in range(sw):
            first_row, first_column = -(-(top - i) // sh), -(-(left - j) // sw)
            part = x[:, first_row * sh + i - top :: sh, first_column * sw + j - left :: sw]
            part = part[:, : height - first_row, : width - first_column]
            rows = slice(first_row, first_row + part.shape[1])
            phases[:, i, j, rows, first_column : first_column + part.shape[2]] = part
    return phases.reshape(x.shape[0], sh, sw, height * width), width


def _run(window: Window, position: tuple[int, ...], width: int) -> tuple[int, int, int]:
    """Return the phase that a kernel element reads, and the offset of its run."""
    i, j = (k * d for k, d in zip(position, window.dilations, strict=True))
    (sh, sw) = window.strides
    return i % sh, j % sw, (i // sh) * width + j // sw


def _by_wide_rows(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """Copy runs of whole rows into the columns; the product's surplus columns are dropped."""
    m, c, size = w.shape[0], w.shape[1], prod(window.kernel)
    phases, width = _phases(xp, x, window)
    weights = w.reshape(group, m // group, c * size)
    oh, ow = window.output
    step = _rows_at_once(window, c * size * group + m, x.dtype.itemsize, width)
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


def _depthwise(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """One input channel per group: a vector-matrix product each, a few channels at a time."""
    each, size = w.shape[0] // group, prod(window.kernel)
    weights = w.reshape(group, each, size)
    planar = len(window.output) == 2
    width = _wide_width(window) if planar else window.output[-1]
    length = prod(window.output[:-1]) * width
    step = max(1, min(group, _CHANNEL_BYTES // (size * length * x.dtype.itemsize)))
    buffer = xp.empty((step, size, length), x.dtype)
    product = xp.empty((step, each, length), x.dtype)
    for first in range(0, group, step):
        channels = slice(first, min(group, first + step))
        columns = buffer[: channels.stop - first]
        if planar:
            phases, _ = _phases(xp, x[channels], window)
            for k, position in enumerate(window.positions()):
                i, j, offset = _run(window, position, width)
                columns[:, k] = phases[:, i, j, offset : offset + length]
        else:
            padded = _pad(xp, x[channels], window)
            for k, position in enumerate(window.positions()):
                part = padded[(slice(None), *window.slices(position))]
                columns[:, k] = part.reshape(-1, length)
        result = xp.matmul(weights[channels], columns, out=product[: channels.stop - first])
        outputs = slice(first * each, channels.stop * each)
        target = y[outputs]
        rows = result.reshape(*target.shape[:-1], width)
        target[...] = rows[..., : window.output[-1]]
        finish(target, outputs, slice(None))


def _by_outputs(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """Few output channels: multiply the input by every kernel element, and add what is shifted.

    The input is read once, not once per kernel element; the sums are over the smaller side.
    """
    m, c, size = w.shape[0], w.shape[1], prod(window.kernel)
    phases, width = _phases(xp, x, window)
    weights = w.reshape(m, c, size).transpose(2, 0, 1).reshape(size * m, c)
    products = xp.matmul(weights, phases.reshape(c, -1)).reshape(size, m, -1)
    oh, ow = window.output
    length = oh * width
    total = products[0, :, :length]
    for k, position in enumerate(window.positions()):
        _, _, offset = _run(window, position, width)
        if k:
            total += products[k, :, offset : offset + length]
    y[...] = total.reshape(m, oh, width)[:, :, :ow]
    finish(y, slice(None), slice(None))


def _by_outputs_pays(window: Window, m: int, c: int, itemsize: int) -> bool:
    """Whether the products of all kernel elements are few, and fit beside the input in cache."""
    if len(window.output) != 2 or set(window.strides) != {1} or 2 * m > c:
        return False
    columns = window.output[0] * _wide_width(window)
    return columns >= 512 and prod(window.kernel) * m * columns * itemsize <= _PRODUCT_BYTES
