"""A tape: what a kernel did to arrays, as steps that can be bound to arrays elsewhere in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.interpreter.calls import Call, Scratch, copy_call
from hetero.devices.interpreter.layout import Span, lay_out


class Place(NamedTuple):
    """Where an array lies: in which buffer, and how far from that one's first byte."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype


class Step(NamedTuple):
    """One call: `make` makes it of the arrays at `places`, the last of which it writes to."""

    make: Callable[..., Call]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """What one kernel does to inputs of one layout.

    `layouts` are the shapes and strides of its inputs, whose buffers are numbered as they are;
    `outputs` the buffers of its results. The other buffers are `constants`, or lie in `nbytes` of
    memory of its own at `offsets`.
    """

    steps: tuple[Step, ...]
    layouts: tuple[Any, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, np.ndarray]
    offsets: Mapping[int, int]
    nbytes: int

    def calls(
        self, scratch: Scratch, outputs: Sequence[np.ndarray | None], inputs: Sequence[Any]
    ) -> list[Call] | None:
        """Return the calls that compute the outputs; None if the inputs lie otherwise."""
        if layouts_of(inputs) != self.layouts:
            return None
        arrays = {**dict(enumerate(inputs)), **self.constants}
        arrays |= {b: y for b, y in zip(self.outputs, outputs, strict=True) if y is not None}
        own = scratch((self.nbytes,), np.uint8)
        memory: dict[int, np.ndarray] = {b: own[at:] for b, at in self.offsets.items()}
        made: dict[Place, np.ndarray] = {}

        def array(place: Place) -> np.ndarray:
            if place not in made:
                buffer, offset, shape, strides, dtype = place
                if buffer not in memory:
                    memory[buffer] = bytes_of(arrays[buffer])
                made[place] = np.ndarray(shape, dtype, memory[buffer], offset, strides)
            return made[place]

        return [step.make(*map(array, step.places)) for step in self.steps]


def layouts_of(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shape, strides and type of each array, None for what is none."""
    return tuple(
        (x.shape, x.strides, x.dtype) if isinstance(x, np.ndarray) else None for x in inputs
    )


class _Bytes:
    """The memory that an array lies in, by numpy's array interface."""

    def __init__(self, array: np.ndarray) -> None:
        first, end = np.lib.array_utils.byte_bounds(array)
        self._array = array
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (end - first,),
            "data": (first, not array.flags.writeable),
        }


def bytes_of(array: np.ndarray) -> np.ndarray:
    """Return the memory that an array spans, as bytes."""
    return np.asarray(_Bytes(array))


def recording_of(
    steps: Sequence[Step],
    layouts: tuple[Any, ...],
    outputs: Sequence[int],
    constants: Mapping[int, np.ndarray],
    sizes: Mapping[int, int],
) -> Recording:
    """Return a recording whose own buffers, those of `sizes`, share memory."""
    own = set(sizes).difference(outputs)
    spans: dict[int, Span] = {}
    for i, step in enumerate(steps):
        for place in step.places:
            if place.buffer in own:
                reach = zip(place.shape, place.strides, strict=True)
                end = place.offset + place.dtype.itemsize + sum((n - 1) * s for n, s in reach)
                first, _, nbytes = spans.get(place.buffer, (i, i, 0))
                spans[place.buffer] = Span(first, i, max(nbytes, end))
    offsets, nbytes = lay_out(spans)
    return Recording(tuple(steps), layouts, tuple(outputs), constants, offsets, nbytes)


def copying(x: np.ndarray, y: np.ndarray) -> Call:
    """Return the call that copies x to y, with which it may broadcast."""
    if x.shape == y.shape and x.dtype == y.dtype:
        return copy_call(y, x)
    return partial(np.copyto, y, x, casting="unsafe")
