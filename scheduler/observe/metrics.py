"""Prometheus metrics: counters of ended requests and stage runs, and gauges of the present load.

Times are in seconds and sizes in bytes, following the conventions of Prometheus.
"""

from __future__ import annotations

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import Metric

from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest
from hetero.scheduler.types.events import DeviceLost, DeviceReturned
from hetero.scheduler.types.request_record import RequestState

#: Upper bounds of the latency histogram's buckets, in seconds; a last bucket counts the rest.
BOUNDS_S: Final = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)
_Rows = Iterable[tuple[Mapping[str, str], float]]


class Metrics:
    """Observer that counts requests, stage runs and device losses from its creation on."""

    def __init__(
        self, load: Callable[[], Load], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock = clock
        self._since_s = clock()
        self._absent_devices: set[str] = set()
        self._registry = CollectorRegistry()

        def of_model(name: str, text: str, *more: str) -> Counter:
            return Counter(f"hetero_{name}", text, ("model", *more), registry=self._registry)

        def of_stage(name: str, text: str) -> Counter:
            return of_model(f"stage_{name}", text, "stage", "device")

        self._requests = of_model(
            "requests", "Requests that ended, by the state they ended in.", "state"
        )
        self._retries = of_model("request_retries", "Attempts at requests after the first.")
        self._input_nbytes = of_model("request_input_bytes", "Bytes of requests' inputs.")
        self._waited_s = of_model(
            "request_admission_seconds", "Time that requests waited for admission."
        )
        self._latency_s = Histogram(
            "hetero_request_duration_seconds",
            "Time from submission to result, of successful requests.",
            ("model",),
            buckets=BOUNDS_S,
            registry=self._registry,
        )
        self._runs = of_stage("runs", "Stage runs of successful requests.")
        self._run_s = of_stage("busy_seconds", "Time of these runs; its rate is the utilisation.")
        self._queued_s = of_stage(
            "queue_seconds", "Time that stages waited in their devices' queues."
        )
        self._output_nbytes = of_stage("output_bytes", "Bytes of the outputs of stages.")
        self._losses = Counter(
            "hetero_device_losses",
            "Number of losses of a device.",
            ("device",),
            registry=self._registry,
        )

    def ended(self, request: ObservedRequest) -> None:
        """Count a request that has ended."""
        record = request.record
        name = request.route.plan.name
        begun_s, ended_s = record.submitted.now_s, record.ended_s or 0.0
        self._requests.labels(name, record.state.value).inc()
        self._retries.labels(name).inc(max(0, record.attempt - 1))
        self._input_nbytes.labels(name).inc(record.submitted.nbytes)
        self._waited_s.labels(name).inc(max(0.0, (record.admitted_s or ended_s) - begun_s))
        if record.state is RequestState.ANSWERED:
            self._latency_s.labels(name).observe(ended_s - begun_s)

    def ran(self, request: ObservedRequest) -> None:
        """Count the stage runs of a request."""
        for run in request.runs:
            stage = (request.route.plan.name, str(run.stage), run.device)
            self._runs.labels(*stage).inc()
            self._run_s.labels(*stage).inc(max(0.0, run.ended_s - run.started_s))
            self._queued_s.labels(*stage).inc(max(0.0, run.queued_s))
            self._output_nbytes.labels(*stage).inc(run.output_nbytes)

    def device(self, event: DeviceEvent) -> None:
        """Count a device loss, and record whether the device is available."""
        if isinstance(event, DeviceLost):
            self._losses.labels(event.device).inc()
        if isinstance(event, DeviceReturned):
            self._absent_devices.discard(event.device)
        else:
            self._absent_devices.add(event.device)

    def families(self) -> list[Metric]:
        """Return the current values of all metrics."""
        load = self._load()
        for name in load.devices:
            self._losses.labels(name)
        uptime_s = self._clock() - self._since_s
        counters = list(self._registry.collect())
        for metric in counters:
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
        return [
            _gauge("uptime_seconds", "Seconds since the metrics were created.", [({}, uptime_s)]),
            *counters,
            *_of_deployments(load),
            *self._of_devices(load),
        ]

    def _of_devices(self, load: Load) -> Iterator[Metric]:
        devices = [
            ({"device": name, "node": device.node}, device)
            for name, device in sorted(load.devices.items())
        ]
        statuses = [(labels, device.status) for labels, device in devices if device.status]
        yield _gauge(
            "device_up",
            "Whether a device in use is available.",
            [(labels, labels["device"] not in self._absent_devices) for labels, _ in devices],
        )
        yield _gauge(
            "device_heartbeat_age_seconds",
            "Time since the last heartbeat of a device.",
            [(labels, d.silent_s) for labels, d in devices if d.silent_s is not None],
        )
        for name, text, key in (
            ("streams", "Stage runs that a device allows in parallel.", "streams"),
            ("kept_bytes", "Bytes of remote tensors and states on a device.", "kept_nbytes"),
        ):
            yield _gauge(
                f"device_{name}", text, [(labels, status[key]) for labels, status in statuses]
            )
        tasks = [
            ({**labels, "state": state}, number)
            for labels, status in statuses
            for state, number in (
                ("queued", status["tasks"] - status["running"]),
                ("running", status["running"]),
            )
        ]
        yield _gauge("device_tasks", "Stage runs that a device has queued or runs now.", tasks)


def _of_deployments(load: Load) -> Iterator[Metric]:
    waiting, running = Counts[str](), Counts[str]()
    for deployment in load.deployments:
        waiting[deployment.model] += deployment.num_waiting
        running[deployment.model] += deployment.num_in_flight
    for name, text, numbers in (
        ("requests_waiting", "Requests that wait for admission.", waiting),
        ("requests_in_flight", "Requests that are admitted and have not ended.", running),
    ):
        yield _gauge(name, text, [({"model": model}, n) for model, n in sorted(numbers.items())])
    text = "Bytes that admission counts for the requests in flight."
    yield _gauge("in_flight_bytes", text, [({}, load.nbytes_in_flight)])


def _gauge(name: str, text: str, rows: _Rows) -> Metric:
    metric = Metric(f"hetero_{name}", text, "gauge")
    for labels, value in rows:
        metric.add_sample(metric.name, dict(labels), float(value))
    return metric
