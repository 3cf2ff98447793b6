"""Latency and rate of several variants of the same task, measured in turns."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Starts a request and returns a function that waits for its result.
Submit = Callable[[], Callable[[], Any]]
#: Warm-up of a variant: this number of requests or seconds, whichever is first.
_WARM_REQUESTS, _WARM_S = 20, 0.5
#: Untimed run at the start of a turn, while threads of the previous variant still spin.
_SETTLE_S = 0.1


def at_once(call: Callable[[], Any]) -> Submit:
    """Return a submit function for a call that returns its result directly."""

    def submit() -> Callable[[], Any]:
        answer = call()
        return lambda: answer

    return submit


@dataclass(slots=True)
class Timing:
    """Measurements of one variant."""

    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    #: Number and duration of results between a turn's first and last window.
    steady_answers: int = 0
    steady_s: float = 0.0

    @property
    def p50_ms(self) -> float:
        """The median latency."""
        return statistics.median(self.latencies_s) * 1e3

    @property
    def rate(self) -> float:
        """Requests per second."""
        return len(self.latencies_s) / self.seconds

    @property
    def steady_rate(self) -> float:
        """Requests per second while the pipeline is full."""
        return self.steady_answers / self.steady_s


def measure(
    submit: Submit, window: int, seconds: float, timing: Timing, *, windows: int = 1
) -> None:
    """Keep `window` requests in flight and await the oldest, for at least `windows` windows."""
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
    """Warm up each variant, then measure each for `seconds` in total, in `rounds` turns."""
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
