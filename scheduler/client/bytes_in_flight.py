"""Backpressure by bytes: the counter of an executor's deployments, and estimates per request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from hetero.scheduler.types.request_record import RequestRecord

#: Decay of the maximum output size, per request of similar input size.
_FADING: Final = 7 / 8


class BytesInFlight:
    """Counter of bytes in flight, shared by the state machines of several deployments.

    The caller of each method holds `lock`, which also guards these state machines.
    """

    def __init__(self) -> None:
        #: Bytes of admitted requests, and the number of running attempts.
        self.nbytes = self.num_running = 0
        self.lock = threading.Lock()
        #: Callbacks for the next decrease.
        self.waiting: list[Callable[[], None]] = []

    def count(self, request: RequestRecord, nbytes: int, num_running: int) -> None:
        """Count a request with these bytes and attempts, instead of its previous ones.

        A repeated call changes nothing, so that a change that Ctrl-C interrupted can be repeated.
        """
        is_decrease = nbytes < request.counted_nbytes
        # No call between these lines: Ctrl-C comes before or after them.
        self.nbytes += nbytes - request.counted_nbytes
        self.num_running += num_running - request.counted_attempts
        request.counted_nbytes, request.counted_attempts = nbytes, num_running
        if is_decrease and self.waiting:
            self.notify()

    def when_fewer(self, call: Callable[[], None]) -> None:
        """Call `call` once at the next decrease, in the thread that causes it, with the lock."""
        self.waiting.append(call)

    def notify(self) -> None:
        """Call the callbacks, after a decrease."""
        callbacks, self.waiting = self.waiting, []
        for call in callbacks:
            call()


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
