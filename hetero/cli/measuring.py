"""What ``bench`` measures: requests in flight, their latency, and where each spent its time."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from devices.request.answer import Answer, StageRun
from hetero.compile.compiled_model import CompiledModel
from hetero.observe.in_flight import keep_in_flight
from hetero.report.profile import wire_links

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
        the end of the one to the start of the other. ``interrupted`` says that Ctrl-C ended it.
    Raises KeyboardInterrupt: Ctrl-C came before any request was done.
    """
    found = _Found(wire_links(compiled))
    start_s = time.monotonic()

    def more(sent: int) -> bool:
        late = sent > 0 and time.monotonic() - start_s >= seconds
        return sent < (requests or 2**63) and not late

    interrupted = False
    try:
        keep_in_flight(lambda: compiled.submit(values).future, jobs, more, found.add)
    except KeyboardInterrupt:
        if not found.latencies:
            raise
        interrupted = True
    return {**found.summary(time.monotonic() - start_s), "interrupted": interrupted}


class _Found:
    """What requests came to, from any thread."""

    def __init__(self, links: Sequence[tuple[int, int]]) -> None:
        self.latencies: list[float] = []
        self._links = links
        self._lock = threading.Lock()
        #: Seconds by start and end: the run of a batch is told with each of its requests.
        self._runs: dict[tuple[int, str], dict[tuple[float, float], float]] = defaultdict(dict)
        self._waits: dict[tuple[int, str], list[float]] = defaultdict(list)
        self._gaps: dict[tuple[int, int], list[float]] = defaultdict(list)

    def add(self, began_s: float, ended_s: float, answer: Answer) -> None:
        with self._lock:
            self.latencies.append(ended_s - began_s)
            runs = {run.stage: run for run in answer.stage_runs}
            for run in runs.values():
                self._runs[run.stage, run.device][run.started_s, run.ended_s] = run.run_s
            # Another machine's clock has another zero: its times do not lie within the request.
            known = {
                stage: run
                for stage, run in runs.items()
                if began_s <= run.started_s <= run.ended_s <= ended_s
            }
            self._add_waits(began_s, known)

    def _add_waits(self, began_s: float, runs: Mapping[int, StageRun]) -> None:
        ready_s: dict[int, float] = {}
        for producer, consumer in self._links:
            if producer in runs and consumer in runs:
                done_s = runs[producer].ended_s
                self._gaps[producer, consumer].append(runs[consumer].started_s - done_s)
                ready_s[consumer] = max(done_s, ready_s.get(consumer, began_s))
        for stage, run in runs.items():
            waited_s = run.started_s - ready_s.get(stage, began_s)
            self._waits[stage, run.device].append(waited_s)

    def summary(self, elapsed_s: float) -> dict[str, Any]:
        with self._lock:
            cuts = np.percentile(np.array(self.latencies), PERCENTILES)
            return {
                "requests": len(self.latencies),
                "elapsed_s": elapsed_s,
                "throughput_per_s": len(self.latencies) / elapsed_s,
                "latency_s": {str(p): float(v) for p, v in zip(PERCENTILES, cuts, strict=True)},
                "stages": [
                    {
                        "stage": stage,
                        "device": device,
                        "run_s": float(np.median(list(times.values()))),
                        "wait_s": _median(self._waits.get((stage, device))),
                        "utilisation": sum(times.values()) / elapsed_s,
                    }
                    for (stage, device), times in sorted(self._runs.items())
                ],
                "wires": [
                    {"producer": pair[0], "consumer": pair[1], "gap_s": _median(times)}
                    for pair, times in sorted(self._gaps.items())
                ],
            }


def _median(times: Sequence[float] | None) -> float | None:
    return float(np.median(times)) if times else None
