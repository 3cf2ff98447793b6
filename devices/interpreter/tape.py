"""A tape: what a kernel did to arrays, as steps that can be bound to arrays elsewhere in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np

from devices.interpreter.calls import Call, Scratch
from devices.interpreter.copies import copy_call
from devices.interpreter.layout import Span, lay_out

#: Bytes of the pieces that several steps work on one after the other, so that they stay in cache.
_PIECE_NBYTES: Final = 1 << 17
#: Steps that are cut into pieces together: so many that it saves more than the calls cost.
_SHORTEST_RUN: Final = 3
_LONGEST_RUN: Final = 64


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

    def ordered(self, axes: Sequence[int]) -> Place:
        """Return the place with its axes in another order."""
        shape, strides = (tuple([of[i] for i in axes]) for of in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    def rows(self, first: int, last: int) -> Place:
        """Return some rows; the one row of what broadcasts."""
        if self.shape[0] == 1:
            return self
        offset = self.offset + first * self.strides[0]
        return self._replace(offset=offset, shape=(last - first, *self.shape[1:]))

    def only_row(self) -> Place:
        """Return the place without its first axis."""
        return self._replace(shape=self.shape[1:], strides=self.strides[1:])

    def merges(self, written: Place) -> bool:
        """Tell whether the first two axes are one in memory, as those of the written place."""
        if self.shape[:2] != written.shape[:2]:
            return self.shape[:2] == (1, 1)
        return self.strides[0] == self.shape[1] * self.strides[1]

    def merged(self) -> Place:
        """Return the place with its first two axes as one."""
        shape = (self.shape[0] * self.shape[1], *self.shape[2:])
        return self._replace(shape=shape, strides=self.strides[1:])

    def split(self, count: int) -> Place:
        """Return the place with its first axis as two, the first of them of `count` rows."""
        size, stride = self.shape[0], self.strides[0]
        first, second = (1, 1) if size == 1 else (count, size // count)
        strides = (stride * second, stride, *self.strides[1:])
        return self._replace(shape=(first, second, *self.shape[1:]), strides=strides)

    def slot(self, rows: int) -> tuple[int, int] | None:
        """Return the distance between rows and the number of the first; None if they overlap."""
        if self.shape[0] != rows or min(self.strides) < 0 or not self.strides[0]:
            return None
        step = self.strides[0]
        inner = zip(self.shape[1:], self.strides[1:], strict=True)
        extent = self.dtype.itemsize + sum((n - 1) * stride for n, stride in inner)
        if self.offset % step + extent > step:
            return None
        return step, self.offset // step


class Step(NamedTuple):
    """One call: `make` makes it of the arrays at `places`, the last of which it writes to.

    Along its first `lead` axes it may be done piece by piece; places at the positions `fixed` are
    then read whole. `is_elementwise`: each element by itself, whatever the order of the axes.
    """

    make: Callable[..., Call]
    places: tuple[Place, ...]
    lead: int = 0
    is_elementwise: bool = False
    fixed: frozenset[int] = frozenset()

    @property
    def rows(self) -> int:
        """How many pieces it may be cut into, at most; 0 if it is one."""
        return self.places[-1].shape[0] if self.lead else 0

    def cut(self) -> list[Place]:
        """Return the places of which a piece is enough for a piece of the result."""
        return [place for i, place in enumerate(self.places) if i not in self.fixed]

    def each(self, change: Callable[[Place], Place], more_lead: int = 0) -> Step:
        """Return the step with those places changed."""
        places = [p if i in self.fixed else change(p) for i, p in enumerate(self.places)]
        return self._replace(places=tuple(places), lead=self.lead + more_lead)

    def piece(self, first: int, last: int, inside: set[int]) -> Step:
        """Return the step for some rows; each piece has buffers `inside` it to itself."""

        def rows(place: Place) -> Place:
            cut = place.rows(first, last)
            return cut._replace(offset=place.offset) if place.buffer in inside else cut

        return self.each(rows)

    def merged(self) -> Step:
        """Return the step with its axes as they lie in memory, as few as its places allow."""
        step, strides = self, self.places[-1].strides
        if step.is_elementwise:
            order = sorted(range(len(strides)), key=strides.__getitem__, reverse=True)
            step = step.each(lambda place: place.ordered(order))
        while step.rows == 1:
            step = step.each(Place.only_row, -1)
        while step.lead > 1 and all(place.merges(step.places[-1]) for place in step.cut()):
            step = step.each(Place.merged, -1)
        return step


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
    in_pieces: bool,
) -> Recording:
    """Return a recording that uses little memory; `sizes` are those of the buffers of its own."""
    own = set(sizes).difference(outputs)
    steps = _in_place(steps, own, sizes)
    over = () if len(outputs) != 1 else tuple(_over(steps, len(layouts), outputs[0]))
    is_large = any(place.nbytes > _PIECE_NBYTES for step in steps for place in step.places)
    if in_pieces and is_large:
        steps = list(_pieces(steps, own, dict.fromkeys(over, outputs[0])))
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


def _pieces(steps: Sequence[Step], own: Iterable[int], alias: Mapping[int, int]) -> Iterator[Step]:
    """Yield the steps, those that are done row by row a few rows at a time."""
    found = _mentions(steps)
    for start, run in _runs(steps, alias):
        rows = run[0].rows
        largest = max(place.nbytes for step in run for place in step.cut())
        if len(run) < _SHORTEST_RUN or not rows or largest <= _PIECE_NBYTES:
            yield from run
            continue
        within = range(start, start + len(run))
        inside = {b for b in own if b in found and all(i in within for i in found[b])}
        count = max(1, rows * _PIECE_NBYTES // largest)
        # BLAS adds up the last rows of an odd count in another order.
        count -= count % 8 if count > 8 else 0
        for first in range(0, rows, count):
            cut = [step.piece(first, min(rows, first + count), inside) for step in run]
            yield from cut if count > 1 else _pieces(cut, inside, alias)


def _runs(steps: Sequence[Step], alias: Mapping[int, int]) -> Iterator[tuple[int, list[Step]]]:
    """Yield the steps in runs that have rows in common, and where each begins."""
    run: list[Step] = []
    start = 0
    for i, step in enumerate(map(Step.merged, steps)):
        longer = _joined(run, step, alias) if len(run) < _LONGEST_RUN else None
        if longer is None:
            if run:
                yield start, run
            start, longer = i, [step]
        run = longer
    if run:
        yield start, run


def _joined(run: list[Step], step: Step, alias: Mapping[int, int]) -> list[Step] | None:
    """Return the run with the step; None if they are not done row by row together."""
    if not run:
        return [step]
    counts = {run[0].rows, step.rows}
    rows = min(counts)
    longer = [*run, step]
    if not rows or any(s.rows % rows or (s.rows > rows and not s.is_elementwise) for s in longer):
        return None
    longer = [s if s.rows == rows else s.each(lambda p: p.split(rows), 1) for s in longer]
    written = {alias.get(s.places[-1].buffer, s.places[-1].buffer) for s in longer}
    slots: dict[int, set[tuple[int, int] | None]] = {}
    for s in longer:
        for i, place in enumerate(s.places):
            slot = None if i in s.fixed else place.slot(rows)
            slots.setdefault(alias.get(place.buffer, place.buffer), set()).add(slot)
    ok = all(len(slots[b]) == 1 and None not in slots[b] for b in written)
    return longer if ok else None
