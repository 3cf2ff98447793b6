"""Convolution as a matrix product, by whichever way makes the columns cheapest.

A convolution is a matrix product of the weights, as rows, with the input's windows, as columns.
The columns are built a few output rows at a time, so that they are still in cache when the product
reads them; a 1x1 kernel needs none, and a kernel with one channel per group is a sum of shifted
inputs. Sizes are written N, C, M (output channels), and G (groups).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from devices.kernels.element_types import Array, Xp
from devices.kernels.precision import wide
from devices.kernels.window import Window

#: Changes a block of the output in place; called as ``activate(xp, block)``.
Activate = Callable[..., None]

#: Bytes of columns to hold at once: enough that packing the weights again for each product is
#: cheap, little enough that small models stay within their memory.
_COLUMN_BYTES = 1 << 21

#: The same for kernels of one channel, whose product is cheap.
_CHANNEL_BYTES = 1 << 20

#: Bytes of all kernel elements' products that are worth holding.
_PRODUCT_BYTES = 1 << 22

#: Columns below which a matrix product no longer pays for packing the weights.
_FEWEST_COLUMNS = 192

#: Called as ``finish(product, channels, rows)`` to finish a block of the output, slices of its
#: channels and rows: `product` is what the weights gave there, None where it is in place already.
_Finish = Callable[[Array | None, slice, slice], None]

#: Every channel, or every row.
_ALL = slice(None)


def convolve(
    xp: Xp,
    x: Array,
    w: Array,
    b: Array | None,
    z: Array | None,
    window: Window,
    group: int,
    activate: Activate,
    alike: Array | None = None,
) -> Array:
    """Return ``activate(x convolved with w, + b, + z)`` of shape (N, M, *window.output).

    x is (N, C, ...), w (M, C/group, ...) of its type, b (M), z of the output's shape.
    ``activate(xp, y)`` changes a block of the output in place. `alike` gives for each of the M
    filters the first one that equals it; they then get the same result to the last bit, whatever
    the BLAS does. Only for one group.
    """
    n, m = x.shape[0], w.shape[0]
    shape = (n, m, *window.output)
    dtype = x.dtype
    x, w, b, z = wide(xp, x, w, b, z)
    if b is not None and b.shape != (m,):
        raise ValueError(f"bias has shape {b.shape}; {(m,)} wanted")
    if z is not None and z.shape != shape:
        raise ValueError(f"residual has shape {z.shape}; {shape} wanted")
    y = xp.empty(shape, x.dtype)
    bias = None if b is None else b.reshape(m, *(1,) * len(window.output))

    def finish(product: Array | None, image: int, channels: slice, rows: slice) -> None:
        block = y[image, channels, rows]
        if alike is not None:
            product = (block if product is None else product)[alike]
        if bias is not None:
            xp.add(block if product is None else product, bias[channels], out=block)
        elif product is not None:
            block[...] = product
        if z is not None:
            block += z[image, channels, rows]
        activate(xp, block)

    run = _way(window, group, m, w.shape[1], x.dtype.itemsize)
    if w.shape[1] == 1 and group > 1:
        run = partial(_by_channels, run)
    for image in range(n):
        run(xp, x[image], w, window, group, y[image], lambda *a, i=image: finish(a[0], i, *a[1:]))
    return y.astype(dtype, copy=False)


def _way(window: Window, group: int, m: int, c: int, itemsize: int) -> Callable[..., None]:
    """Return the cheapest way for M filters of c channels."""
    padded = any(window.begin) or any(window.end)
    if set(window.kernel) == {1} and not padded:
        return _pointwise
    if window.kernel == window.strides and not padded and set(window.dilations) == {1}:
        return _by_patches
    if group == 1 and _by_outputs_pays(window, m, c, itemsize):
        return _by_outputs
    same_width = window.output[-1] == window.input[-1] and set(window.strides) == {1}
    if same_width and len(window.output) == 2:
        return _by_kernel_rows if c == 1 and group > 1 else _by_shifted_rows
    return _by_wide_rows if _wide_pays(window, m // group) else _by_columns


def first_alike(xp: Xp, w: Array) -> Array | None:
    """Return for each filter of w (M, ...) the first one that equals it; None if none does."""
    rows = w.reshape(w.shape[0], -1)
    if not w.size or xp.unique(rows[:, 0]).size == w.shape[0]:
        return None  # the first weights alone tell them apart
    if bool((rows == rows[0]).all()):  # sorting rows that are all equal takes a second
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
    finish(None, _ALL, _ALL)


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
        flat = y.reshape(group, m // group, -1)
        flat = flat[:, :, first * prod(rest) : (first + rows) * prod(rest)]
        xp.matmul(weights, block.reshape(group, c * size, -1), out=flat)
        finish(None, _ALL, slice(first, first + rows))


def _shifted_rows(xp: Xp, x: Array, window: Window, first: int, rows: int) -> Array:
    """Return what some output rows read of x, once for each kernel column, (C, columns, length).

    With stride 1, and an output as wide as the input, a kernel column reads the whole rows one
    after another, shifted; what runs over the end of a row is zero, as padding is.
    """
    (top, left), (height, width) = window.begin, window.input
    depth = rows + (window.kernel[0] - 1) * window.dilations[0]
    above, below = max(0, first - top), min(height, first - top + depth)
    flat = x[:, above:below].reshape(x.shape[0], -1)
    shifted = xp.zeros((x.shape[0], window.kernel[1], depth * width), x.dtype)
    for j in range(window.kernel[1]):
        shift = j * window.dilations[1] - left
        start = (above - first + top) * width - shift
        run = flat[:, max(0, -start) : max(0, depth * width - start)]
        shifted[:, j, max(0, start) : max(0, start) + run.shape[1]] = run
        lines = shifted[:, j].reshape(x.shape[0], depth, width)
        if shift > 0:
            lines[:, :, max(0, width - shift) :] = 0
        elif shift < 0:
            lines[:, :, :-shift] = 0
    return shifted


def _by_shifted_rows(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """Copy runs of whole rows into the columns; the product is the output as it lies."""
    m, c, size = w.shape[0], w.shape[1], prod(window.kernel)
    weights = w.reshape(group, m // group, c * size)
    oh, width = window.output
    step = _rows_at_once(window, c * size * group, x.dtype.itemsize, width)
    buffer = xp.empty(x.shape[0] * size * step * width, x.dtype)
    flat = y.reshape(group, m // group, oh * width)
    for first in range(0, oh, step):
        rows = min(step, oh - first)
        length = rows * width
        block = buffer[: x.shape[0] * size * length]
        columns = block.reshape(x.shape[0], *window.kernel, length)
        shifted = _shifted_rows(xp, x, window, first, rows)
        for i in range(window.kernel[0]):
            offset = i * window.dilations[0] * width
            columns[:, i] = shifted[:, :, offset : offset + length]
        part = flat[:, :, first * width : first * width + length]
        xp.matmul(weights, block.reshape(group, c * size, length), out=part)
        finish(None, _ALL, slice(first, first + rows))


def _by_kernel_rows(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """One channel per group: without copies, a product for each row of the kernel, all added."""
    each, (oh, width) = w.shape[0] // group, window.output
    shifted = _shifted_rows(xp, x, window, 0, oh)
    weights = w.reshape(group, each, *window.kernel)
    total = y.reshape(group, each, oh * width)
    product = xp.empty_like(total)
    for i in range(window.kernel[0]):
        offset = i * window.dilations[0] * width
        columns = shifted[:, :, offset : offset + oh * width]
        xp.matmul(weights[:, :, i], columns, out=product if i else total)
        if i:
            total += product
    finish(None, _ALL, _ALL)


def _by_patches(
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish
) -> None:
    """Windows side by side: each is a row of a matrix, whose transpose the columns are."""
    m, c = w.shape[:2]
    tiles = x[(_ALL, *(slice(o * k) for o, k in zip(window.output, window.kernel, strict=True)))]
    pairs = [n for o, k in zip(window.output, window.kernel, strict=True) for n in (o, k)]
    tiles = tiles.reshape(group, c, *pairs)
    outputs, inside = range(2, tiles.ndim, 2), range(3, tiles.ndim, 2)
    patches = tiles.transpose(0, *outputs, 1, *inside).reshape(group, prod(window.output), -1)
    weights = w.reshape(group, m // group, -1)
    xp.matmul(weights, patches.swapaxes(1, 2), out=y.reshape(group, m // group, -1))
    finish(None, _ALL, _ALL)


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
        product_rows = wide_rows.reshape(m, rows, width)[:, :, :ow]
        finish(product_rows, _ALL, slice(first, first + rows))


def _by_channels(
    run: Callable[..., None],
    xp: Xp, x: Array, w: Array, window: Window, group: int, y: Array, finish: _Finish,
) -> None:  # fmt: skip
    """One input channel per group: convolve so many at a time as stay in cache."""
    each = w.shape[0] // group
    columns = window.kernel[-1] if run is _by_kernel_rows else prod(window.kernel)
    nbytes = (columns + each) * prod(window.output) * x.dtype.itemsize
    step = max(1, _CHANNEL_BYTES // nbytes)
    for first in range(0, group, step):
        last = min(group, first + step)
        outputs = slice(first * each, last * each)

        def finish_outputs(
            product: Array | None, _: slice, rows: slice, outputs: slice = outputs
        ) -> None:
            finish(product, outputs, rows)

        run(xp, x[first:last], w[outputs], window, last - first, y[outputs], finish_outputs)


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
    finish(total.reshape(m, oh, width)[:, :, :ow], _ALL, _ALL)


def _by_outputs_pays(window: Window, m: int, c: int, itemsize: int) -> bool:
    """Whether the products of all kernel elements are few, and fit beside the input in cache."""
    if len(window.output) != 2 or set(window.strides) != {1} or 2 * m > c:
        return False
    columns = window.output[0] * _wide_width(window)
    return columns >= 512 and prod(window.kernel) * m * columns * itemsize <= _PRODUCT_BYTES
