"""Executor clock: one thread that runs the timers of all deployments.

A client takes its time, waits and threads from the clock, so that a simulator can replace them.
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

#: Time limit for the thread to end, in seconds.
_JOIN_S = 5.0


class Timer:
    """Timer of a clock.

    `look`: called in the clock's thread when the timer is due; returns the next due time, or None
        to stop the timer.
    """

    __slots__ = ("_clock", "due_s", "look")

    def __init__(self, clock: Clock, look: Callable[[], float | None]) -> None:
        self._clock = clock
        self.look = look
        self.due_s = inf

    def make_due_by(self, due_s: float) -> None:
        """Make the timer due at `due_s` or earlier; an earlier due time stays."""
        if due_s < self.due_s:
            self._clock.set(self, due_s)

    def close(self) -> None:
        """Stop the timer for good, and remove it from the clock."""
        self._clock.forget(self)


class Clock:
    """Clock whose thread runs timers and short calls from other threads; none of them may block."""

    def __init__(self, name: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self.now_s = now_s
        self._name = name
        self._due: list[tuple[float, int, Timer]] = []
        self._count = itertools.count()
        #: Calls for the thread; None makes it compute its next wake-up again.
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._wakes_s = inf
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def timer(self, look: Callable[[], float | None]) -> Timer:
        """Create a timer that is not due."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = self.spawn(self._run, self._name)
        return Timer(self, look)

    def spawn(self, work: Callable[[], None], name: str) -> threading.Thread | None:
        """Run `work`, which may block, in a new thread; return the thread, if there is one.

        Raises OverloadedError: no thread can be started.
        """
        return start_thread(work, name)

    def event(self) -> threading.Event:
        """Create an event that threads can wait for."""
        return threading.Event()

    def set(self, timer: Timer, due_s: float) -> None:
        """Make a timer due at `due_s`, unless it is due earlier or was removed."""
        with self._lock:
            if due_s >= timer.due_s:
                return
            timer.due_s = due_s
            heapq.heappush(self._due, (due_s, next(self._count), timer))
            if due_s < self._wakes_s:
                self._wakes_s = due_s
                self._enqueue(None)

    def forget(self, timer: Timer) -> None:
        """Remove a timer for good; otherwise it could outlive its owner."""
        with self._lock:
            timer.due_s = -inf
            self._due = [entry for entry in self._due if entry[2] is not timer]
            heapq.heapify(self._due)

    def call_soon(self, order: Callable[[], None]) -> None:
        """Call `order` in the clock's thread, as soon as possible; also safe in finalizers."""
        self._enqueue(order)

    def close(self) -> None:
        """Run the remaining calls and stop; idempotent."""
        self._closed = True
        self._enqueue(None)
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
            except Exception:  # later timers and calls still have to run
                _log.exception("%s: a timer or call failed", self._name)
            order = None  # an idle clock would keep what its last call refers to, such as tensors

    def _enqueue(self, order: Callable[[], None] | None) -> None:
        """Queue a call for the clock's thread; None: compute the next wake-up again."""
        self._orders.put(order)

    def next_look_s(self) -> float:
        """Return the next wake-up time; the caller has to wake the clock then."""
        with self._lock:
            self._wakes_s = self._due[0][0] if self._due else inf
            return self._wakes_s

    def look(self) -> None:
        """Run all timers that are due."""
        now_s = self.now_s()
        while timer := self._next_due_timer(now_s):
            try:
                due_s = timer.look()
            except Exception:  # the other timers still have to run
                _log.exception("%s: a timer or call failed", self._name)
                continue
            if due_s is not None:
                timer.make_due_by(due_s)

    def _next_due_timer(self, now_s: float) -> Timer | None:
        """Remove and return a timer that is due; None without one."""
        with self._lock:
            while self._due and self._due[0][0] <= now_s:
                due_s, _, timer = heapq.heappop(self._due)
                if timer.due_s == due_s:  # otherwise it was set to another time
                    timer.due_s = inf
                    return timer
        return None
