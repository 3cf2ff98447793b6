"""Operators that cut tensors apart, join them and pad them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from devices.kernels.axes import axes_of, axis_of
from devices.kernels.element_types import Array, Xp, same_type
from devices.kernels.registry import op


@op("Concat", since=4)
def concat(xp: Xp, *inputs: Array, axis: int) -> Array:
    """Join tensors along `axis`; their other dimensions must agree."""
    first = inputs[0]
    axis = axis_of(axis, first.ndim)
    same_type(*inputs)
    for x in inputs:
        if x.ndim != first.ndim or any(
            m != n for i, (m, n) in enumerate(zip(x.shape, first.shape, strict=True)) if i != axis
        ):
            raise ValueError(f"shapes {first.shape} and {x.shape} differ off axis {axis}")
    return xp.concatenate(inputs, axis=axis)


@op("Split", since=2)
def split_2(
    xp: Xp, x: Array, *, axis: int = 0, split: Sequence[int] | None = None, n_outputs: int
) -> tuple[Array, ...]:
    """Cut into parts of the sizes `split`, or into equal parts."""
    return _split(x, axis, split, n_outputs)


@op("Split", since=13, host=(1,))
def split_13(
    xp: Xp, x: Array, split: Array | None = None, *, axis: int = 0, n_outputs: int
) -> tuple[Array, ...]:
    """Cut into parts of the sizes `split`, or into equal parts."""
    return _split(x, axis, None if split is None else split.tolist(), n_outputs)


@op("Split", since=18, host=(1,))
def split_18(
    xp: Xp, x: Array, split: Array | None = None, *, axis: int = 0, num_outputs: int | None = None
) -> tuple[Array, ...]:
    """Cut into parts of the sizes `split`, or into `num_outputs` parts, the last maybe smaller."""
    if (split is None) == (num_outputs is None):
        raise ValueError("exactly one of the input split and the attribute num_outputs is wanted")
    if split is not None:
        return _split(x, axis, split.tolist(), 0)
    assert num_outputs is not None
    if num_outputs < 1:
        raise ValueError(f"num_outputs is {num_outputs}, not at least 1")
    length = x.shape[axis_of(axis, x.ndim)]
    part = -(-length // num_outputs)
    last = length - part * (num_outputs - 1)
    if last < 0:
        raise ValueError(f"{length} elements cannot be cut into {num_outputs} parts of {part}")
    return _split(x, axis, [part] * (num_outputs - 1) + [last], 0)


def _split(x: Array, axis: int, sizes: Sequence[int] | None, parts: int) -> tuple[Array, ...]:
    axis = axis_of(axis, x.ndim)
    length = x.shape[axis]
    if sizes is None:
        if length % parts:
            raise ValueError(f"{length} elements on axis {axis} do not give {parts} equal parts")
        sizes = [length // parts] * parts
    if min(sizes, default=0) < 0 or sum(sizes) != length:
        raise ValueError(f"sizes {tuple(sizes)} do not add up to the {length} of axis {axis}")
    before = (slice(None),) * axis
    return tuple(x[(*before, slice(i, j))] for i, j in pairwise(accumulate(sizes, initial=0)))


@op("Slice", since=1)
def slice_1(
    xp: Xp,
    data: Array,
    *,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None = None,
) -> Array:
    """Cut `starts[i]` to `ends[i]` out of axis `axes[i]`."""
    return _slice(data, starts, ends, axes, None)


@op("Slice", since=10, host=(1, 2, 3, 4))
def slice_10(
    xp: Xp,
    data: Array,
    starts: Array,
    ends: Array,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    """Cut `starts[i]` to `ends[i]` by `steps[i]` out of axis `axes[i]`."""
    return _slice(
        data,
        starts.tolist(),
        ends.tolist(),
        None if axes is None else axes.tolist(),
        None if steps is None else steps.tolist(),
    )


def _slice(
    data: Array,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Array:
    axes = axes_of(range(len(starts)) if axes is None else axes, data.ndim)
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise ValueError(
            f"{len(starts)} starts, {len(ends)} ends, {len(axes)} axes and {len(steps)} steps "
            f"must be as many"
        )
    if 0 in steps:
        raise ValueError("a step of 0 never ends")
    # Python clamps bounds as the specification does, but for a start before the first element:
    # going backwards, Python then takes nothing, the specification the first element.
    index = [slice(None)] * data.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        index[axis] = slice(max(start, -data.shape[axis]), end, step)
    return data[tuple(index)]


@op("Pad", since=2, choices={"mode": ("constant", "reflect", "edge")})
def pad_2(
    xp: Xp, data: Array, *, pads: Sequence[int], mode: str = "constant", value: float = 0.0
) -> Array:
    """Add `pads` elements around each axis; negative ones remove."""
    return _pad(xp, data, pads, xp.asarray(value, dtype=data.dtype), None, mode)


@op("Pad", since=11, host=(1,), choices={"mode": ("constant", "reflect", "edge")})
def pad_11(
    xp: Xp, data: Array, pads: Array, constant_value: Array | None = None, *, mode: str = "constant"
) -> Array:
    """Add `pads` elements around each axis; negative ones remove."""
    return _pad(xp, data, pads.tolist(), constant_value, None, mode)


@op("Pad", since=18, host=(1, 3), choices={"mode": ("constant", "reflect", "edge", "wrap")})
def pad_18(
    xp: Xp,
    data: Array,
    pads: Array,
    constant_value: Array | None = None,
    axes: Array | None = None,
    *,
    mode: str = "constant",
) -> Array:
    """Add `pads` elements around each of `axes`; negative ones remove."""
    return _pad(xp, data, pads.tolist(), constant_value, axes, mode)


def _pad(
    xp: Xp, data: Array, pads: Sequence[int], value: Array, axes: Sequence[int] | None, mode: str
) -> Array:
    axes = axes_of(range(data.ndim) if axes is None else axes, data.ndim)
    if len(pads) != 2 * len(axes):
        raise ValueError(f"{len(pads)} pads were given; {len(axes)} axes want {2 * len(axes)}")
    begins, ends = [0] * data.ndim, [0] * data.ndim
    for axis, begin, end in zip(axes, pads, pads[len(axes) :], strict=False):
        begins[axis], ends[axis] = begin, end
    sizes = list(zip(begins, data.shape, ends, strict=True))
    if any(begin + size + end < 0 or min(begin, end) < -size for begin, size, end in sizes):
        raise ValueError(f"pads {tuple(pads)} remove more than shape {data.shape} has")
    # Negative pads remove first; the rest is then padded.
    kept = data[tuple(slice(max(-begin, 0), size - max(-end, 0)) for begin, size, end in sizes)]
    begins, ends = [max(n, 0) for n in begins], [max(n, 0) for n in ends]
    padded, inside = _frame(xp, kept, begins, ends)
    if mode == "constant":
        if value is None:
            value = xp.asarray("" if data.dtype.kind == "O" else 0).astype(data.dtype)
        # Only the rim is filled: along each axis, what the axes before it have not filled yet.
        for axis, middle in enumerate(inside):
            padded[(*inside[:axis], slice(None, middle.start))] = value.reshape(())
            padded[(*inside[:axis], slice(middle.stop, None))] = value.reshape(())
        return padded
    for axis, (begin, end) in reversed(list(enumerate(zip(begins, ends, strict=True)))):
        if begin or end:
            # The axes after this one are whole already, those before it still bare.
            source = padded_positions(xp, mode, begin, kept.shape[axis], end)
            outer, line = inside[:axis], padded[(*inside[: axis + 1],)]
            before, after = source[:begin], source[begin + kept.shape[axis] :]
            middle, whole = inside[axis], (slice(None),) * axis
            padded[(*outer, slice(None, middle.start))] = line[(*whole, before)]
            padded[(*outer, slice(middle.stop, None))] = line[(*whole, after)]
    return padded


def _frame(
    xp: Xp, data: Array, begins: Sequence[int], ends: Sequence[int]
) -> tuple[Array, tuple[slice, ...]]:
    """Return an array with the data in its middle and nothing around it yet, and that middle.

    Its axes have the order in memory that the data's have: channels may be last.
    """
    sides = list(zip(begins, data.shape, ends, strict=True))
    padded = xp.empty_like(data, shape=[begin + size + end for begin, size, end in sides])
    inside = tuple(slice(begin, begin + size) for begin, size, _ in sides)
    padded[inside] = data
    return padded, inside


def padded_positions(xp: Xp, mode: str, begin: int, size: int, end: int) -> Array:
    """Return which of `size` elements each element of the padded axis repeats."""
    if size == 0:
        raise ValueError(f"an empty axis has nothing to pad with in mode {mode!r}")
    position = xp.arange(-begin, size + end)
    if mode == "edge":
        return xp.clip(position, 0, size - 1)
    if mode == "wrap":
        return position % size
    # There and back again, as often as it takes; the ends are not repeated.
    period = max(2 * (size - 1), 1)
    position = position % period
    return xp.minimum(position, period - position)
