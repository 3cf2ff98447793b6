"""Operators that slice, split, concatenate and pad tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from hetero.devices.kernels.axes import axes_of, axis_of
from hetero.devices.kernels.element_types import Array, Xp, check_same_type
from hetero.devices.kernels.registry import as_inputs, op, with_attributes_of


@op("Concat", since=4)
def concat(xp: Xp, *inputs: Array, axis: int) -> Array:
    """Concatenate tensors along `axis`; their other sizes must be equal."""
    check_same_type(*inputs)
    return xp.concatenate(inputs, axis=axis_of(axis, inputs[0].ndim))


@op("Split", since=2)
def split_2(
    xp: Xp, x: Array, *, axis: int = 0, split: Sequence[int] | None = None, n_outputs: int
) -> tuple[Array, ...]:
    """Split into parts of the sizes `split`, or into equal parts."""
    if split is None:
        length = x.shape[axis_of(axis, x.ndim)]
        if length % n_outputs:
            raise ValueError(
                f"expected a multiple of {n_outputs} (outputs) on axis {axis}, got {length}"
            )
        split = [length // n_outputs] * n_outputs
    return split_axis(x, axis, split)


op("Split", since=13, host=(1,))(as_inputs(split_2, "split"))


@op("Split", since=18, host=(1,))
def split_18(
    xp: Xp, x: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Array, ...]:
    """Split into parts of the sizes `split`, or into `num_outputs` parts of one size.

    The last of the `num_outputs` parts may be smaller.
    """
    if (split is None) == (num_outputs is None):
        raise ValueError("expected exactly one of the input split and the attribute num_outputs")
    if split is not None:
        return split_axis(x, axis, split.tolist())
    assert num_outputs is not None
    if num_outputs < 1:
        raise ValueError(f"num_outputs: expected at least 1, got {num_outputs}")
    length = x.shape[axis_of(axis, x.ndim)]
    part = -(-length // num_outputs)
    last = length - part * (num_outputs - 1)
    if last < 0:
        raise ValueError(
            f"num_outputs: {num_outputs} parts of {part} exceed the {length} elements on axis "
            f"{axis}"
        )
    return split_axis(x, axis, [part] * (num_outputs - 1) + [last])


def split_axis(x: Array, axis: int, sizes: Sequence[int]) -> tuple[Array, ...]:
    """Return the parts of these sizes along an axis."""
    axis = axis_of(axis, x.ndim)
    if min(sizes, default=0) < 0 or sum(sizes) != x.shape[axis]:
        raise ValueError(
            f"split: expected sizes that sum to {x.shape[axis]} on axis {axis}, got {tuple(sizes)}"
        )
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(i, j))] for i, j in pairwise(accumulate(sizes, initial=0)))


def _slice(
    xp: Xp,
    data: Array,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
    steps: Sequence[int] | None = None,
) -> Array:
    """Return the elements from `starts[i]` to `ends[i]` in `steps[i]` of axis `axes[i]`."""
    axes = axes_of(range(len(starts)) if axes is None else axes, data.ndim)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError(
            f"expected as many starts, ends, axes and steps, got {len(starts)}, {len(ends)}, "
            f"{len(axes)} and {len(steps)}"
        )
    if 0 in steps:
        raise ValueError("steps: expected numbers other than 0")
    # Python clamps bounds as the specification does, except a start before the first element of a
    # backward slice, which is empty in Python and begins at the first element in the specification.
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(max(start, -data.shape[axis]), end, step)
    return data[tuple(index)]


@op("Slice", since=1)
@with_attributes_of(_slice, exclude=("steps",))
def slice_1(xp: Xp, data: Array, **bounds: Any) -> Array:
    """Return the elements from `starts[i]` to `ends[i]` of axis `axes[i]`."""
    return _slice(xp, data, **bounds)


op("Slice", since=10, host=(1, 2, 3, 4))(as_inputs(_slice, "starts", "ends", "axes", "steps"))


@op("Pad", since=2, choices={"mode": ("constant", "reflect", "edge")})
def pad_2(
    xp: Xp, data: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Array:
    """Add `pads` elements at both ends of each axis; negative pads remove elements."""
    return pad(xp, data, pads, xp.asarray(value, dtype=data.dtype), mode=mode)


@op(
    "Pad",
    since=11,
    host=(1, 2, 3),
    additions={"axes": 18},
    choices={"mode": ("constant", "reflect", "edge", "wrap")},
)
def pad_11(
    xp: Xp,
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """Add `pads` elements at both ends of each of `axes`; negative pads remove elements."""
    return pad(xp, data, pads.tolist(), constant_value, axes, mode=mode)


def pad(
    xp: Xp,
    data: Array,
    pads: Sequence[int],
    value: Array | None = None,
    axes: Sequence[int] | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """Pad axes; `pads` are the numbers of elements at all their begins, then at all their ends."""
    axes = axes_of(range(data.ndim) if axes is None else axes, data.ndim)
    if len(pads) != 2 * len(axes):
        raise ValueError(f"pads: expected {2 * len(axes)} numbers, got {len(pads)}")
    begins, ends = [0] * data.ndim, [0] * data.ndim
    for axis, begin, end in zip(axes, pads, pads[len(axes) :], strict=False):
        begins[axis], ends[axis] = begin, end
    sizes = list(zip(begins, data.shape, ends, strict=True))
    if any(begin + size + end < 0 or min(begin, end) < -size for begin, size, end in sizes):
        raise ValueError(f"pads: {tuple(pads)} remove more elements than shape {data.shape} has")
    # Negative pads remove elements first; the rest is then padded.
    rest = data[tuple(slice(max(-begin, 0), size - max(-end, 0)) for begin, size, end in sizes)]
    widths = [(max(begin, 0), max(end, 0)) for begin, end in zip(begins, ends, strict=True)]
    if mode != "constant":
        if any(max(sides) and not size for sides, size in zip(widths, rest.shape, strict=True)):
            raise ValueError(f"mode {mode!r}: expected elements on every axis to pad, got none")
        return xp.pad(rest, widths, mode)
    default = "" if data.dtype.kind == "O" else 0
    return xp.pad(rest, widths, constant_values=default if value is None else value.item())
