"""Metrics: counters of requests and stages as they end, and what waits and runs at the moment.

Times are in seconds and sizes in bytes, by Prometheus' conventions.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scheduler.observe.load import Load
from scheduler.observe.observer import DeviceEvent, ObservedRequest
from scheduler.vocabulary.events import DeviceLost, DeviceReturned
from scheduler.vocabulary.record import RequestState

#: Upper bounds of the latency histogram's buckets, seconds; one more takes the rest.
BOUNDS_S: Final = (
    *(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class Sample(NamedTuple):
    """One number; `suffix` is what its name has after the family's."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class Family(NamedTuple):
    """Numbers of one name; `kind` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    samples: list[Sample]


@dataclass(slots=True)
class _Model:
    """Counts of one model's requests."""

    states: Counter[str] = field(default_factory=Counter)
    num_retries: int = 0
    input_nbytes: int = 0
    waited_s: float = 0.0
    latency_s: float = 0.0
    #: How many answered requests were in each bucket.
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))


@dataclass(slots=True)
class _Stage:
    """Counts of one stage on one device."""

    num_runs: int = 0
    run_s: float = 0.0
    queued_s: float = 0.0
    output_nbytes: int = 0


class Metrics:
    """Counts what it is told from its making on: an observer.

    `load`: returns what waits and runs now.
    `clock`: returns monotonic seconds.
    """

    def __init__(
        self, load: Callable[[], Load], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._load = load
        self._clock = clock
        self._since_s = clock()
        self._models: defaultdict[str, _Model] = defaultdict(_Model)
        #: By model, stage and device.
        self._stages: defaultdict[tuple[str, int, str], _Stage] = defaultdict(_Stage)
        self._losses: Counter[str] = Counter()
        self._away: set[str] = set()
        self._lock = threading.Lock()

    def ended(self, request: ObservedRequest) -> None:
        """Count a request."""
        record = request.record
        name = request.route.plan.name
        begun_s, ended_s = record.submitted.now_s, record.ended_s or 0.0
        with self._lock:
            model = self._models[name]
            model.states[record.state.value] += 1
            model.num_retries += max(0, record.attempt - 1)
            model.input_nbytes += record.submitted.nbytes
            model.waited_s += (record.admitted_s or ended_s) - begun_s
            if record.state is RequestState.ANSWERED:
                model.latency_s += ended_s - begun_s
                model.buckets[bisect_left(BOUNDS_S, ended_s - begun_s)] += 1

    def ran(self, request: ObservedRequest) -> None:
        """Count runs of stages."""
        name = request.route.plan.name
        with self._lock:
            for run in request.runs:
                stage = self._stages[name, run.stage, run.device]
                stage.num_runs += 1
                stage.run_s += run.ended_s - run.started_s
                stage.queued_s += run.queued_s
                stage.output_nbytes += run.output_nbytes

    def device(self, event: DeviceEvent) -> None:
        """Count a device that was lost; take note whether it is there."""
        with self._lock:
            if isinstance(event, DeviceLost):
                self._losses[event.device] += 1
            if isinstance(event, DeviceReturned):
                self._away.discard(event.device)
            else:
                self._away.add(event.device)

    def families(self) -> list[Family]:
        """Return all numbers as they are now."""
        load = self._load()
        with self._lock:
            return [
                Family(
                    "hetero_uptime_seconds", "gauge", "Seconds since counting began.",
                    [Sample({}, self._clock() - self._since_s)],
                ),
                *self._of_requests(),
                *self._of_stages(),
                *self._of_load(load),
                *self._of_devices(load),
            ]  # fmt: skip

    def _of_requests(self) -> Iterator[Family]:
        models = sorted(self._models.items())
        yield Family(
            "hetero_requests_total", "counter", "Requests that ended, by the state they ended in.",
            [
                Sample({"model": name, "state": state}, number)
                for name, model in models
                for state, number in sorted(model.states.items())
            ],
        )  # fmt: skip
        for metric, text, value in (
            ("request_retries_total", "Attempts at requests after the first.", "num_retries"),
            ("request_input_bytes_total", "Bytes of requests' inputs.", "input_nbytes"),
            ("request_admission_seconds_total", "Time that requests waited for admission.",
             "waited_s"),
        ):  # fmt: skip
            yield Family(
                f"hetero_{metric}", "counter", text,
                [Sample({"model": name}, getattr(model, value)) for name, model in models],
            )  # fmt: skip
        yield Family(
            "hetero_request_duration_seconds", "histogram",
            "Time from submission to answer, of requests that were answered.",
            [sample for name, model in models for sample in _histogram(name, model)],
        )  # fmt: skip

    def _of_stages(self) -> Iterator[Family]:
        for metric, text, value in (
            ("runs_total", "Runs of stages, of requests that were answered.", "num_runs"),
            ("busy_seconds_total", "Time of these runs; its rate is the utilisation.", "run_s"),
            ("queue_seconds_total", "Time that stages waited in their devices' queues.",
             "queued_s"),
            ("output_bytes_total", "Bytes that stages gave.", "output_nbytes"),
        ):  # fmt: skip
            yield Family(
                f"hetero_stage_{metric}", "counter", text,
                [
                    Sample(
                        {"model": model, "stage": str(number), "device": device},
                        getattr(stage, value),
                    )
                    for (model, number, device), stage in sorted(self._stages.items())
                ],
            )  # fmt: skip

    def _of_load(self, load: Load) -> Iterator[Family]:
        waiting: Counter[str] = Counter()
        running: Counter[str] = Counter()
        for deployment in load.deployments:
            waiting[deployment.model] += deployment.num_waiting
            running[deployment.model] += deployment.num_in_flight
        for metric, text, numbers in (
            ("requests_waiting", "Requests that wait for admission.", waiting),
            ("requests_in_flight", "Requests that are admitted and have not ended.", running),
        ):
            yield Family(
                f"hetero_{metric}", "gauge", text,
                [Sample({"model": name}, number) for name, number in sorted(numbers.items())],
            )  # fmt: skip
        yield Family(
            "hetero_in_flight_bytes", "gauge", "Bytes that requests in flight are counted for.",
            [Sample({}, load.nbytes_in_flight)],
        )  # fmt: skip

    def _of_devices(self, load: Load) -> Iterator[Family]:
        devices = sorted(load.devices.items())
        labels = {name: {"device": name, "node": device.node} for name, device in devices}
        yield Family(
            "hetero_device_up", "gauge", "Whether a device that is used is there.",
            [Sample(labels[name], name not in self._away) for name, _ in devices],
        )  # fmt: skip
        yield Family(
            "hetero_device_losses_total", "counter", "How often a device was lost.",
            [Sample({"device": name}, self._losses[name])
             for name in sorted({*self._losses, *load.devices})],
        )  # fmt: skip
        yield Family(
            "hetero_device_heartbeat_age_seconds", "gauge", "Time since a device was heard.",
            [Sample(labels[name], device.silent_s)
             for name, device in devices if device.silent_s is not None],
        )  # fmt: skip
        tasks: list[Sample] = []
        for name, device in devices:
            if device.status:
                running = device.status["running"]
                queued = device.status["tasks"] - running
                tasks.append(Sample({**labels[name], "state": "queued"}, queued))
                tasks.append(Sample({**labels[name], "state": "running"}, running))
        yield Family(
            "hetero_device_streams", "gauge", "Stages that a device may run at once.",
            [Sample(labels[name], device.status["streams"])
             for name, device in devices if device.status],
        )  # fmt: skip
        yield Family(
            "hetero_device_kept_bytes", "gauge", "Bytes of remote tensors and states on a device.",
            [Sample(labels[name], device.status["kept_nbytes"])
             for name, device in devices if device.status],
        )  # fmt: skip
        yield Family("hetero_device_tasks", "gauge", "Runs of stages that a device holds.", tasks)


def _histogram(name: str, model: _Model) -> Iterator[Sample]:
    total = 0
    for bound, number in zip((*map(str, BOUNDS_S), "+Inf"), model.buckets, strict=True):
        total += number
        yield Sample({"model": name, "le": bound}, total, "_bucket")
    yield Sample({"model": name}, model.latency_s, "_sum")
    yield Sample({"model": name}, total, "_count")
