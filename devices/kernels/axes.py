"""Axes and positions: negative ones counted from the end, those out of range refused."""

from __future__ import annotations

from collections.abc import Iterable

from hetero.devices.kernels.element_types import Array, is_on_host


def are_within(values: Array, first: int, end: int) -> bool:
    """Tell whether all values are in first..end-1, or the host cannot look without waiting."""
    if not is_on_host(values) or not values.size:
        return True
    return bool(first <= values.min() and values.max() < end)


def axis_of(axis: int, rank: int) -> int:
    """Return the axis in 0..rank-1 that `axis` in -rank..rank-1 names."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return each axis in 0..rank-1; an axis named twice is an error."""
    result = tuple(axis_of(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise ValueError(f"axes {tuple(axes)} name an axis of rank {rank} more than once")
    return result
