"""Measurements with scripted times: counted work, lines, identities, loads and windows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from hetero.devices.model.reader import read_model
from hetero.devices.plugin.support import Support
from hetero.devices.request.response import Response, StageTiming
from hetero.planning.cost import concurrent_load, profile, timing, transfer_times
from hetero.planning.cost.calibration import LoadRound
from hetero.planning.cost.concurrent_load import measure_load
from hetero.planning.cost.costs import DeviceIdentity, LinearCost, Time
from hetero.planning.cost.estimation import (
    DEFAULT_SPEED,
    Speed,
    Work,
    count_work,
    fit_speed,
    value_nbytes,
)
from hetero.planning.cost.profile_request import (
    DeviceGroup,
    ProfileRequest,
    group_devices,
    identify_device,
)
from hetero.planning.cost.timing import LatencyMeasurement, ThroughputMeasurement
from tests.support.compile_requests import descriptor
from tests.support.graphs import build

# Counted work: the operations of one node, from their definition.


@pytest.mark.parametrize(
    ("graph", "operations"),
    [
        ("(float[2, 3, 8, 8] x) => (y) <float[5, 3, 3, 3] w> { y = Conv(x, w) }", 2 * 360 * 27),
        ("(float[2, 4, 8, 8] x) => (y) <float[6, 2, 3, 3] w> { y = Conv<group = 2>(x, w) }", 15552),
        (
            "(float[1, 3, 4, 4] x) => (y) <float[3, 5, 2, 2] w> { y = ConvTranspose(x, w) }",
            2 * 48 * 20,
        ),
        ("(float[2, 7, 3] x) => (y) <float[3, 5] w> { y = MatMul(x, w) }", 2 * 70 * 3),
        ("(float[7, 3] x) => (y) <float[3, 5] w> { y = Gemm(x, w) }", 2 * 35 * 3),
        ("(float[3, 7] x) => (y) <float[3, 5] w> { y = Gemm<transA = 1>(x, w) }", 2 * 35 * 3),
        (
            (
                "(float[9, 2, 3] x) => (y) <float[1, 16, 3] w, float[1, 16, 4] r>"
                " { y = LSTM<hidden_size = 4>(x, w, r) }"
            ),
            2 * 9 * 2 * (16 * 3 + 16 * 4),
        ),
        ("(float[4, 5] x) => (y) { y = Relu(x) }", 20),
        ("(float[4, 5] x) => (y) { y = ReduceSum(x) }", 20),  # one for each input
        ("(float[4, 1] x) => (y) <int64[2] s = {4, 9}> { y = Expand(x, s) }", 36),
    ],
)
def test_operations_of_a_node(graph, operations):
    def fill(match: re.Match[str]) -> str:
        count = int(np.prod([int(size) for size in match[1].split(", ")]))
        return f"float[{match[1]}] {match[2]} = {{{', '.join(['1.0'] * count)}}}"

    graph = graph.replace("=> (y)", "=> (float y)")
    head, _, body = graph.partition("(float y)")
    body = re.sub(r"float\[([\d, ]+)\] (\w)", fill, body)
    proto = parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {head}(float y) {body}')
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = read_model(proto)
    work = count_work(model, model.nodes[0])
    assert work.operations == operations
    values = (*model.nodes[0].inputs, *model.nodes[0].writes)
    assert work.nbytes == sum(value_nbytes(model.spec(v)) for v in values if v)


def test_speed_of_few_samples_scales_the_default():
    works = [Work(1e6, 1e6), Work(5e6, 2e6)]
    samples = [(work, 3 * DEFAULT_SPEED(work)) for work in works]
    assert fit_speed(samples) == pytest.approx([3 * c for c in DEFAULT_SPEED])
    assert fit_speed([]) == DEFAULT_SPEED
    assert fit_speed([(works[0], 0.0)] * 9) == DEFAULT_SPEED
    assert Speed(1, 2, 3)(Work(10, 100)) == 1 + 20 + 300


# Transfers.

SMALL, LARGE = transfer_times.SIZES


@pytest.mark.parametrize(
    ("small_s", "large_s", "a", "b"),
    [
        (5 + 2 * SMALL, 5 + 2 * LARGE, 5, 2),
        (5, 5, 5, 0),
        (5, 4, 5, 0),  # noise: a larger tensor is not faster
        (2 * SMALL, 3 * LARGE, 0, (3 * LARGE - 2 * SMALL) / (LARGE - SMALL)),
    ],
)
def test_line_through_two_sizes(small_s, large_s, a, b):
    line = transfer_times._line(small_s, large_s)
    assert (line.a, line.b) == (pytest.approx(a, abs=1e-6), pytest.approx(b))
    assert line.source == "calibrated"


@pytest.mark.parametrize(
    ("seconds", "start_s"), [([0.5], 0.5 - 2e-10 * 12), ([1e-12], 0.0), ([0.5, 9, 9], None)]
)
def test_transfer_of_the_client(seconds, start_s):
    model = build("a: y = Neg(x)", outputs="y")
    group = DeviceGroup(DeviceIdentity("X", "1", "f", "local", 1), [], parts=[model])
    transfer = profile._client_transfer(seconds, group, "inputs")
    if start_s is not None:
        assert transfer.latency == LinearCost(start_s, 2e-10, "calibrated")
    assert transfer.latency.a < 9
    assert transfer.busy == LinearCost(0.0, 0.0, "estimated")
    assert profile._client_transfer([], group, "inputs") is transfer_times.DEFAULT_TRANSFER


@pytest.mark.parametrize(("seconds", "run_s"), [(0.8, 0.2), (9.0, 0.25), (-1.0, 0.0)])
def test_transfer_is_measured_in_equal_parts_of_the_time(seconds, run_s, monkeypatch):
    """Two sizes have a latency and a throughput measurement each, of at most 0.25 s."""
    clock = SimpleNamespace(now_s=50.0)
    measured: list[Any] = []

    def latency(deployment: Any, inputs: Any, until_s: float) -> Any:
        (number,) = inputs["shape"]
        measured.append((deployment, number, until_s - clock.now_s))
        clock.now_s = max(clock.now_s, until_s)
        return SimpleNamespace(transfer_s=1e-3 + 4e-9 * number)

    def throughput(workloads: Any, jobs: int, duration_s: float) -> Any:
        [(deployment, inputs)] = workloads
        (number,) = inputs["shape"]
        measured.append((deployment, number, duration_s))
        clock.now_s += duration_s
        return [SimpleNamespace(period_s=5e-3 + 8e-9 * number, runs_s=[1e-3, 2e-3])]

    @contextmanager
    def deployed(executor: Any, model: Any, affinity: Any, configs: Any) -> Iterator[Any]:
        yield executor, affinity, configs

    monkeypatch.setattr(transfer_times, "measure_latency", latency)
    monkeypatch.setattr(transfer_times, "measure_throughput", throughput)
    monkeypatch.setattr(transfer_times, "temporary_deployment", deployed)
    monkeypatch.setattr(transfer_times, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    executor: Any = "executor"
    transfer = transfer_times.measure_transfer(executor, "A", "B", {"A": {}}, 50.0 + seconds)
    affinity = {"make": "A", "take": "B"}
    expected: list[Any] = [
        (("executor", affinity, {"A": {}}), nbytes // 4, pytest.approx(run_s))
        for nbytes in (SMALL, SMALL, LARGE, LARGE)
    ]
    assert measured == expected
    # A number has 4 bytes. Overhead that does not depend on the size counts for the device.
    assert (transfer.latency.a, transfer.latency.b) == pytest.approx((1e-3, 1e-9))
    assert (transfer.busy.a, transfer.busy.b) == pytest.approx((0.0, 2e-9))


# Devices.


@pytest.mark.parametrize(
    ("config", "threads", "relevant"),
    [
        ({}, 4, ()),
        ({"INFERENCE_NUM_THREADS": 0}, 4, ()),
        ({"INFERENCE_NUM_THREADS": None}, 4, ()),
        ({"INFERENCE_NUM_THREADS": "3"}, 3, ()),
        ({"PERF_COUNT": True, "LOG_LEVEL": 1, "CACHE_DIR": "c", "DEVICE_ID": "1"}, 4, ()),
        ({"B": 1, "A": 2.5}, 4, (("A", "2.5"), ("B", "1"))),
    ],
)
def test_identity_of_a_device(config, threads, relevant):
    device = descriptor("X.0", num_threads=4, node="n", version="v", fingerprint="f")
    expected = DeviceIdentity("X", "v", "f", "n", threads, relevant)
    assert identify_device(device, config) == expected


def test_identical_devices_form_a_group():
    devices = tuple(descriptor(f"X.{i}") for i in range(5))
    supports = {d.name: Support({"a": d.name, "b": d.name}) for d in devices}
    supports["X.4"] = Support({"a": "X.4"})
    configs = {"X.1": {"PERF_COUNT": True}, "X.2": {"HINT": "fast"}}
    model = build("a: v = Neg(x)\nb: y = Neg(v)", outputs="y")
    executor: Any = None
    request = ProfileRequest(executor, model, {}, devices, configs, supports, 1.0)
    groups = group_devices(request)
    assert [[d.name for d in g.devices] for g in groups] == [
        ["X.0", "X.1", "X.3"],
        ["X.2"],
        ["X.4"],
    ]
    assert [g.name for g in groups] == ["X.0", "X.2", "X.4"]


# Load.


class Loads:
    """Measurements that record their durations instead of running."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.latencies: list[tuple[Any, float]] = []
        self.throughputs: list[tuple[list[Any], int, float]] = []
        monkeypatch.setattr(concurrent_load, "measure_latency", self.latency)
        monkeypatch.setattr(concurrent_load, "measure_throughput", self.throughput)
        monkeypatch.setattr(concurrent_load, "temporary_deployment", self.deploy)
        monkeypatch.setattr(concurrent_load.time, "monotonic", lambda: 100.0)

    def deploy(self, executor: Any, part: Any, affinity: Any, configs: Any, names: Any) -> Any:
        return nullcontext(next(iter(affinity.values())))

    def latency(self, deployment: Any, inputs: Any, until_s: float) -> LatencyMeasurement:
        self.latencies.append((deployment, until_s - 100))
        return LatencyMeasurement(len(self.latencies), 0, 0, 0)

    def throughput(self, workloads: Any, jobs: int, seconds: float) -> list[ThroughputMeasurement]:
        self.throughputs.append(([deployment for deployment, _ in workloads], jobs, seconds))
        return [ThroughputMeasurement(10.0 * i, (i, 2.0 * i)) for i, _ in enumerate(workloads, 1)]


