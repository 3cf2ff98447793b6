"""Pooling: maximum, average and Lp over windows or whole planes, and MaxUnpool.

Maxima and sums over windows are separable: each spatial axis is reduced by itself, in kernel height
plus kernel width passes instead of their product. Padding is not stored; outputs at the border read
fewer elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from hetero.devices.kernels.axes import are_within
from hetero.devices.kernels.element_types import Array, Xp, in_float32
from hetero.devices.kernels.registry import op, with_attributes_of
from hetero.devices.kernels.window import Window, per_axis, sliding_window

Ints = Sequence[int]


def _pool_window(x: Array, kernel_shape: Ints, ceil_mode: int = 0, **sliding: Any) -> Window:
    if x.ndim < 3:
        raise ValueError(f"expected an input of shape (N, C, spatial axes...), got {x.shape}")
    window = sliding_window(x.shape[2:], kernel_shape, ceil_mode, **sliding)
    extent = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    for before, after, size in zip(window.begin, window.end, extent, strict=True):
        if max(before, after) >= size:
            raise ValueError(
                f"pads: expected less than the window's extent {size}, got {before} and {after}"
            )
    return window


def _reduce_windows(
    xp: Xp, x: Array, window: Window, combine: Callable[..., Array], start: object
) -> Array:
    """Reduce every window of x (N, C, ...) by the associative `combine`, one axis at a time."""
    for axis in range(len(window.kernel)):
        before = (slice(None),) * (2 + axis)
        shape = (*x.shape[: 2 + axis], window.output[axis], *x.shape[3 + axis :])
        y = xp.full(shape, start, dtype=x.dtype)
        for k in range(window.kernel[axis]):
            outputs, inputs = window.valid(axis, k)
            if outputs.start < outputs.stop:
                part = y[(*before, outputs)]
                combine(part, x[(*before, inputs)], out=part)
        x = y
    return x


def _lowest_value(xp: Xp, x: Array) -> object:
    return xp.iinfo(x.dtype).min if x.dtype.kind in "iu" else -float("inf")


def _max_pool_indices(xp: Xp, x: Array, window: Window, storage_order: int) -> tuple[Array, Array]:
    """Return the maxima and the flat index of each in the input, the first if several are equal."""
    spatial = window.input
    n, c = x.shape[:2]
    order = xp.arange(prod(spatial), dtype=xp.int64)
    if storage_order:  # column by column
        order = order.reshape(spatial[::-1]).T
    order = order.reshape(spatial)
    planes = xp.arange(n * c, dtype=xp.int64).reshape(n, c, *(1,) * len(spatial)) * prod(spatial)
    y = xp.full((n, c, *window.output), _lowest_value(xp, x), dtype=x.dtype)
    index = xp.full(y.shape, -1, dtype=xp.int64)
    for position in window.positions():
        ranges = [window.valid(axis, k) for axis, k in enumerate(position)]
        outputs = (..., *(output for output, _ in ranges))
        inputs = (..., *(read for _, read in ranges))
        is_greater = (x[inputs] > y[outputs]) | (index[outputs] < 0)
        xp.copyto(y[outputs], x[inputs], where=is_greater)
        xp.copyto(index[outputs], order[inputs], where=is_greater)
    return y, index + planes


@op("MaxPool", since=1, additions={"storage_order": 8, "ceil_mode": 10, "dilations": 10})
@in_float32
@with_attributes_of(sliding_window)
def max_pool_1(
    xp: Xp,
    x: Array,
    *,
    ceil_mode: int = 0,
    kernel_shape: Ints,
    storage_order: int = 0,
    n_outputs: int = 1,
    **sliding: Any,
) -> Array | tuple[Array, ...]:
    """Return the maximum of each window, and its flat index in the input."""
    window = _pool_window(x, kernel_shape, ceil_mode, **sliding)
    if n_outputs > 1:
        return _max_pool_indices(xp, x, window, storage_order)
    return _reduce_windows(xp, x, window, xp.maximum, _lowest_value(xp, x))


@op("AveragePool", since=1, additions={"count_include_pad": 7, "ceil_mode": 10, "dilations": 19})
@in_float32
@with_attributes_of(sliding_window)
def average_pool_1(
    xp: Xp,
    x: Array,
    *,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Ints,
    **sliding: Any,
) -> Array:
    """Return the mean of each window, without the elements that `ceil_mode` adds at the end."""
    window = _pool_window(x, kernel_shape, ceil_mode, **sliding)
    if window.kernel == window.input and not any(window.begin) and not any(window.end):
        return global_average_pool_1(xp, x)
    count_window = window
    if count_include_pad:
        sides = zip(window.begin, window.input, window.end, strict=True)
        zeros = (0,) * len(window.input)
        count_window = replace(window, begin=zeros, input=tuple(map(sum, sides)), end=zeros)
    ones = xp.ones((1, 1, *count_window.input), x.dtype)
    counts = _reduce_windows(xp, ones, count_window, xp.add, 0)
    return _reduce_windows(xp, x, window, xp.add, 0) / counts


@op("LpPool", since=2, additions={"ceil_mode": 18, "dilations": 18})
@in_float32
@with_attributes_of(sliding_window)
def lp_pool_2(
    xp: Xp, x: Array, *, ceil_mode: int = 0, kernel_shape: Ints, p: int = 2, **sliding: Any
) -> Array:
    """Return the p-norm of each window."""
    window = _pool_window(x, kernel_shape, ceil_mode, **sliding)
    powers = x * x if p == 2 else abs(x) ** p
    y = _reduce_windows(xp, powers, window, xp.add, 0)
    return xp.sqrt(y) if p == 2 else y ** (1 / p)


def _spatial_axes(x: Array) -> tuple[int, ...]:
    if x.ndim < 3:
        raise ValueError(f"expected an input of shape (N, C, spatial axes...), got {x.shape}")
    return tuple(range(2, x.ndim))


@op("GlobalMaxPool", since=1)
@in_float32
def global_max_pool_1(xp: Xp, x: Array) -> Array:
    """Return the maximum of each channel's plane."""
    return xp.max(x, axis=_spatial_axes(x), keepdims=True)


