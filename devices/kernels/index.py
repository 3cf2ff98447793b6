"""Operators on indices: gathers, one-hot, masks, sorting, and shapes that depend on the data."""

from __future__ import annotations

import math
from typing import Any

from hetero.devices.kernels.axes import are_within, axis_of
from hetero.devices.kernels.element_types import (
    Array,
    Xp,
    element_type,
    is_on_host,
    is_string,
    zeros,
)
from hetero.devices.kernels.registry import op


def check_indices(indices: Array, size: int, what: str = "index") -> None:
    """Raise IndexError unless every index is in -size..size-1; skipped outside the host."""
    if not are_within(indices, -size, size):
        bad = indices.max() if indices.max() >= size else indices.min()
        raise IndexError(f"{what} {int(bad)} is out of range for a dimension of {size}")


def normalize_indices(xp: Xp, indices: Array, size: int) -> Array:
    """Return checked indices as int64 numbers from 0 on."""
    check_indices(indices, size)
    if not is_on_host(indices) or (indices.size and indices.min() < 0):
        indices = xp.where(indices < 0, indices + size, indices)
    return indices.astype(xp.int64, copy=False)


def flat_indices(xp: Xp, data: Array, indices: Array, axis: int) -> Array:
    """Return the flat (row-major) indices of the elements at `indices` along `axis`, checked."""
    if indices.ndim != data.ndim or any(
        m > n for i, (m, n) in enumerate(zip(indices.shape, data.shape, strict=False)) if i != axis
    ):
        raise ValueError(
            f"indices: expected at most the sizes of {data.shape} except on axis {axis}, got shape "
            f"{indices.shape}"
        )
    flat = normalize_indices(xp, indices, data.shape[axis]) * math.prod(data.shape[axis + 1 :])
    for i, size in enumerate(indices.shape):
        if i != axis and size > 1:
            places = xp.arange(size) * math.prod(data.shape[i + 1 :])
            flat += places.reshape([-1 if j == i else 1 for j in range(indices.ndim)])
    return flat


def flat_row_indices(xp: Xp, indices: Array, shape: tuple[int, ...]) -> Array:
    """Return the flat (row-major) indices of the index tuples in the last axis, checked."""
    flat = normalize_indices(xp, indices[..., 0], shape[0])
    for i, size in enumerate(shape[1:], 1):
        flat = flat * size + normalize_indices(xp, indices[..., i], size)
    return flat


@op("Gather", since=1)
def gather(xp: Xp, data: Array, indices: Array, *, axis: int = 0) -> Array:
    """Return the slices of data at `indices` along `axis`."""
    axis = axis_of(axis, data.ndim)
    if indices.ndim == 0 and is_on_host(indices):
        check_indices(indices, data.shape[axis])
        return data[(*(slice(None),) * axis, int(indices), ...)]
    return xp.take(data, indices, axis=axis)


@op("GatherElements", since=11)
def gather_elements(xp: Xp, data: Array, indices: Array, *, axis: int = 0) -> Array:
    """Return for each place of `indices` the element with that index along `axis`."""
    axis = axis_of(axis, data.ndim)
    return xp.take(data.reshape(-1), flat_indices(xp, data, indices, axis))


@op("GatherND", since=11, additions={"batch_dims": 12})
def gather_nd_11(xp: Xp, data: Array, indices: Array, *, batch_dims: int = 0) -> Array:
    """Return the slice at each index tuple, separately within the first `batch_dims` axes."""
    if not 0 <= batch_dims < min(data.ndim, indices.ndim):
        raise ValueError(
            f"batch_dims {batch_dims} is out of range for ranks {data.ndim} and {indices.ndim}"
        )
    batch, depth = data.shape[:batch_dims], indices.shape[-1]
    if indices.shape[:batch_dims] != batch or not 1 <= depth <= data.ndim - batch_dims:
        raise ValueError(
            f"indices of shape {indices.shape} do not fit data of shape {data.shape} with "
            f"batch_dims {batch_dims}"
        )
    picked = data.shape[batch_dims : batch_dims + depth]
    rest = data.shape[batch_dims + depth :]
    rows = flat_row_indices(xp, indices, picked)
    if batch:
        first = xp.arange(math.prod(batch)) * math.prod(picked)
        rows = rows + first.reshape(batch + (1,) * (rows.ndim - batch_dims))
    flat = data.reshape(math.prod(batch + picked), *rest)
    return xp.take(flat, rows, axis=0)


@op("OneHot", since=9, host=(1,))
def one_hot(xp: Xp, indices: Array, depth: Array, values: Array, *, axis: int = -1) -> Array:
    """Return ``values[1]`` at each index along a new axis, ``values[0]`` elsewhere.

    The column of an index outside -depth..depth-1 is all ``values[0]``.
    """
    size = int(depth.item())
    if size < 1 or values.shape != (2,):
        raise ValueError(
            f"expected a positive depth and values of shape (2,), got {size} and {values.shape}"
        )
    axis = axis_of(axis, indices.ndim + 1)
    indices = indices.astype(xp.int64)
    indices = xp.expand_dims(xp.where(indices < 0, indices + size, indices), axis)
    places = xp.arange(size).reshape([-1] + [1] * (indices.ndim - 1 - axis))
    return xp.where(indices == places, values[1:], values[:1])


