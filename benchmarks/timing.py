"""Latency and rate of ways to do the same thing, measured by turns so that all meet one machine."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Starts a request; what it returns waits for the answer and gives it.
Submit = Callable[[], Callable[[], Any]]
#: A way is warm after so many requests or seconds, whatever is first.
_WARM_REQUESTS, _WARM_S = 20, 0.5
#: How long a way runs untimed when its turn comes: threads of the one before spin on for as long.
_SETTLE_S = 0.1


def at_once(call: Callable[[], Any]) -> Submit:
    """Return a way that has its answer once it is submitted, as a call gives it."""

    def submit() -> Callable[[], Any]:
        answer = call()
        return lambda: answer

    return submit


@dataclass(slots=True)
class Timing:
    """What was measured of one way."""

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    #: Answers after a turn's first window of them, and their time, before its last window.
    steady_answers: int = 0
    steady_s: float = 0.0

    @property
    def p50_ms(self) -> float:
        """The median latency."""
        return statistics.median(self.latencies_s) * 1e3

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies_s) / self.seconds

    @property
    def steady_rate(self) -> float:
        """Requests a second while the pipeline is full: neither being filled nor drained."""
        return self.steady_answers / self.steady_s


def measure(
    submit: Submit, window: int, seconds: float, timing: Timing, *, windows: int = 1
) -> None:
    """Keep `window` requests in flight, the oldest awaited first; `windows` times that at least."""
    waiting: deque[tuple[float, Callable[[], Any]]] = deque()
    before = len(timing.latencies_s)
    submitted, full_s = 0, 0.0
    start_s = now_s = time.perf_counter()
    while now_s - start_s < seconds or submitted < window * windows:
        waiting.append((now_s, submit()))
        submitted += 1
        if len(waiting) == window:
            _finish(waiting, timing)
            if len(timing.latencies_s) - before == window:
                full_s = time.perf_counter()
        now_s = time.perf_counter()
    if full_s:
        timing.steady_answers += len(timing.latencies_s) - before - window
        timing.steady_s += now_s - full_s
    while waiting:
        _finish(waiting, timing)
    timing.seconds += time.perf_counter() - start_s


def by_turns(
    ways: Mapping[str, Submit], window: int, seconds: float, rounds: int = 3, windows: int = 1
) -> dict[str, Timing]:
    """Warm each way up, then measure each for `seconds` in all, in `rounds` turns."""
    for submit in ways.values():
        end_s = time.perf_counter() + _WARM_S
        for _ in range(_WARM_REQUESTS):
            submit()()
            if time.perf_counter() > end_s:
                break
    timings = {name: Timing() for name in ways}
    for _ in range(rounds):
        for name, submit in ways.items():
            measure(submit, window, _SETTLE_S, Timing())
            measure(submit, window, seconds / rounds, timings[name], windows=windows)
    return timings


def _finish(waiting: deque[tuple[float, Callable[[], Any]]], timing: Timing) -> None:
    began_s, wait = waiting.popleft()
    wait()
    timing.latencies_s.append(time.perf_counter() - began_s)
