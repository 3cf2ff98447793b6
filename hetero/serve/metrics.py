"""The served models' figures, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Sequence

from hetero.observe.exposition import write_text
from hetero.serve.served_model import ServedModel
from scheduler.observe.metrics import Family, Sample


def metrics_text(models: Sequence[ServedModel]) -> str:
    """Return what the models have done."""
    counts, seconds, rows, in_flight = [], [], [], []
    for model in models:
        labels = {"model": model.name, "version": model.version}
        rows.append(Sample(labels, model.statistics.num_inferences))
        in_flight.append(Sample(labels, model.statistics.num_in_flight))
        for part, (count, took_s) in model.statistics.rows().items():
            seconds.append(Sample({**labels, "part": part}, took_s))
            if part in ("success", "fail"):
                counts.append(Sample({**labels, "result": part}, count))
    return write_text([
        Family("hetero_serve_requests_total", "counter", "Requests by how they ended.", counts),
        Family("hetero_serve_inferences_total", "counter", "Rows of requests answered.", rows),
        Family(
            "hetero_serve_requests_in_flight", "gauge",
            "Requests that run, or wait for their turn.", in_flight,
        ),
        Family(
            "hetero_serve_seconds_total", "counter",
            "Time of requests, by the part that took it: the wait, the devices, their bytes.",
            seconds,
        ),
    ])  # fmt: skip
