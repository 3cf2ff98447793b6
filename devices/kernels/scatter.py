"""Operators that write updates at indices into a copy of the data, or reduce them into it."""

from __future__ import annotations

import math

from hetero.devices.kernels.axes import are_within, axis_of
from hetero.devices.kernels.element_types import (
    Array,
    Xp,
    check_same_type,
    is_narrow_float,
    is_on_host,
)
from hetero.devices.kernels.index import flat_indices, flat_row_indices
from hetero.devices.kernels.registry import op

_REDUCTIONS = {"reduction": ("none", "add", "mul", "max", "min")}


@op("Scatter", since=9)
def scatter_9(xp: Xp, data: Array, indices: Array, updates: Array, *, axis: int = 0) -> Array:
    """Write each update at its index along `axis`."""
    return scatter_elements_11(xp, data, indices, updates, axis=axis)


@op("ScatterElements", since=11, additions={"reduction": 16}, choices=_REDUCTIONS)
def scatter_elements_11(
    xp: Xp, data: Array, indices: Array, updates: Array, *, axis: int = 0, reduction: str = "none"
) -> Array:
    """Write each update at its index along `axis`, or reduce it into the element there."""
    axis = axis_of(axis, data.ndim)
    indices = flat_indices(xp, data, indices, axis)
    if updates.shape != indices.shape:
        raise ValueError(f"updates: expected shape {indices.shape}, got {updates.shape}")
    flat = _write_rows(xp, data.reshape(-1), indices.reshape(-1), updates.reshape(-1), reduction)
    return flat.reshape(data.shape)


@op("ScatterND", since=11, additions={"reduction": 16}, choices=_REDUCTIONS)
def scatter_nd_11(
    xp: Xp, data: Array, indices: Array, updates: Array, *, reduction: str = "none"
) -> Array:
    """Write each slice of `updates` at its index tuple, or reduce it into the slice there."""
    depth = indices.shape[-1] if indices.ndim else 0
    if not 1 <= depth <= data.ndim:
        raise ValueError(
            f"indices: expected tuples of 1 to {data.ndim} numbers, got shape {indices.shape}"
        )
    rows_shape, rest = data.shape[:depth], data.shape[depth:]
    if updates.shape != indices.shape[:-1] + rest:
        raise ValueError(
            f"updates: expected shape {indices.shape[:-1] + rest}, got {updates.shape}"
        )
    rows = flat_row_indices(xp, indices, rows_shape).reshape(-1)
    width = math.prod(rest)
    table, updates = data.reshape(math.prod(rows_shape), width), updates.reshape(rows.size, width)
    return _write_rows(xp, table, rows, updates, reduction).reshape(data.shape)


def _write_rows(xp: Xp, data: Array, rows: Array, updates: Array, reduction: str) -> Array:
    """Return a copy of the data with the updates written or reduced into these rows."""
    check_same_type(data, updates)
    if reduction == "none":
        result = data.copy()
        result[rows] = updates
        return result
    names = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    function = getattr(xp, names[reduction])
    is_narrow = is_narrow_float(data)
    result = data.astype(xp.float32) if is_narrow else data.copy()
    updates = updates.astype(result.dtype, copy=False)
    if data.ndim == 1:
        function.at(result, rows, updates)
    elif is_on_host(rows) and xp.unique(rows).size == rows.size:
        result[rows] = function(result[rows], updates)
    else:
        # Flat indices, because `at` is many times slower for repeated rows of an array of rank 2.
        width = data.shape[1]
        flat = rows[:, None] * width + xp.arange(width)
        function.at(result.reshape(-1), flat.reshape(-1), updates.reshape(-1))
    return result.astype(data.dtype) if is_narrow else result


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
    """Write `update` into each batch entry's cache along `axis`, starting at its write index.

    `past_cache` is (B, ..., M, ...), `update` (B, ..., S, ...) with S <= M, `write_indices` (B,),
    zeros if absent. Writing past M wraps around in mode ``"circular"`` and fails in ``"linear"``.
    """
    check_same_type(past_cache, update)
    axis = axis_of(axis, past_cache.ndim)
    if axis == 0:
        raise ValueError("axis: expected another axis than 0, the batch")
    batch, length = past_cache.shape[0], past_cache.shape[axis]
    if update.ndim != past_cache.ndim or any(
        m > n if i == axis else m != n
        for i, (m, n) in enumerate(zip(update.shape, past_cache.shape, strict=True))
    ):
        raise ValueError(
            f"update: expected shape {past_cache.shape} or less on axis {axis}, got {update.shape}"
        )
    start = xp.zeros(batch, dtype=xp.int64) if write_indices is None else write_indices
    if start.shape != (batch,):
        raise ValueError(f"write_indices: expected shape ({batch},), got {start.shape}")
    step = start[:, None] + xp.arange(update.shape[axis])
    if mode == "circular":
        step = step % length
    elif not are_within(step, 0, length):
        raise IndexError(
            f"write_indices: expected steps from 0 to {length - 1}, got {int(step.min())} to "
            f"{int(step.max())}"
        )
    present = past_cache.copy()
    # In a view with (batch, step) first, one assignment writes the steps of all entries.
    xp.moveaxis(present, axis, 1)[xp.arange(batch)[:, None], step] = xp.moveaxis(update, axis, 1)
    return present
