"""Inputs of a decoder's next run, for one sequence or for several as rows of one batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from hetero.apps.generate.decoder_ports import Decoder
from hetero.apps.generate.prefill_chunks import ChunkSizer
from hetero.devices.model.tensor_spec import TensorSpec

#: Column of top-k in the sampling input; see `hetero.apps.generate.sampling`.
_TOP_K: Final = 1


@dataclass(frozen=True, slots=True)
class SequenceOptions:
    """Options of one sequence.

    `sampling`: input of the sampling node, [1, 6].
    `penalizes`: whether tokens that occurred before are penalised.
    `seed`: seed of the random numbers.
    `max_new_tokens`: maximum number of tokens.
    `end_ids`: tokens that end the sequence.
    `sources`: encoder outputs, which every step reads.
    """

    sampling: np.ndarray
    penalizes: bool
    seed: int
    max_new_tokens: int
    end_ids: Collection[int]
    sources: Mapping[str, np.ndarray] = field(default_factory=dict)


class SequenceView(Protocol):
    """The parts of a sequence that step inputs depend on."""

    @property
    def options(self) -> SequenceOptions:
        """Options of the sequence."""

    @property
    def ids(self) -> list[int]:
        """Ids of the prompt and of all computed tokens."""

    def random_number(self, offset: int = 0) -> float:
        """Return the number in [0, 1) by which the token `offset` after the next is sampled."""


class StepInputs:
    """Inputs of a decoder's next run, from the tokens so far.

    `sequences`: one, or several whose KV caches are padded to the longest.
    `at_end`: whether shorter sequences are padded at the beginning, which the mask excludes.
    `past`: number of positions in the KV caches.
    """

    def __init__(
        self,
        decoder: Decoder,
        ports: Sequence[TensorSpec],
        sequences: Sequence[SequenceView],
        at_end: bool,
        past: int,
        chunks: ChunkSizer,
    ) -> None:
        self._types: Final = {port.name: port for port in ports}
        self._decoder: Final = decoder
        self._sequences: Final = sequences
        self._is_single: Final = len(sequences) == 1
        self._at_end: Final = at_end or self._is_single  # a single one has no padding
        options = [sequence.options for sequence in sequences]
        self._sources: Final = {
            name: np.concatenate([one.sources[name] for one in options])
            for name in options[0].sources
        }
        self._sampling: Final = np.concatenate([one.sampling for one in options])
        #: Whether a row draws its token: with a top-k of 1, random numbers change nothing.
        self._draws: Final = bool(np.any(self._sampling[:, _TOP_K] != 1))
        self._penalizes: Final = any(one.penalizes for one in options)
        self._chunks: Final = chunks
        #: Number of tokens of each sequence and of the longest; positions in the caches.
        self._lengths = np.asarray([len(sequence.ids) for sequence in sequences])
        self._count = int(self._lengths.max())
        self._past = past
        #: Number of tokens of the next run, and capacity of the arrays.
        self._size = 0
        self._capacity = 0
        self._rows: Final = np.arange(len(sequences))
        empty = np.empty((len(sequences), 0), np.int64)
        self._ids = self._seen = self._mask = self._positions = empty
        self._resize(self._count)
        self._set_random_numbers()

    @property
    def is_decode_step(self) -> bool:
        """Whether the next run reads one token of each sequence."""
        return self._past > 0 and self._count - self._past == 1

    def feeds(self) -> dict[str, np.ndarray]:
        """Return the next run's inputs by name; they are views, valid until the next call."""
        remaining = self._count - self._past
        self._size = remaining
        if remaining > 1:
            self._size = min(remaining, self._chunks.size(is_first=not self._past))
        changes_at = self._decoder.changes_at
        if changes_at is not None and not self._past and self._count > changes_at:
            self._size = max(self._size, changes_at + 1)
        if remaining - self._size == 1:  # see `prefill_chunks.MIN_CHUNK`
            self._size = remaining
        if self._decoder.singly:
            self._size = 1
        end = self._past + self._size
        lengths = end if self._is_single else self._lengths
        if self._is_single:
            new = self._ids[:, self._past : end]
        else:
            new = self._ids[self._rows, lengths - 1][:, None]
        seen = self._seen[:, : self._count] if self._penalizes else self._seen[:, :1]
        feeds = self._model_feeds(self._past, lengths, new, self._mask[:, :end])
        return feeds | {self._decoder.sampling: self._sampling, self._decoder.seen: seen}

    def feeds_after(self) -> dict[str, np.ndarray] | None:
        """Return the inputs of the run after the next, except the ids, which the next computes.

        None if other inputs depend on those ids too, or if the next run is only a prompt chunk.
        """
        end = self._past + self._size
        if self._penalizes or end != self._count or end == self._decoder.changes_at:
            return None
        if self._count == self._capacity:
            self._resize(2 * self._count)
        lengths = end + 1 if self._is_single else self._lengths + 1
        mask = self._mask[:, : end + 1]
        if not self._at_end:  # the mask of the next run is read at the same time
            mask = mask.copy()
            mask[self._rows, self._lengths] = 1
        sampling = self._sampling
        if self._draws:
            sampling = sampling.copy()
            sampling[:, -1] = [sequence.random_number(1) for sequence in self._sequences]
        feeds = self._model_feeds(end, lengths, self._ids[:, :1], mask)
        del feeds[self._decoder.ids]
        return feeds | {self._decoder.sampling: sampling, self._decoder.seen: self._seen[:, :1]}

    def _model_feeds(
        self, past: int, lengths: Any, new: np.ndarray, mask: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the inputs of a run that reads the ids `new` after `past`, up to `lengths`."""
        decoder, is_single = self._decoder, self._is_single
        feeds = self._sources | {decoder.ids: new}
        if decoder.mask:
            feeds[decoder.mask] = mask
        if decoder.positions:
            port = self._types[decoder.positions]
            if len(port.shape or (0, 0)) == 1:
                feeds[decoder.positions] = self._positions[past:lengths]
            elif is_single:
                feeds[decoder.positions] = self._positions[None, past:lengths]
            else:
                feeds[decoder.positions] = self._positions[lengths - 1][:, None]
        counts = ((decoder.past_length, lengths - new.shape[1]), (decoder.total_length, lengths))
        for name, count in counts:
            if name:
                port = self._types[name]
                shape = np.shape(new)[: len(port.shape or ())]
                feeds[name] = np.full(shape, count if shape else np.max(count), port.dtype)
        if decoder.num_logits:
            port = self._types[decoder.num_logits]
            feeds[decoder.num_logits] = np.ones([1] * len(port.shape or ()), port.dtype)
        if decoder.is_next:
            feeds[decoder.is_next] = np.asarray([past > 0])
        return feeds

    def complete_run(self, seconds: float) -> bool:
        """Record the run and its time; return whether it computed new tokens.

        Otherwise it was a prompt chunk, and the next run reads more of the prompt.
        """
        if self._size == 1 and self._past:
            self._chunks.observe_step(seconds)
        else:
            self._chunks.observe_chunk(self._size, seconds)
        self._past += self._size
        return self._past == self._count

    def add(self, tokens: Sequence[int]) -> None:
        """Advance to the next step after one that computed `tokens`."""
        if self._count == self._capacity:
            self._resize(2 * self._count)
        if self._is_single:
            self._ids[0, self._count] = self._seen[0, self._count] = tokens[0]
        else:
            newest = self._rows, self._lengths
            self._ids[newest] = self._seen[newest] = tokens
            if not self._at_end:
                self._mask[newest] = 1
        self._lengths += 1
        self._count += 1
        self._set_random_numbers()

    def _set_random_numbers(self) -> None:
        """Update the random numbers of the sampling input, if a row draws."""
        if self._draws:
            self._sampling[:, -1] = [sequence.random_number() for sequence in self._sequences]

    def _resize(self, capacity: int) -> None:
        """Allocate arrays for `capacity` tokens and fill in the tokens so far."""
        decoder, lengths = self._decoder, self._lengths

        def dtype_of(name: str) -> Any:
            return self._types[name].dtype if name else np.int64

        # Padding repeats the row's first token, so that penalties apply to its own tokens only.
        ids = np.empty((len(self._rows), capacity), dtype_of(decoder.ids))
        for row, sequence in enumerate(self._sequences):
            ids[row] = sequence.ids[0]
            ids[row, : lengths[row]] = sequence.ids[: lengths[row]]
        positions, row_lengths = np.arange(capacity), lengths[:, None]
        self._ids, self._capacity = ids, capacity
        self._seen = ids.astype(np.int64, copy=False)
        padding = self._count - row_lengths
        is_token = positions >= padding if self._at_end else positions < row_lengths
        self._mask = is_token.astype(dtype_of(decoder.mask))
        self._positions = positions.astype(dtype_of(decoder.positions))
