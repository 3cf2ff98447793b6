"""Backpressure by bytes: the counter of an executor's deployments, and estimates per request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.types.request_record import RequestRecord

#: Decay of the maximum output size, per request of similar input size.
_FADING: Final = 7 / 8


class BytesInFlight:
    """Counter of bytes in flight, shared by the state machines of several deployments."""

    def __init__(self) -> None:
        #: Bytes of admitted requests, and the number of running attempts.
        self.nbytes = self.num_running = 0
        self._lock = threading.Lock()
        #: Callbacks for the next decrease.
        self._waiting: list[Callable[[], None]] = []

    def count(self, request: RequestRecord, nbytes: int, num_running: int) -> None:
        """Count a request with these bytes and attempts, instead of its previous ones.

        A repeated call changes nothing, so that a change that Ctrl-C interrupted can be repeated.
        """
        callbacks: list[Callable[[], None]] = []
        with self._lock:
            is_decrease = nbytes < request.counted_nbytes
            # No call between these lines: Ctrl-C comes before or after them.
            self.nbytes += nbytes - request.counted_nbytes
            self.num_running += num_running - request.counted_attempts
            request.counted_nbytes, request.counted_attempts = nbytes, num_running
            if is_decrease and self._waiting:
                callbacks, self._waiting = self._waiting, callbacks
        for call in callbacks:
            call()

    def begin_direct(self, run: DirectRun) -> None:
        """Add a direct run; `run.is_counted` stays correct even if Ctrl-C interrupts."""
        with self._lock:
            self.nbytes += run.nbytes
            self.num_running += 1
            run.is_counted = True

    def end_direct(self, run: DirectRun) -> None:
        """Subtract a direct run."""
        with self._lock:
            self.nbytes -= run.nbytes
            self.num_running -= 1
            run.is_counted = False
            if not self._waiting:
                return
            callbacks, self._waiting = self._waiting, []
        for call in callbacks:
            call()

    def when_fewer(self, call: Callable[[], None]) -> None:
        """Call `call` once at the next decrease, in the thread that causes it."""
        with self._lock:
            self._waiting.append(call)


class ExpectedBytes:
    """Estimate of the output bytes of a request, learned from earlier requests."""

    def __init__(self) -> None:
        #: Bit length of a request's input bytes -> approximate maximum of its output bytes.
        self._output_nbytes: dict[int, int] = {}

    def record(self, input_nbytes: int, output_nbytes: int) -> None:
        """Record the output bytes of a request; earlier maxima decay."""
        bits = input_nbytes.bit_length()
        earlier_nbytes = self._output_nbytes.get(bits)
        if output_nbytes != earlier_nbytes:
            self._output_nbytes[bits] = max(output_nbytes, int((earlier_nbytes or 0) * _FADING))

    def output_nbytes(self, input_nbytes: int) -> int:
        """Return the expected output bytes: those of the nearest recorded size, not above this."""
        bits = input_nbytes.bit_length()
        if bits in self._output_nbytes:
            return self._output_nbytes[bits]
        smaller = [recorded_bits for recorded_bits in self._output_nbytes if recorded_bits < bits]
        return self._output_nbytes[max(smaller)] if smaller else 0
