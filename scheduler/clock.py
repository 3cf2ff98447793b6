"""The clock of an executor: one thread that looks after all that is due in its deployments.

Time, waits and threads of a client come from here, so that a clock of another kind can play them.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from math import inf

from hetero.scheduler.processes.threads import start_thread

_log = logging.getLogger(__name__)

#: Seconds that the thread may take to end.
_JOIN_S = 5.0


class Timer:
    """Something that is looked at when it is due.

    `look`: called then, in the clock's thread; returns when it is due next, None for never.
    """

    __slots__ = ("_clock", "due_s", "look")

    def __init__(self, clock: Clock, look: Callable[[], float | None]) -> None:
        self._clock = clock
        self.look = look
        self.due_s = inf

    def by(self, due_s: float) -> None:
        """See that it is looked at by `due_s`; one that is due sooner anyway stays so."""
        if due_s < self.due_s:
            self._clock.set(self, due_s)

    def close(self) -> None:
        """Have it never looked at again: the clock keeps nothing of it."""
        self._clock.forget(self)


class Clock:
    """Looks at timers when they are due, and does what others leave to it; nothing that waits."""

    def __init__(self, name: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._name = name
        self._due: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        #: What the thread does next; None has it look again when something is due.
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wakes_s = inf
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def timer(self, look: Callable[[], float | None]) -> Timer:
        """Return a timer that is not due yet."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = self.spawn(self._run, self._name)
        return Timer(self, look)

    def spawn(self, work: Callable[[], None], name: str) -> threading.Thread | None:
        """Have `work`, which may wait, done by a thread of its own; return that, if any.

        Raises OverloadedError: no thread can be started.
        """
        return start_thread(work, name)

    def event(self) -> threading.Event:
        """Return what a thread waits on for what another does."""
        return threading.Event()

    def set(self, timer: Timer, due_s: float) -> None:
        """Have a timer looked at by `due_s`, unless it is sooner anyway or was forgotten."""
        with self._lock:
            if due_s >= timer.due_s:
                return
            timer.due_s = due_s
            heapq.heappush(self._due, (due_s, next(self._count), timer))
            if due_s < self._wakes_s:
                self._wakes_s = due_s
                self._put(None)

    def forget(self, timer: Timer) -> None:
        """Drop a timer, which may be due long after its owner is gone; it is never set again."""
        with self._lock:
            timer.due_s = -inf
            self._due = [entry for entry in self._due if entry[2] is not timer]
            heapq.heapify(self._due)

    def later(self, order: Callable[[], None]) -> None:
        """Have the clock's thread do `order` now; may be called anywhere, in finalizers too."""
        self._put(order)

    def close(self) -> None:
        """Do what was left to do, and nothing more; again is harmless."""
        self._closed = True
        self._put(None)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=_JOIN_S)

    def _run(self) -> None:
        while not (self._closed and self._orders.empty()):
            next_s = self.next_look_s()
            left_s = None if next_s == inf else max(0.0, next_s - self.now_s())
            order: Callable[[], None] | None
            try:
                order = self._orders.get(timeout=left_s)
            except queue.Empty:
                order = self.look
            try:
                if order is not None:
                    order()
            except Exception:  # what is due later is still done
                _log.exception("%s: what was due could not be done", self._name)

    def _put(self, order: Callable[[], None] | None) -> None:
        """Have the clock's thread do something now; None: look anew when something is due."""
        self._orders.put(order)

    def next_look_s(self) -> float:
        """Return when the clock is to look next; whoever asks sees to it."""
        with self._lock:
            self._wakes_s = self._due[0][0] if self._due else inf
            return self._wakes_s

    def look(self) -> None:
        """Look at what is due."""
        now_s = self.now_s()
        while timer := self._take(now_s):
            try:
                due_s = timer.look()
            except Exception:  # the others are looked at all the same
                _log.exception("%s: what was due could not be done", self._name)
                continue
            if due_s is not None:
                timer.by(due_s)

    def _take(self, now_s: float) -> Timer | None:
        """Return a timer that is due, which then is not."""
        with self._lock:
            while self._due and self._due[0][0] <= now_s:
                due_s, _, timer = heapq.heappop(self._due)
                if timer.due_s == due_s:  # else it has been set anew
                    timer.due_s = inf
                    return timer
        return None