@op("NonZero", since=9)
def non_zero(xp: Xp, x: Array) -> Array:
    """Return the indices of the elements that are not zero, (rank, count), row-major, int64."""
    mask = x != "" if is_string(x) else x.astype(xp.bool_)
    if x.ndim == 0:
        return xp.zeros((0, int(mask)), dtype=xp.int64)
    return xp.stack(xp.nonzero(mask))


@op("Compress", since=9)
def compress(xp: Xp, x: Array, condition: Array, *, axis: int | None = None) -> Array:
    """Return the slices along `axis` (or of the flat input) for which `condition` is true."""
    if condition.ndim != 1:
        raise ValueError(f"condition: expected rank 1, got {condition.ndim}")
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(axis, x.ndim)
    (places,) = xp.nonzero(condition)
    check_indices(places, x.shape[axis], "the condition is true at position")
    return xp.take(x, places, axis=axis)


@op("ReverseSequence", since=10)
def reverse_sequence(
    xp: Xp, x: Array, sequence_lens: Array, *, batch_axis: int = 1, time_axis: int = 0
) -> Array:
    """Reverse the first ``sequence_lens[b]`` time steps of each batch entry b."""
    if {batch_axis, time_axis} != {0, 1} or x.ndim < 2:
        raise ValueError(
            "expected batch_axis and time_axis 0 and 1 and a rank of at least 2, got "
            f"{batch_axis}, {time_axis} and rank {x.ndim}"
        )
    steps, batch = x.shape[time_axis], x.shape[batch_axis]
    if sequence_lens.shape != (batch,):
        raise ValueError(f"sequence_lens: expected shape ({batch},), got {sequence_lens.shape}")
    if not are_within(sequence_lens, 0, steps + 1):
        raise ValueError(f"sequence_lens: expected numbers from 0 to {steps}")
    time = xp.arange(steps)[:, None]
    source = xp.where(time < sequence_lens, sequence_lens - 1 - time, time)
    entry = xp.arange(batch)
    return x[source, entry] if time_axis == 0 else x[entry[:, None], source.T]


@op("Trilu", since=14, host=(1,))
def trilu(xp: Xp, x: Array, k: Array | None = None, *, upper: int = 1) -> Array:
    """Return the upper (or lower) triangle of each matrix from its k-th diagonal, else zeros."""
    if x.ndim < 2:
        raise ValueError(f"expected a rank of at least 2, got {x.ndim}")
    diagonal = 0 if k is None else int(k.item())
    triangle = xp.triu if upper else xp.tril
    mask = triangle(xp.ones(x.shape[-2:], xp.bool_), diagonal)
    return xp.where(mask, x, zeros(xp, 1, x.dtype))


@op("EyeLike", since=9)
def eye_like(xp: Xp, x: Array, *, dtype: int | None = None, k: int = 0) -> Array:
    """Return a matrix of the input's shape with ones on its k-th diagonal."""
    if x.ndim != 2:
        raise ValueError(f"expected rank 2, got {x.ndim}")
    to = x.dtype if dtype is None else element_type(dtype)
    return xp.eye(*x.shape, k=k).astype(to)


@op("Unique", since=11)
def unique(
    xp: Xp, x: Array, *, axis: int | None = None, sorted: int = 1, n_outputs: int = 1
) -> Any:
    """Return the distinct elements, or slices along `axis`, sorted or in order of appearance.

    The other outputs are int64: the index of each one's first appearance, the number of the
    distinct element for each input element, and the counts.
    """
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(axis, x.ndim)
    keys = x
    if is_string(x):  # slices of Python objects cannot be sorted; their ranks can
        keys = xp.unique(x.reshape(-1), return_inverse=True)[1].reshape(x.shape)
    _, first, inverse, counts = xp.unique(
        keys, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not sorted:
        order = xp.argsort(first)
        first, counts, inverse = first[order], counts[order], xp.argsort(order)[inverse]
    outputs = (xp.take(x, first, axis=axis), first, inverse, counts)
    return tuple(y if i == 0 else y.astype(xp.int64) for i, y in enumerate(outputs[:n_outputs]))


@op("TopK", since=1)
def top_k_1(xp: Xp, x: Array, *, k: int, axis: int = -1) -> tuple[Array, Array]:
    """Return the k largest elements along `axis`, and their indices."""
    values, indices = top_k_10(xp, x, xp.asarray(k), axis=axis)
    return values, indices


@op("TopK", since=10, host=(1,), additions={"largest": 11, "sorted": 11})
def top_k_10(
    xp: Xp, x: Array, k: Array, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> tuple[Array, Array]:
    """Return the k largest (or smallest) elements along `axis`, sorted, and their indices."""
    axis = axis_of(axis, x.ndim)
    size, k = x.shape[axis], int(k.item())
    if not 0 <= k <= size:
        raise ValueError(f"k: expected a number from 0 to {size}, the size of axis {axis}, got {k}")
    keys = xp.moveaxis(x, axis, -1)
    if keys.dtype.kind == "V":
        keys = keys.astype(xp.float32)
    if largest:  # reversed, so that among equal elements the one with the lower index is first
        backwards = xp.argsort(keys[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        indices = size - 1 - backwards[..., :k]
    else:
        indices = xp.argsort(keys, axis=-1, kind="stable")[..., :k]
    indices = xp.moveaxis(indices, -1, axis)
    return xp.take(x.reshape(-1), flat_indices(xp, x, indices, axis)), indices
