"""What a served model has done: counts and times, as the protocol's statistics have them."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from devices.request.answer import StageRun

#: Where the time of a request goes, by the protocol's names.
PARTS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
#: Of a request, in what requests took lately.
_WEIGHT: Final = 0.1


class Statistics:
    """Counts of one version of a model; any thread may add to them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._seconds = dict.fromkeys(PARTS, 0.0)
        self.num_inferences = 0
        #: Requests whose inputs were good and that have not ended.
        self.num_in_flight = 0
        #: Seconds that devices took for a request lately; a server that has answered none is slow.
        self.recent_s = 1.0
        self._last_ms = 0

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request as one that the devices have, or that waits for them, in the block."""
        with self._lock:
            self.num_in_flight += 1
        try:
            yield
        finally:
            with self._lock:
                self.num_in_flight -= 1

    def succeeded(
        self, rows: int, took_s: float, runs: Sequence[StageRun], read_s: float, wrote_s: float
    ) -> None:
        """Count a request that was answered.

        Stages that ran side by side count one after the other, so that times of parts may be more
        than the time of the whole.
        """
        infer_s = sum(run.run_s for run in runs)
        parts = {
            "success": took_s,
            "queue": max(0.0, took_s - infer_s - read_s - wrote_s),
            "compute_input": read_s,
            "compute_infer": infer_s,
            "compute_output": wrote_s,
        }
        with self._lock:
            self._counts.update(parts.keys())
            for part, seconds in parts.items():
                self._seconds[part] += seconds
            self.num_inferences += rows
            self.recent_s += _WEIGHT * (infer_s - self.recent_s)
            self._last_ms = int(time.time() * 1000)

    def failed(self, took_s: float) -> None:
        """Count a request that was not answered."""
        with self._lock:
            self._counts["fail"] += 1
            self._seconds["fail"] += took_s

    def rows(self) -> dict[str, tuple[int, float]]:
        """Return each part's count and seconds."""
        with self._lock:
            return {part: (self._counts[part], self._seconds[part]) for part in PARTS}

    def document(self, name: str, version: str) -> dict[str, Any]:
        """Return the protocol's ``model_stats`` entry."""
        parts = {
            part: {"count": count, "ns": int(seconds * 1e9)}
            for part, (count, seconds) in self.rows().items()
        }
        return {
            "name": name,
            "version": version,
            "last_inference": self._last_ms,
            "inference_count": self.num_inferences,
            "execution_count": parts["success"]["count"],
            "inference_stats": parts,
            "batch_stats": [],
        }