@op("GlobalAveragePool", since=1)
@in_float32
def global_average_pool_1(xp: Xp, x: Array) -> Array:
    """Return the mean of each channel's plane."""
    return xp.mean(x, axis=_spatial_axes(x), keepdims=True)


@op("GlobalLpPool", since=2)
@in_float32
def global_lp_pool_2(xp: Xp, x: Array, *, p: int = 2) -> Array:
    """Return the p-norm of each channel's plane."""
    return xp.sum(abs(x) ** p, axis=_spatial_axes(x), keepdims=True) ** (1 / p)


@op("MaxUnpool", since=9, host=(2,))
def max_unpool_9(
    xp: Xp,
    x: Array,
    indices: Array,
    output_shape: Array | None = None,
    *,
    kernel_shape: Ints,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Array:
    """Return x's values at the places given by MaxPool's `indices`, zeros elsewhere.

    The indices refer to the shape before pooling, which is the first corner of a larger
    `output_shape`.
    """
    if x.shape != indices.shape:
        raise ValueError(f"indices: expected shape {x.shape}, got {indices.shape}")
    rank = x.ndim - 2
    step, both = per_axis(strides, rank, "strides"), per_axis(pads, 2 * rank, "pads", default=0)
    spatial = [
        (n - 1) * s + k - b - e
        for n, s, k, b, e in zip(
            x.shape[2:], step, kernel_shape, both[:rank], both[rank:], strict=True
        )
    ]
    shape = (*x.shape[:2], *spatial)
    places = indices.reshape(-1)
    if not are_within(places, 0, prod(shape)):
        raise IndexError(f"expected indices from 0 to {prod(shape) - 1} for output {shape}")
    y = xp.zeros(prod(shape), x.dtype)
    y[places] = x.reshape(-1)
    y = y.reshape(shape)
    if output_shape is None:
        return y
    sizes = tuple(int(n) for n in output_shape)
    if len(sizes) != x.ndim or any(a < b for a, b in zip(sizes, shape, strict=True)):
        raise ValueError(f"output_shape: expected {shape} or larger, got {sizes}")
    larger = xp.zeros(sizes, x.dtype)
    larger[tuple(slice(0, n) for n in shape)] = y
    return larger
