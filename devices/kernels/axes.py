"""Axes and positions: checks of their range, and conversion of negative axes."""

from __future__ import annotations

from collections.abc import Iterable

from hetero.devices.kernels.element_types import Array, is_on_host


def are_within(values: Array, first: int, end: int) -> bool:
    """Tell whether all values are in first..end-1; True for values outside the host's memory."""
    if not is_on_host(values) or not values.size:
        return True
    return bool(first <= values.min() and values.max() < end)


def axis_of(axis: int, rank: int) -> int:
    """Return an axis in -rank..rank-1 as one in 0..rank-1; IndexError if it is out of range."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def axes_of(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return axes as numbers in 0..rank-1; ValueError if an axis occurs twice."""
    result = tuple(axis_of(int(axis), rank) for axis in axes)
    if len(set(result)) != len(result):
        raise ValueError(f"axes {tuple(axes)} name an axis of rank {rank} more than once")
    return result