def measure(seconds: float, run_times_s: tuple[float, ...]) -> list[DeviceGroup]:
    """Measure the load of groups of one and two devices with these run times."""
    model = build("a: y = Neg(x)", outputs="y")
    devices = [descriptor(f"X.{i}") for i in range(3)]
    groups = [
        DeviceGroup(DeviceIdentity("X", "1", "f", "local", 1), list(own), parts=[model])
        for own in (devices[:1], devices[1:])
    ]
    for group, run_time_s in zip(groups, run_times_s, strict=True):
        group.run_times_s.append(run_time_s)
    executor: Any = None
    request = ProfileRequest(executor, model, {}, tuple(devices), {}, {}, seconds)
    measure_load(request, [(group, {}) for group in groups], seconds)
    return groups


def test_each_group_runs_alone_and_then_all_run_at_once(monkeypatch):
    loads = Loads(monkeypatch)
    first, second = measure(4.0, (0.01, 0.02))
    # Two rounds of latency and throughput for each group, and of all devices: 5 parts of 0.4 s.
    assert [name for name, _ in loads.latencies] == ["X.0", "X.1"] * 2
    assert [seconds for _, seconds in loads.latencies] == pytest.approx([0.4] * 4)
    names = [["X.0"], ["X.1"], ["X.0", "X.1", "X.2"]] * 2
    assert [workloads for workloads, _, _ in loads.throughputs] == names
    assert {jobs for _, jobs, _ in loads.throughputs} == {concurrent_load.JOBS}
    assert first.single_rounds == [LoadRound(1, 3, 10), LoadRound(3, 3, 10)]
    assert second.single_rounds == [LoadRound(2, 3, 10), LoadRound(4, 3, 10)]
    assert first.concurrent_rounds == [LoadRound(1, 3, 10), LoadRound(3, 3, 10)]
    assert second.concurrent_rounds == [
        *(LoadRound(2, 6, 20), LoadRound(2, 9, 30)),
        *(LoadRound(4, 6, 20), LoadRound(4, 9, 30)),
    ]


