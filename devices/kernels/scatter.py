"""Operators that write by index: a copy of the data with updates placed or reduced into it."""

from __future__ import annotations

import math

from hetero.devices.kernels.axes import are_within, axis_of
from hetero.devices.kernels.element_types import Array, Xp, is_narrow_float, is_on_host, same_type
from hetero.devices.kernels.index import element_numbers, row_numbers
from hetero.devices.kernels.registry import op

_REDUCTIONS = {"reduction": ("none", "add", "mul", "max", "min")}


@op("Scatter", since=9)
def scatter_9(xp: Xp, data: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """Put each update where `indices` says along `axis`."""
    return scatter_elements_11(xp, data, indices, updates, axis=axis)


@op("ScatterElements", since=11, added={"reduction": 16}, choices=_REDUCTIONS)
def scatter_elements_11(
    xp: Xp, data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """Put each update where `indices` says along `axis`, or reduce it into what is there."""
    axis = axis_of(axis, data.ndim)
    numbers = element_numbers(xp, data, indices, axis)
    if updates.shape != indices.shape:
        raise ValueError(f"updates {updates.shape} and indices {indices.shape} differ in shape")
    flat = _place(xp, data.reshape(-1), numbers.reshape(-1), updates.reshape(-1), reduction)
    return flat.reshape(data.shape)


@op("ScatterND", since=11, added={"reduction": 16}, choices=_REDUCTIONS)
def scatter_nd_11(
    xp: Xp, data: Array, indices: Array, updates: Array, *, reduction: str = "none"
) -> Array:
    """Put each slice of `updates` where its index tuple says, or reduce it into what is there."""
    depth = indices.shape[-1] if indices.ndim else 0
    if not 1 <= depth <= data.ndim:
        raise ValueError(f"indices of shape {indices.shape} do not fit data of rank {data.ndim}")
    picked, rest = data.shape[:depth], data.shape[depth:]
    if updates.shape != indices.shape[:-1] + rest:
        raise ValueError(f"updates of shape {updates.shape} are not {indices.shape[:-1] + rest}")
    rows = row_numbers(xp, indices, picked).reshape(-1)
    width = math.prod(rest)
    table, updates = data.reshape(math.prod(picked), width), updates.reshape(rows.size, width)
    return _place(xp, table, rows, updates, reduction).reshape(data.shape)


def _place(xp: Xp, data: Array, rows: Array, updates: Array, reduction: str) -> Array:
    """Return a copy of the data with the updates placed in, or reduced into, these rows."""
    same_type(data, updates)
    if reduction == "none":
        result = data.copy()
        result[rows] = updates
        return result
    names = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    function = getattr(xp, names[reduction])
    widened = is_narrow_float(data)
    result = data.astype(xp.float32) if widened else data.copy()
    updates = updates.astype(result.dtype, copy=False)
    if data.ndim == 1:
        function.at(result, rows, updates)
    elif is_on_host(rows) and xp.unique(rows).size == rows.size:
        result[rows] = function(result[rows], updates)
    else:
        # One dimension of elements: numpy is many times slower at repeated rows.
        width = data.shape[1]
        numbers = rows[:, None] * width + xp.arange(width)
        function.at(result.reshape(-1), numbers.reshape(-1), updates.reshape(-1))
    return result.astype(data.dtype) if widened else result


@op("TensorScatter", since=24, choices={"mode": ("linear", "circular")})
def tensor_scatter(
    xp: Xp,
    past_cache: Array,
    update: Array,
    write_indices: Array | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Array:
    """Write `update` into each batch entry's cache, from its write index on along `axis`.

    `past_cache` is (B, ..., M, ...), `update` (B, ..., S, ...) with S <= M, `write_indices` (B,),
    zeros if absent. `mode` ``"circular"`` wraps at M; ``"linear"`` refuses to write past it.
    """
    same_type(past_cache, update)
    axis = axis_of(axis, past_cache.ndim)
    if axis == 0:
        raise ValueError("axis 0 is the batch; write along another")
    batch, length = past_cache.shape[0], past_cache.shape[axis]
    if update.ndim != past_cache.ndim or any(
        m > n if i == axis else m != n
        for i, (m, n) in enumerate(zip(update.shape, past_cache.shape, strict=True))
    ):
        raise ValueError(f"update {update.shape} does not fit cache {past_cache.shape}")
    start = xp.zeros(batch, dtype=xp.int64) if write_indices is None else write_indices
    if start.shape != (batch,):
        raise ValueError(f"write_indices of shape {start.shape} is not ({batch},)")
    step = start[:, None] + xp.arange(update.shape[axis])
    if mode == "circular":
        step = step % length
    elif not are_within(step, 0, length):
        raise IndexError(f"steps {int(step.min())} to {int(step.max())} exceed the {length} cached")
    present = past_cache.copy()
    # A view with (batch, step) first, so that one assignment writes every entry's steps.
    xp.moveaxis(present, axis, 1)[xp.arange(batch)[:, None], step] = xp.moveaxis(update, axis, 1)
    return present
