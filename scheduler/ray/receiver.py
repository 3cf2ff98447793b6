"""Receiver of a client's messages, which runs in the waiting caller or in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hetero.scheduler.channels.channel import PumpedChannel
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.ray.signals import LateInterrupt

_log = logging.getLogger(__name__)

#: Seconds that one wait for messages lasts at most.
_LOOK_S: Final = 0.5


class MessageReceiver:
    """Receiver of the messages on a client's channel.

    A caller whose request is the only one in flight receives its result itself, because a switch
    to another thread and back would take most of the latency. Otherwise a thread receives.

    `num_awaited`: returns the number of attempts in flight.
    """

    def __init__(self, channel: PumpedChannel, num_awaited: Callable[[], int]) -> None:
        self._channel = channel
        self._num_awaited = num_awaited
        self._lock = threading.Lock()
        #: Whether a caller receives; whether the thread has to receive; whether it is waiting.
        self._is_helped = False
        self._is_due = threading.Event()
        self._is_parked = False
        self._closed = False
        self._thread = start_thread(self._receive, "receiver")

    def expect(self) -> None:
        """Ensure that somebody receives the result of an attempt that was just counted."""
        if not self._is_due.is_set():
            with self._lock:
                if not self._is_helped:  # a receiving caller wakes the thread as it leaves
                    self._is_due.set()

    def receive_until(self, is_ended: Callable[[], bool]) -> None:
        """Receive in the calling thread until `is_ended`, if no other request is in flight."""
        # Ctrl-C is deferred: a message that is being handled may belong to another caller.
        with LateInterrupt(self._channel.wake) as interrupt:
            with self._lock:
                if helps := not (self._is_helped or self._closed) and self._num_awaited() <= 1:
                    self._is_helped = True
                    if self._is_due.is_set():
                        self._is_due.clear()
                    is_parked = self._is_parked
            if not helps:
                self.expect()
                return
            if not is_parked:
                self._channel.wake()
            try:
                while not (interrupt.signal_arguments or is_ended()):
                    self._pump()
            finally:
                with self._lock:
                    self._is_helped = False
                    if self._num_awaited() or self._closed:
                        self._is_due.set()

    def check_end(self) -> None:
        """Make a receiving caller check whether its request has ended."""
        if self._is_helped:
            self._channel.wake()

    def close(self) -> None:
        """Stop receiving."""
        with self._lock:
            self._closed = True
            self._is_due.set()
        self._channel.wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)

    def _receive(self) -> None:
        while not self._closed:
            with self._lock:
                self._is_parked = not self._is_due.is_set()
            if self._is_parked:
                self._is_due.wait()
            else:
                self._pump()

    def _pump(self) -> None:
        try:
            self._channel.pump(_LOOK_S)
        except Exception:  # an error of one request must not stop the others
            _log.exception("a message could not be handled")
