"""Timing of models on devices through the executor: latency and throughput, after warm-up."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import Response, StageTiming
from hetero.measure.load_generator import keep_in_flight
from hetero.partition.partition import partition, stage_sources
from hetero.planning.cost.calibration import (
    LOW_PERCENTILE,
    has_settled,
    low_percentile,
    was_disturbed,
)
from hetero.scheduler.executor import Deployment, Executor
from hetero.scheduler.types.limits import Limits

#: A deployment, and the inputs of its requests.
Workload = tuple[Deployment, Mapping[str, Value]]

#: Limits of a deployment for measurements.
_LIMITS: Final = Limits(nbytes=2**32, timeout_s=120.0)
#: Warm up for at least this long and this many runs: caches, clocks and threads need it.
MIN_WARM_UP_S: Final = 0.02
MIN_WARM_UP_RUNS: Final = 2
#: Maximum number of runs with node profiling.
MAX_PROFILED_RUNS: Final = 3
#: Minimum number of results per deployment in a throughput measurement, and results per window.
MIN_RESULTS: Final = 3
WINDOW: Final = 8


@dataclass(frozen=True, slots=True)
class ModelTiming:
    """Run time of a model on a device, and of its executed nodes."""

    #: Seconds that the device computes per run.
    run_s: float
    #: Executed node -> seconds; a device without node profiling has one entry, the model.
    node_times_s: Mapping[str, float]
    executed_nodes: tuple[ExecutedNode, ...]
    #: Whether other processes disturbed the measurement.
    was_disturbed: bool = False


@contextmanager
def temporary_deployment(
    executor: Executor,
    model: Model,
    affinity: Mapping[str, str],
    configs: Mapping[str, Mapping[str, Any]],
    other_devices: Collection[str] = (),
) -> Iterator[Deployment]:
    """Deploy a model by an affinity for the duration of the context.

    `other_devices`: devices that work at the same time, and share the node's cores.
    """
    parts = partition(model, affinity)
    sources = stage_sources([parts], configs)
    deployment = executor.deploy(
        parts.plan,
        sources,
        parts.constant_outputs,
        limits=_LIMITS,
        other_devices=other_devices,
    )
    try:
        yield deployment
    finally:
        deployment.close()


def run_request(
    deployment: Deployment, inputs: Mapping[str, Value], *, profile: bool = False
) -> Response:
    """Run one request and return its result."""
    return deployment.submit(inputs, Request(profile=profile)).future.result()


def _warm_up(deployment: Deployment, inputs: Mapping[str, Value], until_s: float) -> None:
    """Run requests until caches, clocks and threads are warm; at least one.

    `until_s`: end of the whole measurement; the warm-up takes at most half of the time.
    """
    start_s = time.monotonic()
    min_end_s = start_s + min(MIN_WARM_UP_S, (until_s - start_s) / 2)
    for runs in itertools.count(1):
        run_request(deployment, inputs)
        now_s = time.monotonic()
        if now_s >= until_s or (runs >= MIN_WARM_UP_RUNS and now_s >= min_end_s):
            return


def time_model(
    executor: Executor,
    device: str,
    model: Model,
    inputs: Mapping[str, Value],
    config: Mapping[str, Any],
    until_s: float,
) -> ModelTiming:
    """Time a model and its nodes on a device that supports all of them, one request at a time.

    `until_s`: ``time.monotonic()`` at which to end if the samples have not settled before. There
        are at least three runs: a warm-up, a measurement, and one with node profiling.
    """
    affinity = dict.fromkeys(model.node_names, device)
    with temporary_deployment(executor, model, affinity, {device: config}) as deployment:
        latency = measure_latency(deployment, inputs, until_s)
        samples: dict[str, list[float]] = {}
        for run_number in range(MAX_PROFILED_RUNS):
            if run_number and time.monotonic() >= until_s:
                break
            for stage in run_request(deployment, inputs, profile=True).stage_timings:
                for name, seconds in stage.node_times_s.items():
                    samples.setdefault(name, []).append(seconds)
        executed_nodes = deployment.executed_nodes(0) if deployment.plan.stages else ()
    nodes = {name: low_percentile(seconds) for name, seconds in samples.items()}
    return ModelTiming(latency.run_s, nodes, executed_nodes, latency.was_disturbed)


class LatencyMeasurement(NamedTuple):
    """Latency of requests, one at a time: seconds of runs, and of transfers around them."""

    #: All stages' runs.
    run_s: float
    #: From sending the request to the start of the first stage.
    send_s: float
    #: Between the stages.
    transfer_s: float
    #: From the end of the last stage to the result.
    return_s: float
    #: Whether other processes disturbed the measurement.
    was_disturbed: bool = False


def measure_latency(
    deployment: Deployment, inputs: Mapping[str, Value], until_s: float
) -> LatencyMeasurement:
    """Measure the latency of a deployment of one stage, or of a chain of stages.

    After a warm-up, requests run one at a time until the samples have settled; at least one.
    """
    _warm_up(deployment, inputs, until_s)
    samples: list[tuple[float, float, float, float]] = []

    def continues(num_requests: int) -> bool:
        if not num_requests:
            return True
        return time.monotonic() < until_s and not has_settled([run_s for run_s, *_ in samples])

    def record(start_s: float, end_s: float, result: Response) -> None:
        stages = result.stage_timings
        run_s = sum(stage.run_s for stage in stages)
        send_s, return_s = stages[0].started_s - start_s, end_s - stages[-1].ended_s
        transfer_s = sum(b.started_s - a.ended_s for a, b in itertools.pairwise(stages))
        # The clocks of two machines may differ; then all transfers count as equally long.
        if min(send_s, transfer_s, return_s) < 0:
            send_s = return_s = max(0.0, end_s - start_s - run_s) / (len(stages) + 1)
            transfer_s = send_s * (len(stages) - 1)
        samples.append((run_s, send_s, transfer_s, return_s))

    keep_in_flight(lambda: deployment.submit(inputs).future, 1, continues, record)
    runs, sends, transfers, returns = zip(*samples, strict=True)
    return LatencyMeasurement(
        low_percentile(runs),
        low_percentile(sends),
        low_percentile(transfers),
        low_percentile(returns),
        was_disturbed(runs),
    )


class ThroughputMeasurement(NamedTuple):
    """Throughput of a deployment with many requests in flight."""

    #: Seconds between two results.
    period_s: float
    #: Seconds of each stage's run.
    runs_s: tuple[float, ...]


def measure_throughput(
    workloads: Sequence[Workload], jobs: int, seconds: float
) -> list[ThroughputMeasurement]:
    """Measure the throughput of several deployments at the same time.

    `jobs`: requests in flight on each deployment.
    `seconds`: time limit; the measurement ends earlier if all rates have settled.
    """
    until_s = time.monotonic() + seconds
    feeders = [_RequestFeeder(*workload, jobs) for workload in workloads]

    def is_done() -> bool:
        return time.monotonic() >= until_s or all(feeder.has_settled for feeder in feeders)

    with ThreadPoolExecutor(len(feeders)) as pool:
        for future in [pool.submit(feeder.run, is_done) for feeder in feeders]:
            future.result()
    return [feeder.throughput() for feeder in feeders]


class _RequestFeeder:
    """Keeps requests in flight on one deployment, and averages its results in windows."""

    def __init__(self, deployment: Deployment, inputs: Mapping[str, Value], jobs: int) -> None:
        self._deployment = deployment
        self._inputs = inputs
        self._jobs = jobs
        self._results: list[tuple[float, Sequence[StageTiming]]] = []
        #: The averages of each window.
        self._windows: list[ThroughputMeasurement] = []
        self.has_settled = False

    def run(self, is_done: Callable[[], bool]) -> None:
        """Send requests until `is_done` returns True."""
        keep_in_flight(
            lambda: self._deployment.submit(self._inputs).future,
            self._jobs,
            lambda num_requests: len(self._results) < MIN_RESULTS or not is_done(),
            self._add,
        )

    def _add(self, start_s: float, end_s: float, result: Response) -> None:
        self._results.append((end_s, result.stage_timings))
        # The first windows are discarded: the machine is cold.
        if len(self._results) % WINDOW == 1 and len(self._results) > 2 * WINDOW:
            self._windows.append(self._measure_window(self._results[-WINDOW - 1 :]))
            self.has_settled = has_settled([window.period_s for window in self._windows])

    def throughput(self) -> ThroughputMeasurement:
        """Return a fast window by the low percentile, or the average of all results without one."""
        windows = sorted(self._windows) or [self._measure_window(self._results)]
        return windows[len(windows) * LOW_PERCENTILE // 100]

    def _measure_window(
        self, results: Sequence[tuple[float, Sequence[StageTiming]]]
    ) -> ThroughputMeasurement:
        period_s = (results[-1][0] - results[0][0]) / max(1, len(results) - 1)
        stages = range(len(self._deployment.plan.stages))
        runs_s = (float(np.mean([runs[s].run_s for _, runs in results[1:]])) for s in stages)
        return ThroughputMeasurement(period_s, tuple(runs_s))
