"""The served models' figures, in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

from hetero.apps.serve.served_model import ServedModel
from hetero.observe.metrics_server import write_text


def metrics_text(models: Sequence[ServedModel]) -> str:
    """Return what the models have done."""
    of = ["model", "version"]
    counts = CounterMetricFamily(
        "hetero_serve_requests", "Requests by how they ended.", labels=[*of, "result"]
    )
    rows = CounterMetricFamily("hetero_serve_inferences", "Rows of requests answered.", labels=of)
    tokens = CounterMetricFamily("hetero_serve_tokens", "Tokens of generated texts.", labels=of)
    in_flight = GaugeMetricFamily(
        "hetero_serve_requests_in_flight", "Requests that run, or wait for their turn.", labels=of
    )
    seconds = CounterMetricFamily(
        "hetero_serve_seconds",
        "Time of requests, by the part that took it: the wait, the devices, their bytes.",
        labels=[*of, "part"],
    )
    for model in models:
        mine = [model.name, model.version]
        rows.add_metric(mine, model.statistics.num_inferences)
        tokens.add_metric(mine, model.statistics.num_tokens)
        in_flight.add_metric(mine, model.statistics.num_in_flight)
        for part, (count, took_s) in model.statistics.rows().items():
            seconds.add_metric([*mine, part], took_s)
            if part in ("success", "fail"):
                counts.add_metric([*mine, part], count)
    return write_text([counts, rows, tokens, in_flight, seconds])
