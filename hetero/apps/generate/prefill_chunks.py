"""Chunked prefill: sizes of prompt chunks, so that decoding continues between them."""

from __future__ import annotations

import threading
from math import inf
from typing import Final

#: Minimum tokens of a chunk. ONNX Runtime rounds the products of a single token differently, with
#: 4-bit weights by up to 3 % of the logits, so that results would depend on the chunks.
MIN_CHUNK: Final = 2
#: Maximum tokens of a chunk.
MAX_CHUNK: Final = 128
#: Time of a chunk while other sequences decode: this many of their steps,
_CHUNK_STEPS: Final = 2.0
#: or this share of the time of their steps since the last chunk, if that is longer.
_CHUNK_SHARE: Final = 0.5


class ChunkSizer:
    """Size of the next prompt chunk, from the measured times of decode steps and chunks.

    All sequences of a compiled model share one. If others decoded since the last chunk, a chunk
    takes about half as long as their steps did, or two steps; otherwise it has the maximum size.
    Sizes are powers of two, because devices may compile for each shape.

    `max_size`: maximum tokens of a chunk; by default `MAX_CHUNK`.
    """

    def __init__(self, max_size: int | None = None) -> None:
        self._max_size: Final = max_size
        self._lock = threading.Lock()
        #: Moving average of the time of a decode step.
        self._step_s = 0.0
        #: Decode steps since the last chunk.
        self._num_steps = 0
        #: Size and time of the last chunk.
        self._last_chunk: tuple[int, float] | None = None
        #: Time per token of the last chunk.
        self._token_s = inf

    @property
    def max_size(self) -> int:
        """Maximum tokens of a chunk."""
        return self._max_size or MAX_CHUNK

    def size(self, is_first: bool) -> int:
        """Return the number of tokens of the next chunk, which `is_first` of its prompt or not."""
        with self._lock:
            others, self._num_steps = self._num_steps, 0
            if not others:
                return self.max_size
            size, seconds = self._last_chunk or (1, self._step_s)
            target_s = self._step_s * (
                _CHUNK_STEPS if is_first else max(_CHUNK_STEPS, _CHUNK_SHARE * others)
            )
            target = size * target_s / seconds if seconds > 0 else self.max_size
            return 1 << (min(max(int(target), MIN_CHUNK), self.max_size).bit_length() - 1)

    def observe_step(self, seconds: float) -> None:
        """Record the time of a decode step."""
        with self._lock:
            self._step_s = (3 * self._step_s + seconds) / 4 if self._step_s else seconds
            self._num_steps += 1

    def observe_end(self) -> None:
        """Record the end of a sequence; remaining sequences count from their next step."""
        with self._lock:
            self._num_steps = 0

    def observe_chunk(self, size: int, seconds: float) -> None:
        """Record the time of a chunk."""
        with self._lock:
            self._last_chunk = size, seconds
            if size >= MIN_CHUNK:
                self._token_s = seconds / size

    def prompt_s(self, size: int) -> float:
        """Estimate the run time of a prompt; infinite before the first measurement."""
        return size * self._token_s
