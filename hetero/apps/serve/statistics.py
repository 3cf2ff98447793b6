"""Counters and times of served models, in the protocol's form and in Prometheus'."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from hetero.observe.metrics_server import write_text

#: Parts of the time of requests, by the protocol's names.
PARTS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


class ModelStatistics:
    """Counters of one version of a model, for any thread.

    Attributes
    ----------
    num_inferences, num_tokens : int
        Rows of answered requests, generated sequences among them; tokens of these.
    num_in_flight : int
        Requests whose inputs were valid and that have not ended.
    typical_s : float
        Seconds that devices take for a request if nothing else runs; one until it is measured.
    """

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.num_succeeded = self.num_failed = 0
        self.seconds: Final = dict.fromkeys(PARTS, 0.0)
        self.num_inferences = self.num_tokens = self.num_in_flight = 0
        self.typical_s = 1.0
        self.last_ms = 0

    @contextmanager
    def count_generation(self, num_sequences: int) -> Iterator[None]:
        """Count a request for generated text, which runs in the block."""
        start_s = time.perf_counter()
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
                    self.num_inferences += num_sequences
                    self.last_ms = int(time.time() * 1000)
                for part in parts:
                    self.seconds[part] += time.perf_counter() - start_s

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


def metrics_text(models: Mapping[tuple[str, str], ModelStatistics]) -> str:
    """Return the statistics of models, by name and version, in Prometheus' text format."""
    labels = ["model", "version"]
    requests = CounterMetricFamily(
        "hetero_serve_requests", "Requests by result.", labels=[*labels, "result"]
    )
    rows = CounterMetricFamily(
        "hetero_serve_inferences", "Rows of answered requests.", labels=labels
    )
    tokens = CounterMetricFamily("hetero_serve_tokens", "Generated tokens.", labels=labels)
    in_flight = GaugeMetricFamily(
        "hetero_serve_requests_in_flight", "Requests that run or wait.", labels=labels
    )
    seconds = CounterMetricFamily(
        "hetero_serve_seconds",
        "Time of requests by part: waiting, devices, decoding and encoding.",
        labels=[*labels, "part"],
    )
    for values, statistics in models.items():
        rows.add_metric(values, statistics.num_inferences)
        tokens.add_metric(values, statistics.num_tokens)
        in_flight.add_metric(values, statistics.num_in_flight)
        for part, (count, part_s) in statistics.rows().items():
            seconds.add_metric([*values, part], part_s)
            if part in ("success", "fail"):
                requests.add_metric([*values, part], count)
    return write_text([requests, rows, tokens, in_flight, seconds])
