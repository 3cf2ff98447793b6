"""What a served model has done: counts and times, as the protocol's statistics have them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

#: Where the time of a request goes, by the protocol's names.
PARTS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


class Statistics:
    """Counts of one version of a model; any thread may add to them."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.num_succeeded = self.num_failed = 0
        self.seconds: Final = dict.fromkeys(PARTS, 0.0)
        #: Rows that were answered, texts that were generated among them, and the tokens of these.
        self.num_inferences = self.num_tokens = 0
        #: Requests whose inputs were good and that have not ended.
        self.num_in_flight = 0
        #: Seconds that devices take for a request when nothing else runs; at first it is slow.
        self.usual_s = 1.0
        self.last_ms = 0

    @contextmanager
    def of_texts(self, count: int) -> Iterator[None]:
        """Count a request for generated texts, which are generated in the block."""
        began_s = time.perf_counter()
        with self.lock:
            self.num_in_flight += 1
        parts: tuple[str, ...] = ("fail",)
        try:
            yield
            parts = ("success", "compute_infer")
        finally:
            with self.lock:
                self.num_in_flight -= 1
                if parts == ("fail",):
                    self.num_failed += 1
                else:
                    self.num_succeeded += 1
                    self.num_inferences += count
                    self.last_ms = int(time.time() * 1000)
                for part in parts:
                    self.seconds[part] += time.perf_counter() - began_s

    def rows(self) -> dict[str, tuple[int, float]]:
        """Return each part's count and seconds."""
        with self.lock:
            return {
                part: (self.num_failed if part == "fail" else self.num_succeeded, seconds)
                for part, seconds in self.seconds.items()
            }

    def document(self, name: str, version: str) -> dict[str, Any]:
        """Return the protocol's ``model_stats`` entry."""
        parts = {
            part: {"count": count, "ns": int(seconds * 1e9)}
            for part, (count, seconds) in self.rows().items()
        }
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_ms,
            "inference_count": self.num_inferences,
            "execution_count": self.num_succeeded,
            "inference_stats": parts,
            "batch_stats": [],
        }