@pytest.mark.parametrize(
    ("seconds", "slowest_s", "round_s"),
    [
        (100.0, 0.01, 0.5),  # at most half a second ...
        (100.0, 0.2, 2.0),  # ... or ten runs
        (10.0, 0.25, 1.0),  # exactly four runs
        (10.0, 0.26, None),
        (0.1, 0.001, 0.01),
    ],
)
def test_duration_of_a_load_measurement(seconds, slowest_s, round_s, monkeypatch):
    loads = Loads(monkeypatch)
    measure(seconds, (slowest_s / 2, slowest_s))
    expected = [] if round_s is None else [round_s] * 6
    assert [seconds for _, _, seconds in loads.throughputs] == pytest.approx(expected)


# Throughput.


def feed(times_s: list[float], run_s: list[float]) -> timing._RequestFeeder:
    """Return a feeder that got results at these times, with runs of these lengths."""
    deployment: Any = SimpleNamespace(plan=SimpleNamespace(stages=(0, 1)))
    feeder = timing._RequestFeeder(deployment, {}, 2)
    for time_s, seconds in zip(times_s, run_s, strict=True):
        runs = (StageTiming(0, "X", ended_s=seconds), StageTiming(1, "X", ended_s=2 * seconds))
        feeder._add(0.0, time_s, Response({}, runs))
    return feeder


