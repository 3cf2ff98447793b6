"""Per-stage statistics of requests: run, wait and transfer times."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from hetero.devices.request.response import StageTiming


class StageTimes:
    """Run, wait and transfer times of one model's stages, in seconds; safe for threads.

    `links`: the (producer, consumer) pairs of stages that exchange tensors.
    """

    def __init__(self, links: Sequence[tuple[int, int]]) -> None:
        self._links = links
        self._producers: defaultdict[int, list[int]] = defaultdict(list)
        for producer, consumer in links:
            self._producers[consumer].append(producer)
        self._lock = threading.Lock()
        #: Stage, device -> runs by start and end; each request of a batch reports the same run.
        self.runs: Final[dict[tuple[int, str], dict[tuple[float, float], StageTiming]]] = {}
        #: Stage, device -> times from the end of the last producer to the start of the run.
        self.waits_s: Final[defaultdict[tuple[int, str], list[float]]] = defaultdict(list)
        #: Stage -> these times without the wait in the device's queue.
        self.transfers_s: Final[defaultdict[int, list[float]]] = defaultdict(list)
        #: Pair of stages -> times from the end of the producer to the start of the consumer.
        self.gaps_s: Final[defaultdict[tuple[int, int], list[float]]] = defaultdict(list)

    def add(self, sent_s: float, ended_s: float, runs: Iterable[StageTiming]) -> None:
        """Add the runs of a request that was sent and answered at these times.

        Other machines' clocks have other origins. Of a run that does not lie within the request,
        only the duration counts.
        """
        by_stage = {run.stage: run for run in runs}
        comparable = {
            stage: run
            for stage, run in by_stage.items()
            if sent_s <= run.started_s <= run.ended_s <= ended_s
        }
        with self._lock:
            for stage, run in by_stage.items():
                self.runs.setdefault((stage, run.device), {})[run.started_s, run.ended_s] = run
            for producer, consumer in self._links:
                if producer in comparable and consumer in comparable:
                    gap_s = comparable[consumer].started_s - comparable[producer].ended_s
                    self.gaps_s[producer, consumer].append(gap_s)
            for stage, run in comparable.items():
                producers = self._producers[stage]
                if comparable.keys() >= set(producers):
                    ready_s = max((comparable[p].ended_s for p in producers), default=sent_s)
                    wait_s = run.started_s - ready_s
                    self.waits_s[stage, run.device].append(wait_s)
                    self.transfers_s[stage].append(max(0.0, wait_s - run.queued_s))

    def runs_of(self, stage: int) -> list[StageTiming]:
        """Return a stage's runs on all devices."""
        return [run for (n, _), runs in self.runs.items() if n == stage for run in runs.values()]


def median_of(times: Iterable[float]) -> float | None:
    """Return the median, or None if there are no times."""
    values = list(times)
    return median(values) if values else None
