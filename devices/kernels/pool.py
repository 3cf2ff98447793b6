"""Pooling: maximum, average and Lp over windows or whole planes, and MaxUnpool.

A maximum or a sum over a window is one over its rows of one over their elements, so that each
spatial axis is reduced by itself: kernel height plus kernel width passes, not their product.
Padding is never stored; outputs at the border read fewer elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from hetero.devices.kernels.axes import are_within
from hetero.devices.kernels.element_types import Array, Xp, in_float32
from hetero.devices.kernels.registry import op, taking
from hetero.devices.kernels.window import Window, per_axis, sliding_window

Ints = Sequence[int]


def _pool_window(x: Array, kernel_shape: Ints, ceil_mode: int = 0, **sliding: Any) -> Window:
    if x.ndim < 3:
        raise ValueError(f"input has shape {x.shape}; pooling needs (N, C, spatial axes...)")
    window = sliding_window(x.shape[2:], kernel_shape, ceil_mode, **sliding)
    extent = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    for before, after, size in zip(window.begin, window.end, extent, strict=True):
        if max(before, after) >= size:
            raise ValueError(f"padding {before}, {after} leaves nothing in a window of {size}")
    return window


def _reduce_windows(
    xp: Xp, x: Array, window: Window, combine: Callable[..., Array], start: object
) -> Array:
    """Reduce every window of x (N, C, ...) by the associative `combine`, one axis at a time."""
    for axis in range(len(window.kernel)):
        before = (slice(None),) * (2 + axis)
        shape = (*x.shape[: 2 + axis], window.output[axis], *x.shape[3 + axis :])
        y = xp.full_like(x, start, shape=shape)  # its axes in x's order in memory
        for k in range(window.kernel[axis]):
            to, at = window.valid(axis, k)
            if to.start < to.stop:
                part = y[(*before, to)]
                combine(part, x[(*before, at)], out=part)
        x = y
    return x


def _lowest(xp: Xp, x: Array) -> object:
    return xp.iinfo(x.dtype).min if x.dtype.kind in "iu" else -float("inf")


def _max_pool_indices(xp: Xp, x: Array, window: Window, storage_order: int) -> tuple[Array, Array]:
    """Return maxima and, for each, where it is in the flattened input (the first one on ties)."""
    spatial = window.input
    n, c = x.shape[:2]
    order = xp.arange(prod(spatial), dtype=xp.int64)
    if storage_order:  # column by column
        order = order.reshape(spatial[::-1]).T
    order = order.reshape(spatial)
    planes = xp.arange(n * c, dtype=xp.int64).reshape(n, c, *(1,) * len(spatial)) * prod(spatial)
    y = xp.full((n, c, *window.output), _lowest(xp, x), dtype=x.dtype)
    index = xp.full(y.shape, -1, dtype=xp.int64)
    for position in window.positions():
        reads = [window.valid(axis, k) for axis, k in enumerate(position)]
        to = (..., *(r[0] for r in reads))
        at = (..., *(r[1] for r in reads))
        better = (x[at] > y[to]) | (index[to] < 0)
        xp.copyto(y[to], x[at], where=better)
        xp.copyto(index[to], order[at], where=better)
    return y, index + planes


@op("MaxPool", since=1, added={"storage_order": 8, "ceil_mode": 10, "dilations": 10})
@in_float32
@taking(sliding_window)
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
    """Return the maximum of each window, and where it is."""
    window = _pool_window(x, kernel_shape, ceil_mode, **sliding)
    if n_outputs > 1:
        return _max_pool_indices(xp, x, window, storage_order)
    y = _reduce_windows(xp, x, window, xp.maximum, _lowest(xp, x))
    return xp.ascontiguousarray(y) if x.flags.c_contiguous else y  # channels may be last


@op("AveragePool", since=1, added={"count_include_pad": 7, "ceil_mode": 10, "dilations": 19})
@in_float32
@taking(sliding_window)
def average_pool_1(
    xp: Xp,
    x: Array,
    *,
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    kernel_shape: Ints,
    **sliding: Any,
) -> Array:
    """Return the mean of each window; what `ceil_mode` adds at the end never counts."""
    window = _pool_window(x, kernel_shape, ceil_mode, **sliding)
    if window.kernel == window.input and not any(window.begin) and not any(window.end):
        return global_average_pool_1(xp, x)
    counted = window
    if count_include_pad:
        sides = zip(window.begin, window.input, window.end, strict=True)
        none = (0,) * len(window.input)
        counted = replace(window, begin=none, input=tuple(map(sum, sides)), end=none)
    ones = xp.ones((1, 1, *counted.input), x.dtype)
    counts = _reduce_windows(xp, ones, counted, xp.add, 0)
    return _reduce_windows(xp, x, window, xp.add, 0) / counts


@op("LpPool", since=2, added={"ceil_mode": 18, "dilations": 18})
@in_float32
@taking(sliding_window)
def lp_pool_2(
    xp: Xp, x: Array, *, ceil_mode: int = 0, kernel_shape: Ints, p: int = 2, **sliding: Any
) -> Array:
    """Return the p-norm of each window."""
    window = _pool_window(x, kernel_shape, ceil_mode, **sliding)
    powers = x * x if p == 2 else abs(x) ** p
    y = _reduce_windows(xp, powers, window, xp.add, 0)
    return xp.sqrt(y) if p == 2 else y ** (1 / p)


def _planes(x: Array) -> tuple[int, ...]:
    if x.ndim < 3:
        raise ValueError(f"input has shape {x.shape}; pooling needs (N, C, spatial axes...)")
    return tuple(range(2, x.ndim))


@op("GlobalMaxPool", since=1)
@in_float32
def global_max_pool_1(xp: Xp, x: Array) -> Array:
    """Return the maximum of each channel's plane."""
    return xp.max(x, axis=_planes(x), keepdims=True)


@op("GlobalAveragePool", since=1)
@in_float32
def global_average_pool_1(xp: Xp, x: Array) -> Array:
    """Return the mean of each channel's plane."""
    return xp.mean(x, axis=_planes(x), keepdims=True)


@op("GlobalLpPool", since=2)
@in_float32
def global_lp_pool_2(xp: Xp, x: Array, *, p: int = 2) -> Array:
    """Return the p-norm of each channel's plane."""
    return xp.sum(abs(x) ** p, axis=_planes(x), keepdims=True) ** (1 / p)


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
    """Return x's values at the places that MaxPool's `indices` name, zeros elsewhere.

    The indices count within the shape that undoes the pooling; a larger `output_shape` keeps it in
    its first corner.
    """
    if x.shape != indices.shape:
        raise ValueError(f"indices have shape {indices.shape}, the input {x.shape}")
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
        raise IndexError(f"an index is outside the {prod(shape)} elements of output {shape}")
    y = xp.zeros(prod(shape), x.dtype)
    y[places] = x.reshape(-1)
    y = y.reshape(shape)
    if output_shape is None:
        return y
    wanted = tuple(int(n) for n in output_shape)
    if len(wanted) != x.ndim or any(a < b for a, b in zip(wanted, shape, strict=True)):
        raise ValueError(f"output_shape {wanted} is smaller than the unpooled shape {shape}")
    larger = xp.zeros(wanted, x.dtype)
    larger[tuple(slice(0, n) for n in shape)] = y
    return larger
