"""Admission of sequences: their KV caches must fit the devices' memory at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from hetero.apps.generate.sequences import TokenSequence
from hetero.devices.errors import ArgumentError, DeadlineError
from hetero.devices.plugin.one_shot_event import OneShotEvent
from hetero.formatting import count_text


class CacheAdmission:
    """The sequences whose KV caches fit the memory together, at their largest lengths.

    A batch pads its sequences to the longest, so each counts as much as the longest of all. All
    sequences of a call are admitted at once: its next step needs a token of each.

    `num_sequences`: number of KV caches that fit, if each holds `length` tokens.
    `length`: None if only the number of sequences is limited.
    `timeout_s`: maximum wait of a call.
    """

    def __init__(self, num_sequences: int, length: int | None, timeout_s: float) -> None:
        self.num_sequences: Final = num_sequences
        self.capacity: Final = None if length is None else num_sequences * length
        self._timeout_s = timeout_s
        self._admitted: WeakSet[TokenSequence] = WeakSet()
        #: Wake the calls that wait.
        self._waiting: deque[Callable[[], object]] = deque()
        # Reentrant: a generation that is garbage-collected here calls `notify`.
        self._lock = threading.RLock()

    def max_length(self, num_sequences: int) -> int | None:
        """Return the largest length of each sequence of a call; None if it is unlimited.

        Raises ArgumentError: the memory is too small for this number of sequences.
        """
        if self.capacity is not None:
            return self.capacity // num_sequences
        if num_sequences > self.num_sequences:
            raise ArgumentError(
                f"{num_sequences} prompts: expected at most {self.num_sequences} at once, because "
                "of the devices' memory or MAX_SEQUENCES. Pass fewer prompts, or set more."
            )
        return None

    def wait(self, sequences: Sequence[TokenSequence]) -> None:
        """Wait until sequences are admitted.

        Raises DeadlineError: the others did not end in time.
        """
        until_s = time.monotonic() + self._timeout_s
        while not self._admit(sequences, (changed := OneShotEvent()).set):
            if not changed.wait(max(0.0, until_s - time.monotonic())):
                raise self._error(sequences)

    async def wait_async(self, sequences: Sequence[TokenSequence]) -> None:
        """Do what `wait` does, without blocking the event loop."""
        until_s = time.monotonic() + self._timeout_s
        while True:
            changed: Future[None] = Future()

            def notify(changed: Future[None] = changed) -> None:
                with suppress(InvalidStateError):  # its task was cancelled
                    changed.set_result(None)

            if self._admit(sequences, notify):
                return
            try:
                async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                    await asyncio.wrap_future(changed)
            except TimeoutError:
                raise self._error(sequences) from None

    def notify(self) -> None:
        """Wake the calls that wait, because a sequence has ended."""
        with self._lock:
            for _ in range(len(self._waiting)):
                self._waiting.popleft()()

    def _admit(self, sequences: Sequence[TokenSequence], notify: Callable[[], object]) -> bool:
        """Admit sequences if they fit; otherwise call `notify` once when another has ended."""
        if all(sequence.is_admitted for sequence in sequences):
            return True
        with self._lock:
            active = {s for s in self._admitted if not s.is_complete}
            active.update(s for s in sequences if not s.is_complete)
            if not self._fits(active):
                self._waiting.append(notify)
                return False
            self._admitted = WeakSet(active)
            for sequence in sequences:
                sequence.is_admitted = True
            return True

    def _fits(self, sequences: set[TokenSequence]) -> bool:
        if self.capacity is None:
            return len(sequences) <= self.num_sequences
        longest = max((sequence.max_length for sequence in sequences), default=0)
        return len(sequences) * longest <= self.capacity

    def _error(self, sequences: Sequence[TokenSequence]) -> DeadlineError:
        with self._lock:
            active = [s for s in self._admitted if not s.is_complete]
        limit = count_text(self.num_sequences, "sequence")
        if self.capacity is not None:
            limit = f"{self.capacity} tokens of KV caches"
        longest = max((s.max_length for s in (*active, *sequences)), default=0)
        waiting, running = (count_text(len(group), "sequence") for group in (sequences, active))
        return DeadlineError(
            f"{waiting} waited {self._timeout_s:g} s for memory: the devices hold {limit}; "
            f"running: {running} of up to {longest} tokens. Cancel some, generate fewer tokens, "
            "or set a larger DEVICE_MEMORY_NBYTES.",
        )
