"""Times of executed nodes over the profiled runs of a model's requests."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class NodeTimes:
    """Seconds by executed node, averaged; runs may be added from any thread."""

    def __init__(self) -> None:
        #: Executed node -> (seconds in all, runs).
        self._sums: dict[str, tuple[float, int]] = {}
        self._lock = threading.Lock()

    def add(self, times_s: Mapping[str, float]) -> None:
        """Add one run's times."""
        with self._lock:
            for name, seconds in times_s.items():
                total, runs = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + seconds, runs + 1

    def averages_s(self) -> dict[str, float]:
        """Return the average of each node that ran."""
        with self._lock:
            return {name: total / runs for name, (total, runs) in self._sums.items()}
