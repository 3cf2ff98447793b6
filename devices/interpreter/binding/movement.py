"""Bindings of operators that move elements: Gather, Concat, and what is not a view of its input."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np

from devices.interpreter.binding.copies import copy_call
from devices.interpreter.binding.registry import Call, Scratch, binds
from devices.kernels.slicing import padded_positions

#: Elements beside an axis up to which each has a call of its own.
_WIDEST_RIM: Final = 16


@binds("Gather", 1)
def bind_gather(
    scratch: Scratch, y: np.ndarray, data: np.ndarray, indices: np.ndarray, *, axis: int = 0
) -> Sequence[Call] | None:
    """Bind the taking of slices; numpy itself refuses an index that is out of range."""
    return [partial(data.take, indices, axis, y)] if indices.ndim else None


@binds("Concat", 4, any_order=True)
def bind_concat(
    scratch: Scratch, y: np.ndarray, *inputs: np.ndarray, axis: int
) -> Sequence[Call] | None:
    """Bind a copy of each input to its place."""
    ends = accumulate(x.shape[axis] for x in inputs)
    places = (slice(end - x.shape[axis], end) for x, end in zip(inputs, ends, strict=True))
    whole = np.moveaxis(y, axis, 0)
    return [
        copy_call(whole[place], np.moveaxis(x, axis, 0))
        for x, place in zip(inputs, places, strict=True)
        if x.size
    ]


@binds("Pad", 2, any_order=True)
def bind_pad_by_attributes(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *,
    pads: Sequence[int], mode: str = "constant", value: float = 0.0,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the copy and what lies around it."""
    return _padded(y, x, pads, np.asarray(value, x.dtype), range(x.ndim), mode)


@binds("Pad", 11, any_order=True)
@binds("Pad", 18, any_order=True)
def bind_pad(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, pads: np.ndarray,
    value: np.ndarray | None = None, axes: np.ndarray | None = None, *, mode: str = "constant",
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the copy and what lies around it, where its width is a constant."""
    if pads.flags.writeable or not (axes is None or not axes.flags.writeable):
        return None
    value = np.zeros((), x.dtype) if value is None else value.reshape(())
    along = range(x.ndim) if axes is None else axes.tolist()
    return _padded(y, x, pads.tolist(), value, along, mode)


def _padded(
    y: np.ndarray, x: np.ndarray, pads: Sequence[int], value: np.ndarray, axes: Sequence[int],
    mode: str,
) -> Sequence[Call] | None:  # fmt: skip
    """Return the calls that copy x, then fill or copy its rims, axis by axis as the kernel does."""
    if min(pads, default=0) < 0 or not x.size or (mode != "constant" and max(pads) > _WIDEST_RIM):
        return None
    count, begins = len(axes), dict.fromkeys(range(x.ndim), 0)
    begins |= dict(zip((axis % x.ndim for axis in axes), pads[:count], strict=True))
    inside = [slice(begins[axis], begins[axis] + size) for axis, size in enumerate(x.shape)]
    calls = [copy_call(y[tuple(inside)], x)]
    for axis in range(x.ndim) if mode == "constant" else reversed(range(x.ndim)):
        begin, end = inside[axis].start, inside[axis].stop
        outer: tuple[Any, ...] = tuple(inside[:axis])
        if mode == "constant":
            rims = (y[(*outer, slice(begin))], y[(*outer, slice(end, None))])
            calls += [partial(np.copyto, rim, value) for rim in rims if rim.size]
            continue
        after = y.shape[axis] - end
        positions = padded_positions(np, mode, begin, x.shape[axis], after)
        for place in (*range(begin), *range(end, y.shape[axis])):
            to, at = y[(*outer, place)], y[(*outer, begin + int(positions[place]))]
            calls.append(partial(np.copyto, to, at))
    return calls
