"""Who receives what devices send to a client: the caller that waits for it, or a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from hetero.scheduler.channels.channel import PumpedChannel
from hetero.scheduler.processes.threads import start_thread
from hetero.scheduler.ray.signals import LateInterrupt

_log = logging.getLogger(__name__)

#: Seconds after which a wait for messages is begun again.
_LOOK_S: Final = 0.5


class Reception:
    """Hands in what comes by a client's channel.

    A caller whose request is the only one in flight receives its answer itself: to wake another
    thread, and to be woken by it, would take longer than most of the way. Else a thread does it.

    `num_awaited`: returns how many attempts have been sent that are not answered.
    """

    def __init__(self, channel: PumpedChannel, num_awaited: Callable[[], int]) -> None:
        self._channel = channel
        self._num_awaited = num_awaited
        self._lock = threading.Lock()
        #: Whether a caller receives, and whether the thread is to, or waits till it is.
        self._is_helped = False
        self._is_due = threading.Event()
        self._is_parked = False
        self._closed = False
        self._thread = start_thread(self._receive, "receiver")

    def expect(self) -> None:
        """See that what is awaited is received; once it has been counted."""
        if not self._is_due.is_set():
            with self._lock:
                if not self._is_helped:  # who helps looks as it leaves
                    self._is_due.set()

    def receive_until(self, is_ended: Callable[[], bool]) -> None:
        """Receive in the calling thread until `is_ended`, if nobody else waits for anything."""
        # What is received may be another caller's: it is not dropped half-way.
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
                while not (interrupt.came or is_ended()):
                    self._pump()
            finally:
                with self._lock:
                    self._is_helped = False
                    if self._num_awaited() or self._closed:
                        self._is_due.set()

    def look(self) -> None:
        """Have a caller that receives look whether its request has ended."""
        if self._is_helped:
            self._channel.wake()

    def close(self) -> None:
        """Receive nothing more."""
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
        except Exception:  # one request's trouble must not end the others' answers
            _log.exception("a message could not be taken in")
