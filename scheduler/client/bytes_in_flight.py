"""Bytes in flight: the count that an executor's deployments share, and what a request may add."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from hetero.scheduler.client.direct_run import DirectRun

#: What the most that requests of a size have made shrinks to with each later one.
_FADING: Final = 7 / 8


class BytesInFlight:
    """A count of the bytes in flight, for all machines that share it."""

    def __init__(self) -> None:
        #: Of admitted requests; and how many requests' attempts are awaited.
        self.nbytes = self.num_running = 0
        self._lock = threading.Lock()
        #: Called once when there are fewer.
        self._waiting: list[Callable[[], None]] = []

    def add(self, nbytes: int, num_running: int = 0) -> None:
        """Count so many bytes, and attempts, more or less."""
        told: list[Callable[[], None]] = []
        with self._lock:
            self.nbytes += nbytes
            self.num_running += num_running
            if nbytes < 0 and self._waiting:
                told, self._waiting = self._waiting, told
        for call in told:
            call()

    def begin_direct(self, run: DirectRun) -> None:
        """Count a direct run; wherever Ctrl-C comes, `run.is_counted` says whether it was."""
        with self._lock:
            self.nbytes += run.nbytes
            self.num_running += 1
            run.is_counted = True

    def end_direct(self, run: DirectRun) -> None:
        """Count a direct run no longer."""
        waiting: list[Callable[[], None]] = []
        with self._lock:
            self.nbytes -= run.nbytes
            self.num_running -= 1
            run.is_counted = False
            if self._waiting:
                waiting, self._waiting = self._waiting, waiting
        for call in waiting:
            call()

    def when_fewer(self, call: Callable[[], None]) -> None:
        """Have `call` called the next time that bytes are given back, in that thread."""
        with self._lock:
            self._waiting.append(call)


class ExpectedBytes:
    """What a deployment's stages may make of a request, by what they made of others."""

    def __init__(self) -> None:
        #: Number of bits of a request's input bytes -> about the most that its stages made.
        self._made_nbytes: dict[int, int] = {}

    def learn(self, input_nbytes: int, made_nbytes: int) -> None:
        """Take in what the stages made of a request; older ones fade."""
        bits = input_nbytes.bit_length()
        faded = int(self._made_nbytes.get(bits, 0) * _FADING)
        self._made_nbytes[bits] = max(made_nbytes, faded)

    def of(self, input_nbytes: int) -> int:
        """Return what stages may make of so much: as of the nearest size seen, up to this one."""
        bits = input_nbytes.bit_length()
        if bits in self._made_nbytes:
            return self._made_nbytes[bits]
        smaller = [seen for seen in self._made_nbytes if seen < bits]
        return self._made_nbytes[max(smaller)] if smaller else 0
