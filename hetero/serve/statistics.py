"""What a served model has done: counts and times, as the protocol's statistics have them."""

from __future__ import annotations

import threading
import time
from typing import Any, Final

from devices.request.answer import Answer

#: Where the time of a request goes, by the protocol's names.
PARTS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
#: Seconds that a request may seem to take longer because others ran, too.
_NOISE_S: Final = 0.02


class Statistics:
    """Counts of one version of a model; any thread may add to them."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.num_succeeded = self.num_failed = 0
        self.seconds: Final = dict.fromkeys(PARTS, 0.0)
        self.num_inferences = 0
        #: Requests whose inputs were good and that have not ended.
        self.num_in_flight = 0
        #: Seconds that devices take for a request when nothing else runs; at first it is slow.
        self.usual_s = 1.0
        self.last_ms = 0

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


class Timed:
    """A block that is one request: it has succeeded where the block ends without an error.

    Stages that ran side by side count one after the other, so that times of parts may be more than
    the time of the whole.
    """

    __slots__ = ("_answer", "_began_s", "_read_s", "_rows", "_runs", "_statistics", "_writes_s")

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._runs = False
        self._began_s = self._read_s = time.perf_counter()

    def __enter__(self) -> Timed:
        return self

    def reads(self) -> None:
        """Note that the bytes are there."""
        self._read_s = time.perf_counter()

    def runs(self) -> None:
        """Note that the inputs are good, and the devices' turn."""
        self._read_s = time.perf_counter() - self._read_s
        with self._statistics.lock:
            self._statistics.num_in_flight += 1
        self._runs = True

    def writes(self, answer: Answer, rows: int) -> None:
        """Note the answer to a request of so many rows, which is written next."""
        self._writes_s, self._answer, self._rows = time.perf_counter(), answer, rows

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        ended_s, counts = time.perf_counter(), self._statistics
        took_s = ended_s - self._began_s
        with counts.lock:
            counts.num_in_flight -= self._runs
            if error is not None:
                counts.num_failed += 1
                counts.seconds["fail"] += took_s
                return
            infer_s = sum(run.ended_s - run.started_s for run in self._answer.stage_runs)
            write_s, seconds = ended_s - self._writes_s, counts.seconds
            counts.num_succeeded += 1
            counts.num_inferences += self._rows
            seconds["success"] += took_s
            seconds["queue"] += max(0.0, took_s - infer_s - self._read_s - write_s)
            seconds["compute_input"] += self._read_s
            seconds["compute_infer"] += infer_s
            seconds["compute_output"] += write_s
            most_s = infer_s if infer_s > _NOISE_S else 1.1 * counts.usual_s
            counts.usual_s = min(max(infer_s, counts.usual_s / 2), most_s)
            counts.last_ms = int(time.time() * 1000)
