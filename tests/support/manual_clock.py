"""Clock of the scheduler whose time passes only in waits and on demand."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hetero.scheduler.clock import Clock, Timer


class ManualClock(Clock):
    """Clock without a thread: `pass_s` runs the timers and calls that are due."""

    def __init__(self, start_s: float = 100.0) -> None:
        self.time_s = start_s
        super().__init__("manual", lambda: self.time_s)
        #: Durations of all waits.
        self.waits_s: list[float] = []

    def timer(self, look: Callable[[], float | None]) -> Timer:
        """Create a timer that is not due."""
        return Timer(self, look)

    def spawn(self, work: Callable[[], None], name: str) -> None:
        """Run `work` at once, instead of in a thread."""
        work()

    def event(self) -> threading.Event:
        """Return an event; waiting for it makes the time pass."""
        clock = self

        class Event(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert timeout is not None
                clock.waits_s.append(timeout)
                clock.pass_s(timeout)
                return self.is_set()

        return Event()

    def pass_s(self, seconds: float) -> None:
        """Let time pass; run the calls and timers that are due, at their times."""
        end_s = self.time_s + seconds
        while True:
            while not self._orders.empty():
                if (order := self._orders.get()) is not None:
                    order()
            next_s = self.next_look_s()
            if next_s > end_s:
                break
            self.time_s = max(self.time_s, next_s)
            self.look()
        self.time_s = end_s
