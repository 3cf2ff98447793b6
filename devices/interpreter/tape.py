"""A tape: what a kernel did to arrays, as steps that can be bound to arrays elsewhere in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, NamedTuple

import numpy as np

from devices.interpreter.calls import Call, Scratch
from devices.interpreter.copies import copy_call
from devices.interpreter.layout import Span, lay_out


class Place(NamedTuple):
    """Where an array lies: in which buffer, and how far from that one's first byte."""

    buffer: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @property
    def nbytes(self) -> int:
        """The size of its elements."""
        return prod(self.shape) * self.dtype.itemsize


class Step(NamedTuple):
    """One call: `make` makes it of the arrays at `places`, the last of which it writes to.

    `is_elementwise`: each element by itself, whatever the order of the axes.
    """

    make: Callable[..., Call]
    places: tuple[Place, ...]
    is_elementwise: bool = False


@dataclass(frozen=True, slots=True)
class Recording:
    """What one kernel does to inputs of one layout.

    `layouts` are the shapes and strides of its inputs, whose buffers are numbered as they are;
    `outputs` the buffers of its results. The other buffers are `constants`, or lie in `nbytes` of
    memory of its own at `offsets`. The result may lie over each of the inputs `over`.
    """

    steps: tuple[Step, ...]
    layouts: tuple[Any, ...]
    outputs: tuple[int, ...]
    constants: Mapping[int, np.ndarray]
    offsets: Mapping[int, int]
    nbytes: int
    over: tuple[int, ...]

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


def edited(
    steps: Sequence[Step],
    layouts: tuple[Any, ...],
    outputs: Sequence[int],
    constants: Mapping[int, np.ndarray],
    sizes: Mapping[int, int],
) -> Recording:
    """Return a recording that uses little memory; `sizes` are those of the buffers of its own."""
    own = set(sizes).difference(outputs)
    steps = _in_place(steps, own, sizes)
    over = () if len(outputs) != 1 else tuple(_over(steps, len(layouts), outputs[0]))
    spans: dict[int, Span] = {}
    for i, step in enumerate(steps):
        for place in step.places:
            if place.buffer in own:
                reach = zip(place.shape, place.strides, strict=True)
                end = place.offset + place.dtype.itemsize + sum((n - 1) * s for n, s in reach)
                first, _, nbytes = spans.get(place.buffer, (i, i, 0))
                spans[place.buffer] = Span(first, i, max(nbytes, end))
    offsets, nbytes = lay_out(spans)
    return Recording(tuple(steps), layouts, tuple(outputs), constants, offsets, nbytes, over)


def _mentions(steps: Sequence[Step]) -> dict[int, list[int]]:
    """Return the indices of the steps that touch each buffer."""
    found: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        for buffer in {place.buffer for place in step.places}:
            found.setdefault(buffer, []).append(i)
    return found


def _in_place(steps: Sequence[Step], own: set[int], sizes: Mapping[int, int]) -> list[Step]:
    """Return the steps, an element-wise result in the memory of an operand that ends there."""
    found = _mentions(steps)
    first = {buffer: at[0] for buffer, at in found.items()}
    last = {buffer: at[-1] for buffer, at in found.items()}
    into: dict[int, int] = {}
    for i, step in enumerate(steps):
        *read, written = step.places
        if not step.is_elementwise or first[written.buffer] != i or written.buffer not in sizes:
            continue
        for place in read:
            if (
                place.buffer in own and place.buffer not in into and last[place.buffer] == i
                and place[1:] == written[1:]
                and sizes[place.buffer] == written.nbytes == sizes[written.buffer]
            ):  # fmt: skip
                into[place.buffer] = written.buffer
                break

    def final(place: Place) -> Place:
        buffer = place.buffer
        while buffer in into:
            buffer = into[buffer]
        return place._replace(buffer=buffer)

    moved = [step._replace(places=tuple(map(final, step.places))) for step in steps]
    return [s for s in moved if s.make is not copying or s.places[0] != s.places[1]]


def copying(x: np.ndarray, y: np.ndarray) -> Call:
    """Return the call that copies x to y, with which it may broadcast."""
    if x.shape == y.shape and x.dtype == y.dtype:
        return copy_call(y, x)
    return partial(np.copyto, y, x, casting="unsafe")


def _over(steps: Sequence[Step], inputs: int, output: int) -> Iterator[int]:
    """Yield the inputs that the result may lie over: nothing of them is read too late."""
    found = _mentions(steps)
    if output not in found:
        return
    at = found[output][0]
    written = steps[at].places[-1]
    for number in range(inputs):
        places = [p for step in steps for p in step.places if p.buffer == number]
        if (
            all(place[1:] == written[1:] for place in places)
            and written.buffer == output
            and all(i <= at for i in found.get(number, ()))
            and (steps[at].is_elementwise or at not in found.get(number, ()))
        ):
            yield number
