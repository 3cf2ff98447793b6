"""Rates, latencies and loads of a running process, computed from two snapshots of its metrics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

#: Percentiles of the latency.
PERCENTILES: Final = (50, 90, 99)

_Labels = frozenset[tuple[str, str]]


class MetricsSnapshot:
    """Metrics at one moment: the value of each name and set of labels."""

    def __init__(self, samples: Iterable[tuple[str, Mapping[str, str], float]] = ()) -> None:
        self._values: defaultdict[str, dict[_Labels, float]] = defaultdict(dict)
        for name, labels, value in samples:
            self._values[name.removeprefix("hetero_")][frozenset(labels.items())] = value

    def value(self, name: str, **labels: str) -> float:
        """Return one value; 0 if it does not exist."""
        return self._values[name].get(frozenset(labels.items()), 0.0)

    def labels(self, name: str) -> list[dict[str, str]]:
        """Return the sets of labels of a name, sorted."""
        return [dict(sorted(labels)) for labels in sorted(self._values[name], key=sorted)]


def summarize_metrics(now: MetricsSnapshot, before: MetricsSnapshot) -> dict[str, Any]:
    """Return rates between two snapshots, of which `before` may be empty, and the current state."""
    seconds = now.value("uptime_seconds") - before.value("uptime_seconds")

    def increase(name: str, **labels: str) -> float:
        return now.value(name, **labels) - before.value(name, **labels)

    def rate(name: str, **labels: str) -> float:
        return increase(name, **labels) / seconds if seconds > 0 else 0.0

    def mean(name: str, **labels: str) -> float | None:
        runs = increase("stage_runs_total", **labels)
        return increase(name, **labels) / runs if runs else None

    stages: list[dict[str, Any]] = [
        {
            **labels,
            "stage": int(labels["stage"]),
            "runs_per_s": rate("stage_runs_total", **labels),
            "run_s": mean("stage_busy_seconds_total", **labels),
            "wait_s": mean("stage_queue_seconds_total", **labels),
            "utilisation": rate("stage_busy_seconds_total", **labels),
            "output_nbytes_per_s": rate("stage_output_bytes_total", **labels),
        }
        for labels in now.labels("stage_runs_total")
    ]
    busy: defaultdict[str, float] = defaultdict(float)
    for stage in stages:
        busy[stage["device"]] += stage["utilisation"]
    model_labels = (*now.labels("requests_total"), *now.labels("requests_in_flight"))
    return {
        "seconds": seconds,
        "in_flight_nbytes": now.value("in_flight_bytes"),
        "models": [
            {
                "model": name,
                "waiting": now.value("requests_waiting", model=name),
                "in_flight": now.value("requests_in_flight", model=name),
                "answered_per_s": rate("requests_total", model=name, state="answered"),
                "not_answered": sum(
                    increase("requests_total", **labels)
                    for labels in now.labels("requests_total")
                    if labels["model"] == name and labels["state"] != "answered"
                ),
                "retries": increase("request_retries_total", model=name),
                "input_nbytes_per_s": rate("request_input_bytes_total", model=name),
                "latency_s": _latencies_s(now, before, name),
            }
            for name in sorted({labels["model"] for labels in model_labels})
        ],
        "stages": sorted(stages, key=lambda stage: (stage["model"], stage["stage"])),
        "devices": [
            {
                **labels,
                "up": bool(now.value("device_up", **labels)),
                "queued": now.value("device_tasks", **labels, state="queued"),
                "running": now.value("device_tasks", **labels, state="running"),
                "utilisation": busy[labels["device"]]
                / (now.value("device_streams", **labels) or 1),
                "losses": now.value("device_losses_total", device=labels["device"]),
                "silent_s": now.value("device_heartbeat_age_seconds", **labels),
            }
            for labels in now.labels("device_up")
        ],
    }


def _latencies_s(
    now: MetricsSnapshot, before: MetricsSnapshot, model: str
) -> dict[str, float | None]:
    """Return percentiles of a histogram, interpolated within its buckets.

    A percentile in the last, unbounded bucket is the start of that bucket.
    """
    name = "request_duration_seconds_bucket"
    buckets = [labels for labels in now.labels(name) if labels["model"] == model]
    buckets.sort(key=lambda labels: float(labels["le"]))
    cumulative = [now.value(name, **labels) - before.value(name, **labels) for labels in buckets]
    if not cumulative or not cumulative[-1]:
        return dict.fromkeys(map(str, PERCENTILES))
    bounds_s = [0.0, *(float(labels["le"]) for labels in buckets[:-1])]
    ranks = [p / 100 * cumulative[-1] for p in PERCENTILES]
    latencies_s = np.interp(ranks, [0.0, *cumulative[:-1]], bounds_s)
    return {str(p): float(s) for p, s in zip(PERCENTILES, latencies_s, strict=True)}
