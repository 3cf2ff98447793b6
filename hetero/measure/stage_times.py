"""What requests tell of their stages: runs, waits, and the ways of tensors between them."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from hetero.devices.request.response import StageTiming


class StageTimes:
    """Collects the runs of one model's requests, from any thread; times are in seconds.

    `links`: the pairs of stages that tensors go between.
    """

    def __init__(self, links: Sequence[tuple[int, int]]) -> None:
        self._links = links
        self._makers: defaultdict[int, list[int]] = defaultdict(list)
        for producer, consumer in links:
            self._makers[consumer].append(producer)
        self._lock = threading.Lock()
        #: Stage, device -> its runs by start and end: a batch's is told with each of its requests.
        self.runs: Final[dict[tuple[int, str], dict[tuple[float, float], StageTiming]]] = {}
        #: Stage, device -> from when its last input was made until it ran.
        self.waits_s: Final[defaultdict[tuple[int, str], list[float]]] = defaultdict(list)
        #: Stage -> the same without the time in its device's queue.
        self.on_way_s: Final[defaultdict[int, list[float]]] = defaultdict(list)
        #: Pair of stages -> from the end of the one to the start of the other.
        self.gaps_s: Final[defaultdict[tuple[int, int], list[float]]] = defaultdict(list)

    def add(self, sent_s: float, ended_s: float, runs: Iterable[StageTiming]) -> None:
        """Take in a request that was sent to its first stages and answered at these times.

        Another machine's clock may have another zero: nothing but the length of a run is taken from
        one that does not lie within the request.
        """
        by_stage = {run.stage: run for run in runs}
        known = {
            stage: run
            for stage, run in by_stage.items()
            if sent_s <= run.started_s <= run.ended_s <= ended_s
        }
        with self._lock:
            for stage, run in by_stage.items():
                self.runs.setdefault((stage, run.device), {})[run.started_s, run.ended_s] = run
            for producer, consumer in self._links:
                if producer in known and consumer in known:
                    gap_s = known[consumer].started_s - known[producer].ended_s
                    self.gaps_s[producer, consumer].append(gap_s)
            for stage, run in known.items():
                makers = self._makers[stage]
                if known.keys() >= set(makers):
                    made_s = max((known[maker].ended_s for maker in makers), default=sent_s)
                    waited_s = run.started_s - made_s
                    self.waits_s[stage, run.device].append(waited_s)
                    self.on_way_s[stage].append(max(0.0, waited_s - run.queued_s))

    def runs_of(self, stage: int) -> list[StageTiming]:
        """Return a stage's runs, on whatever device."""
        return [run for (n, _), runs in self.runs.items() if n == stage for run in runs.values()]


def median_of(times: Iterable[float]) -> float | None:
    """Return the median; None of nothing."""
    known = list(times)
    return median(known) if known else None
