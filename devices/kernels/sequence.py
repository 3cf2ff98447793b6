"""Sequences (Python lists of arrays) and optionals (a value, or None)."""

from __future__ import annotations

from typing import Any

from hetero.devices.kernels.axes import axis_of
from hetero.devices.kernels.element_types import Array, Xp, check_same_type
from hetero.devices.kernels.registry import op
from hetero.devices.kernels.slicing import split_axis


@op("SequenceEmpty", since=11)
def sequence_empty(xp: Xp, *, dtype: int | None = None) -> list[Array]:
    """Return an empty sequence; only the graph knows its element type."""
    return []


@op("SequenceConstruct", since=11)
def sequence_construct(xp: Xp, *inputs: Array) -> list[Array]:
    """Return the inputs as a sequence."""
    check_same_type(*inputs)
    return list(inputs)


@op("SequenceLength", since=11)
def sequence_length(xp: Xp, input_sequence: list[Array]) -> Array:
    """Return the number of tensors in the sequence, an int64 scalar."""
    return xp.asarray(len(input_sequence), dtype=xp.int64)


@op("SequenceAt", since=11, host=(1,))
def sequence_at(xp: Xp, input_sequence: list[Array], position: Array) -> Array:
    """Return the tensor at a position; negative ones count from the end."""
    return input_sequence[_position(position, len(input_sequence), len(input_sequence) - 1)]


@op("SequenceInsert", since=11, host=(2,))
def sequence_insert(
    xp: Xp, input_sequence: list[Array], tensor: Array, position: Array | None = None
) -> list[Array]:
    """Return the sequence with a tensor inserted before a position, or at the end."""
    check_same_type(tensor, *input_sequence[:1])
    length = len(input_sequence)
    place = length if position is None else _position(position, length, length)
    return [*input_sequence[:place], tensor, *input_sequence[place:]]


@op("SequenceErase", since=11, host=(1,))
def sequence_erase(
    xp: Xp, input_sequence: list[Array], position: Array | None = None
) -> list[Array]:
    """Return the sequence without the tensor at a position, or without the last tensor."""
    length = len(input_sequence)
    place = _position(xp.asarray(-1) if position is None else position, length, length - 1)
    return [*input_sequence[:place], *input_sequence[place + 1 :]]


def _position(position: Array, length: int, last: int) -> int:
    place = int(position.item())
    if not -length <= place <= last:
        raise IndexError(f"position {place} is out of range for a sequence of {length}")
    return place + length if place < 0 else place


@op("SplitToSequence", since=11, host=(1,))
def split_to_sequence(
    xp: Xp, x: Array, split: Array | None = None, *, axis: int = 0, keepdims: int = 1
) -> list[Array]:
    """Split along `axis` into parts of the size or sizes `split`, or into single elements.

    `keepdims` applies to single elements only.
    """
    length = x.shape[axis_of(axis, x.ndim)]
    if split is None:
        parts = split_axis(x, axis, [1] * length)
        return [*parts] if keepdims else [part.squeeze(axis) for part in parts]
    if split.ndim:
        return [*split_axis(x, axis, split.tolist())]
    size = int(split)
    if size < 1:
        raise ValueError(f"split: expected a positive size, got {size}")
    return [*split_axis(x, axis, [min(size, length - i) for i in range(0, length, size)])]


@op("ConcatFromSequence", since=11)
def concat_from_sequence(
    xp: Xp, input_sequence: list[Array], *, axis: int, new_axis: int = 0
) -> Array:
    """Concatenate the sequence's tensors along `axis`, or stack them along a new axis."""
    if not input_sequence:
        raise ValueError("expected a sequence with tensors, got an empty one")
    check_same_type(*input_sequence)
    rank = input_sequence[0].ndim
    if new_axis:
        return xp.stack(input_sequence, axis=axis_of(axis, rank + 1))
    return xp.concatenate(input_sequence, axis=axis_of(axis, rank))


@op("Optional", since=15)
def optional(xp: Xp, value: Any = None, *, type: Any = None) -> Any:
    """Return an optional with the value, or without a value an empty optional of `type`."""
    return value


@op("OptionalHasElement", since=15)
def optional_has_element(xp: Xp, value: Any = None) -> Array:
    """Return whether the optional has a value, a bool scalar."""
    return xp.asarray(value is not None)


@op("OptionalGetElement", since=15)
def optional_get_element(xp: Xp, value: Any) -> Any:
    """Return the optional's value; ValueError if it is empty."""
    if value is None:
        raise ValueError("expected an optional with a value; check it by OptionalHasElement first")
    return value
