"""The steps of a decoder: what each run is given, for one text or for several as rows of one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from hetero.apps.generate.pace import Pace
from hetero.apps.generate.ports import Decoder
from hetero.devices.model.tensor_spec import TensorSpec


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How a text goes on.

    `sampling`: [1, 6], as the node that chooses is told.
    `most`: tokens, at most.
    `ends`: tokens that end it.
    `sources`: inputs that are the same in each step.
    """

    sampling: np.ndarray
    penalizes: bool
    seed: int
    most: int
    ends: Collection[int]
    sources: Mapping[str, np.ndarray] = field(default_factory=dict)


class Told(Protocol):
    """What steps read of a text."""

    @property
    def options(self) -> TextOptions:
        """How it goes on."""

    @property
    def said(self) -> list[int]:
        """Its prompt, and what has come of it."""

    def drawn(self, after: int = 0) -> float:
        """Return a number from [0, 1) for the next token, or for one so many after it."""


class Steps:
    """The inputs of a decoder's next step, from what was said so far.

    `texts`: one, or several whose caches are as long as the longest of them needs.
    `at_end`: whether shorter ones are at the end of caches, whose beginning the mask leaves out.
    `past`: how many positions caches hold.
    """

    def __init__(
        self,
        decoder: Decoder,
        ports: Sequence[TensorSpec],
        texts: Sequence[Told],
        at_end: bool,
        past: int,
        pace: Pace,
    ) -> None:
        self._types: Final = {port.name: port for port in ports}
        self._decoder: Final = decoder
        self._texts: Final = texts
        self._is_one: Final = len(texts) == 1
        self._at_end: Final = at_end or self._is_one  # which then begins there as well
        options = [text.options for text in texts]
        self._sources: Final = {
            name: np.concatenate([one.sources[name] for one in options])
            for name in options[0].sources
        }
        self._sampling: Final = np.concatenate([one.sampling for one in options])
        self._penalizes: Final = any(one.penalizes for one in options)
        self._pace: Final = pace
        #: Tokens of each, of the longest, and how many of that caches have seen.
        self._lengths = np.asarray([len(text.said) for text in texts])
        self._count = int(self._lengths.max())
        self._past = past
        #: How many tokens the next run sees, and for how many there is room.
        self._size = 0
        self._room = 0
        self._rows: Final = np.arange(len(texts))
        self._ids = self._seen = self._mask = self._places = np.empty((len(texts), 0), np.int64)
        self._make_room(self._count)
        self._draw()

    @property
    def is_step(self) -> bool:
        """Whether the next run sees one token, of each text."""
        return self._past > 0 and self._count - self._past == 1

    def feeds(self) -> dict[str, np.ndarray]:
        """Return the next run's inputs by name; they are views, to be read before the next call."""
        left = self._count - self._past
        self._size = min(left, self._pace.size(begins=not self._past)) if left > 1 else left
        changes_at = self._decoder.changes_at
        if changes_at is not None and not self._past and self._count > changes_at:
            self._size = max(self._size, changes_at + 1)
        if left - self._size == 1:  # see `pace.SMALLEST`
            self._size = left
        if self._decoder.singly:
            self._size = 1
        upto = self._past + self._size
        lengths = upto if self._is_one else self._lengths
        if self._is_one:
            new = self._ids[:, self._past : upto]
        else:
            new = self._ids[self._rows, lengths - 1][:, None]
        seen = self._seen[:, : self._count] if self._penalizes else self._seen[:, :1]
        told = {self._decoder.sampling: self._sampling, self._decoder.seen: seen}
        return self._given(self._past, lengths, new, self._mask[:, :upto]) | told

    def feeds_after(self) -> dict[str, np.ndarray] | None:
        """Return the inputs of the run after that, but for the ids that come of it.

        None where they depend on those, or it does not see all there is.
        """
        upto = self._past + self._size
        if self._penalizes or upto != self._count or upto == self._decoder.changes_at:
            return None
        if self._count == self._room:
            self._make_room(2 * self._count)
        lengths = upto + 1 if self._is_one else self._lengths + 1
        mask = self._mask[:, : upto + 1]
        if not self._at_end:  # where shorter rows are is read now
            mask = mask.copy()
            mask[self._rows, self._lengths] = 1
        sampling = self._sampling.copy()
        sampling[:, -1] = [text.drawn(1) for text in self._texts]
        told = {self._decoder.sampling: sampling, self._decoder.seen: self._seen[:, :1]}
        given = self._given(upto, lengths, self._ids[:, :1], mask) | told
        del given[self._decoder.ids]
        return given

    def _given(
        self, past: int, lengths: Any, new: np.ndarray, mask: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return what a run is given that sees the ids `new` behind `past`, up to `lengths`."""
        decoder, is_one = self._decoder, self._is_one
        given = self._sources | {decoder.ids: new}
        if decoder.mask:
            given[decoder.mask] = mask
        if decoder.positions:
            port = self._types[decoder.positions]
            if len(port.shape or (0, 0)) == 1:
                given[decoder.positions] = self._places[past:lengths]
            elif is_one:
                given[decoder.positions] = self._places[None, past:lengths]
            else:
                given[decoder.positions] = self._places[lengths - 1][:, None]
        counts = ((decoder.past_length, lengths - new.shape[1]), (decoder.total_length, lengths))
        for name, count in counts:
            if name:
                port = self._types[name]
                shape = np.shape(new)[: len(port.shape or ())]
                given[name] = np.full(shape, count if shape else np.max(count), port.dtype)
        if decoder.num_logits:
            port = self._types[decoder.num_logits]
            given[decoder.num_logits] = np.ones([1] * len(port.shape or ()), port.dtype)
        if decoder.is_next:
            given[decoder.is_next] = np.asarray([past > 0])
        return given

    def ran(self, seconds: float) -> bool:
        """Take in that the next run took so long; whether it saw all there is, so its tokens count.

        Otherwise the next one sees more of the prompt.
        """
        if self._size == 1 and self._past:
            self._pace.stepped(seconds)
        else:
            self._pace.fed(self._size, seconds)
        self._past += self._size
        return self._past == self._count

    def add(self, tokens: Sequence[int]) -> None:
        """Go on to the step after one that gave `tokens`, which the texts have by now."""
        if self._count == self._room:
            self._make_room(2 * self._count)
        if self._is_one:
            self._ids[0, self._count] = self._seen[0, self._count] = tokens[0]
        else:
            newest = self._rows, self._lengths
            self._ids[newest] = self._seen[newest] = tokens
            if not self._at_end:
                self._mask[newest] = 1
        self._lengths += 1
        self._count += 1
        self._draw()

    def _draw(self) -> None:
        """Take over what texts have drawn for the next token."""
        self._sampling[:, -1] = [text.drawn() for text in self._texts]

    def _make_room(self, room: int) -> None:
        """Have arrays that hold `room` tokens."""
        decoder, lengths = self._decoder, self._lengths

        def kind(name: str) -> Any:
            return self._types[name].dtype if name else np.int64

        # So that a penalty finds none but the row's own, its first token is where there is none.
        ids = np.empty((len(self._rows), room), kind(decoder.ids))
        for row, text in enumerate(self._texts):
            ids[row] = text.said[0]
            ids[row, : lengths[row]] = text.said[: lengths[row]]
        places, own = np.arange(room), lengths[:, None]
        self._ids, self._room = ids, room
        self._seen = ids.astype(np.int64, copy=False)
        is_own = places >= self._count - own if self._at_end else places < own
        self._mask = is_own.astype(kind(decoder.mask))
        self._places = places.astype(kind(decoder.positions))
