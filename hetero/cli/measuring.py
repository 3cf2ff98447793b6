"""What ``bench`` measures: requests in flight, their latency, and where each spent its time."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from devices.request.answer import Answer
from devices.request.promise import Promised
from hetero.compile.compiled_model import CompiledModel
from hetero.observe.in_flight import keep_in_flight
from hetero.observe.stage_times import StageTimes, median_of
from hetero.report.profile import wire_links
from scheduler import Submission

PERCENTILES: Final = (50, 90, 95, 99)


def measure(
    compiled: CompiledModel,
    values: Mapping[str, Any],
    jobs: int,
    requests: int | None,
    seconds: float,
) -> dict[str, Any]:
    """Keep `jobs` requests in flight until `requests` are done or `seconds` are over.

    Returns: count, seconds, requests a second, latency percentiles in seconds; for each stage the
        median time that it waited and ran; for each pair of stages with wires the median time from
        the end of the one to the start of the other; how many requests were lost and run again,
        and how long the longest of them took. ``interrupted`` says that Ctrl-C ended it.
    Raises KeyboardInterrupt: Ctrl-C came before any request was done.
    """
    found = _Found(wire_links(compiled))
    start_s = time.monotonic()

    def submit() -> Promised[Answer]:
        began_s = time.monotonic()
        made = compiled.submit(values)
        # Before the callback that counts it as done: no request is looked at too late.
        made.future.add_done_callback(lambda _: found.look_at(made, time.monotonic() - began_s))
        return made.future

    def more(sent: int) -> bool:
        late = sent > 0 and time.monotonic() - start_s >= seconds
        return sent < (requests or 2**63) and not late

    interrupted = False
    try:
        keep_in_flight(submit, jobs, more, found.add)
    except KeyboardInterrupt:
        if not found.latencies:
            raise
        interrupted = True
    return {**found.summary(time.monotonic() - start_s), "interrupted": interrupted}


class _Found:
    """Latencies and stage times of requests, from any thread."""

    def __init__(self, links: Sequence[tuple[int, int]]) -> None:
        self.latencies: list[float] = []
        self._stages = StageTimes(links)
        self._again_s: list[float] = []

    def look_at(self, made: Submission, took_s: float) -> None:
        if any(line.attempt > 1 for line in made.story()):
            self._again_s.append(took_s)

    def add(self, began_s: float, ended_s: float, answer: Answer) -> None:
        self.latencies.append(ended_s - began_s)
        self._stages.add(began_s, ended_s, answer.stage_runs)

    def summary(self, elapsed_s: float) -> dict[str, Any]:
        found = self._stages
        cuts = np.percentile(np.array(self.latencies), PERCENTILES)
        return {
            "requests": len(self.latencies),
            "elapsed_s": elapsed_s,
            "throughput_per_s": len(self.latencies) / elapsed_s,
            "latency_s": {str(p): float(v) for p, v in zip(PERCENTILES, cuts, strict=True)},
            "run_again": {
                "requests": len(self._again_s),
                "longest_s": max(self._again_s, default=0.0),
            },
            "stages": [
                {
                    "stage": stage,
                    "device": device,
                    "run_s": median_of(run.run_s for run in runs.values()),
                    "wait_s": median_of(found.waits_s[stage, device]),
                    "utilisation": sum(run.run_s for run in runs.values()) / elapsed_s,
                }
                for (stage, device), runs in sorted(found.runs.items())
            ],
            "wires": [
                {"producer": pair[0], "consumer": pair[1], "gap_s": median_of(times)}
                for pair, times in sorted(found.gaps_s.items())
            ],
        }