def test_few_results_are_averaged():
    assert feed([1.0, 3.0, 7.0], [9, 1, 2]).throughput() == ThroughputMeasurement(3.0, (1.5, 3.0))


def test_windows_after_the_first_two_count():
    # 17 slow results are two windows and one more; then three windows at 0.5, 0.25 and 1 s.
    times = [10.0 * i for i in range(17)]
    for period_s in (0.5, 0.25, 1.0):
        times += [times[-1] + period_s * i for i in range(1, 9)]
    feeder = feed(times, [1.0] * len(times))
    assert [w.period_s for w in feeder._windows] == [10.0, 0.5, 0.25, 1.0]
    assert feeder.throughput() == ThroughputMeasurement(0.25, (1.0, 2.0))
    assert not feeder.has_settled
    assert feed(times[:16], [1.0] * 16)._windows == []


def test_rates_settle_after_ten_equal_windows():
    times = [float(i) for i in range(8 * 11 + 1)]
    assert feed(times, [1.0] * len(times)).has_settled
    assert not feed(times[:-1], [1.0] * (len(times) - 1)).has_settled


def test_feeder_stops_after_three_results(monkeypatch):
    submissions: list[Any] = []

    class Deployment:
        plan = SimpleNamespace(stages=(0,))

        def submit(self, inputs: Any) -> Any:
            submissions.append(inputs)
            future: Future[Response] = Future()
            future.set_result(Response({}, (StageTiming(0, "X"),)))
            return SimpleNamespace(future=future)

    deployment: Any = Deployment()
    feeder = timing._RequestFeeder(deployment, {"x": 1}, 1)
    feeder.run(lambda: True)
    assert len(feeder._results) == timing.MIN_RESULTS == 3
    assert submissions[0] == {"x": 1}


def test_measured_node_times_are_scaled_to_the_percentile():
    model = build("a: v = Neg(x)\nb: w = Neg(v)\nd: y = Neg(w)", outputs="y")
    device = descriptor("X.0")
    group = DeviceGroup(
        DeviceIdentity("X", "1", "f", "local", 1),
        [device],
        nodes={"a": Time(2.0, "measured"), "b": Time(4.0, "measured")},
        run_times_s=[8.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0],
    )
    executor: Any = None
    supports = {"X.0": Support(dict.fromkeys("abd", "X.0"))}
    request = ProfileRequest(executor, model, {}, (device,), {}, supports, 1.0)
    fake: Any = SimpleNamespace(_model=model, _request=request)
    times = profile._Profiler._complete_node_times(fake, group)
    assert times["a"] == Time(1.0, "measured")
    assert times["b"] == Time(2.0, "measured")
    # All three nodes have equal work, so the third is estimated by the mean of the others.
    assert (times["d"].seconds, times["d"].source) == (pytest.approx(1.5), "estimated")


@pytest.mark.parametrize(
    ("until_s", "run_s", "num_runs"),
    # Two runs, 0.02 s, or half of the time; at most until its end.
    [(10.0, 0.05, 2), (10.0, 0.0055, 4), (0.02, 0.0055, 2), (0.01, 0.05, 1)],
)
def test_number_of_warm_up_runs(until_s, run_s, num_runs, monkeypatch):
    clock = SimpleNamespace(now_s=0.0, runs=0)

    def run_request(deployment, inputs):
        clock.now_s += run_s
        clock.runs += 1

    monkeypatch.setattr(timing, "run_request", run_request)
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    timing._warm_up(SimpleNamespace(), {}, until_s)
    assert clock.runs == num_runs
