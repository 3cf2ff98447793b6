"""Profiling of scripted devices: measured and estimated costs, failures, and time limits."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from hetero.devices.errors import DeviceLostError, TensorTypeError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.program import ExecutedNode
from hetero.devices.request.response import Response, StageTiming
from hetero.planning.cost.costs import CLIENT
from hetero.planning.cost.node_times import distribute_times, find_fused_groups
from hetero.planning.cost.profile import profile
from hetero.planning.cost.profile_inputs import supported_parts
from hetero.planning.cost.profile_request import ProfileRequest
from hetero.planning.cost.timing import ModelTiming, measure_latency
from tests.support.core_fixtures import core_fixture
from tests.support.graphs import build, feeds

CHAIN = build(
    "\n".join(f"n{i}: v{i + 1} = {'Relu' if i % 2 else 'Neg'}(v{i})" for i in range(12)),
    inputs="v0",
    outputs="v12",
)
SCRIPT = {"NULL_NODE_TIMES_US": {"op:Relu": 300, "op:Neg": 100}}


core = core_fixture(devices={"NULL": 2})


class Clock:
    """A clock advanced by its reads and by runs, independent of the machine's load."""

    def __init__(self, read_s: float = 1e-4, run_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.read_s, self.run_s = read_s, run_s

    def monotonic(self) -> float:
        self.now_s += self.read_s
        return self.now_s

    def install(self, core: hetero.Core, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("profile", "timing", "transfer_times", "concurrent_load"):
            monkeypatch.setattr(f"hetero.planning.cost.{module}.time", self)
        deploy = core.executor.deploy

        def temporary_deployment(*arguments: Any, **options: Any) -> Any:
            deployment = deploy(*arguments, **options)
            submit = deployment.submit

            def count_and_submit(*values: Any, **options: Any) -> Any:
                self.now_s += self.run_s
                return submit(*values, **options)

            monkeypatch.setattr(deployment, "submit", count_and_submit)
            return deployment

        monkeypatch.setattr(core.executor, "deploy", temporary_deployment)


def test_profile_respects_time_limit(core, monkeypatch):
    """Each run takes 0.1 s: warm-up, measurement, load and transfers all count."""
    clock = Clock(read_s=0.0, run_s=0.1)
    clock.install(core, monkeypatch)
    progress: list[tuple[int, int]] = []
    costs = core.profile_model(
        CHAIN,
        "HETERO:NULL.0,CPU",
        SCRIPT,
        seconds=15.0,
        progress=lambda done, steps, text: progress.append((done, steps)),
    )
    assert clock.now_s < 15 + 3
    assert progress == sorted(progress)
    assert progress[-1][0] == progress[-1][1]
    assert set(costs.devices) == {"NULL.0", "CPU"}
    assert all(t.seconds > 0 for d in costs.devices.values() for t in d.nodes.values())


def test_profile_without_time_runs_three_times_per_device(core, monkeypatch):
    clock = Clock(read_s=1e-3, run_s=1.0)
    clock.install(core, monkeypatch)
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,CPU", SCRIPT, seconds=1e-9)
    # One run for warm-up, one for the node times, one measurement.
    assert int(clock.now_s) == 6
    assert {t.source for t in costs.devices["NULL.0"].nodes.values()} == {"measured"}
    assert {t.latency.source for t in costs.transfers.values()} == {"estimated"}


@pytest.mark.slow
def test_profile_measures_scripted_times(core, monkeypatch):
    Clock().install(core, monkeypatch)
    # Other processes must not affect this test; `test_calibration` covers disturbed samples.
    monkeypatch.setattr("hetero.planning.cost.calibration.MIN_DISTURBED_DRIFT", math.inf)
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,NULL.1", SCRIPT, seconds=0.5)
    assert not costs.missing
    assert not costs.interrupted
    assert costs.shapes == {"v0": (3,)}
    for device in costs.devices.values():
        seconds = [device.nodes[f"n{i}"].seconds for i in range(12)]
        assert {t.source for t in device.nodes.values()} == {"measured"}
        assert all(relu == pytest.approx(3 * seconds[0]) for relu in seconds[1::2])
        # A sleep is never shorter than requested.
        assert sum(seconds) >= 12 * 200e-6
    ends = ("NULL.0", "NULL.1", CLIENT)
    assert set(costs.transfers) == set(itertools.permutations(ends, 2))
    for device in costs.devices.values():
        assert device.single_load.source == device.concurrent_load.source == "calibrated"
    assert all(t.latency.source == "calibrated" for t in costs.transfers.values())


def test_profile_measures_devices_with_different_settings(core):
    config = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_NODE_TIME_US": 200}}}
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,NULL.1", config, seconds=0.3)
    fast, slow = costs.devices["NULL.0"], costs.devices["NULL.1"]
    assert fast.identity != slow.identity
    assert slow.nodes["n0"].seconds >= 200e-6 > fast.nodes["n0"].seconds


def test_profile_omits_refused_nodes(core):
    config = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_UNSUPPORTED": ["n4"]}}}
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,NULL.1", config, seconds=0.3)
    assert "n4" in costs.devices["NULL.0"].nodes
    assert "n4" not in costs.devices["NULL.1"].nodes
    assert len(costs.devices["NULL.1"].nodes) == 11


def test_profile_estimates_failing_part(core):
    config = {"NULL_FAULT": "fail@1"}
    costs = core.profile_model(CHAIN, "HETERO:NULL.0", config, seconds=0.2)
    assert {t.source for t in costs.devices["NULL.0"].nodes.values()} == {"estimated"}
    assert all(t.seconds > 0 for t in costs.devices["NULL.0"].nodes.values())


@pytest.mark.parametrize("step", ["nodes on NULL.1", "all devices at once"])
def test_profile_interrupted_returns_measured_costs(core, step):
    # Another speed, so that the second device forms a separate group.
    config = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_NODE_TIME_US": 20}}}

    def interrupt(done: int, steps: int, text: str) -> None:
        assert 0 <= done <= steps
        if text == step:
            raise KeyboardInterrupt

    costs = core.profile_model(
        CHAIN, "HETERO:NULL.0,NULL.1", config, seconds=0.3, progress=interrupt
    )
    assert costs.interrupted
    assert {t.source for t in costs.devices["NULL.0"].nodes.values()} == {"measured"}
    assert ("NULL.1" in costs.missing) == (step == "nodes on NULL.1")
    device_transfers = [t for pair, t in costs.transfers.items() if CLIENT not in pair]
    assert all(t.latency.source == "estimated" for t in device_transfers)


class _ExecutorWithoutDevice:
    """An executor that loses a device when its stages are deployed."""

    def __init__(self, inner: Any, lost_device: str) -> None:
        self._inner = inner
        self._lost_device = lost_device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deploy(self, plan: Any, *arguments: Any, **options: Any) -> Any:
        if self._lost_device in plan.devices:
            raise DeviceLostError(
                f"device {self._lost_device} is lost", device=self._lost_device, node="local"
            )
        return self._inner.deploy(plan, *arguments, **options)


def test_profile_lists_lost_device_as_missing(core):
    names = core.resolve_devices("HETERO:NULL.0,NULL.1")
    described = {d.name: d for d in core.device_descriptors}
    configs = {"NULL.0": {}, "NULL.1": {"NULL_NODE_TIME_US": 10}}
    subject = ProfileRequest(
        executor=_ExecutorWithoutDevice(core.executor, "NULL.1"),  # type: ignore[arg-type]  # a wrapper
        model=CHAIN,
        inputs={"v0": feeds(CHAIN)["v0"]},
        devices=tuple(described[n] for n in names),
        configs=configs,
        supports={n: core.executor.query(n, CHAIN, configs[n]) for n in names},
        seconds=0.3,
    )
    costs = profile(subject)
    assert list(costs.devices) == ["NULL.0"]
    assert "NULL.1 is lost" in costs.missing["NULL.1"]
    assert set(costs.transfers) == {("NULL.0", CLIENT), (CLIENT, "NULL.0")}


def test_profile_input_without_sample_raises(core):
    port = CHAIN.inputs[0]
    sequence = CHAIN.replace(inputs=[type(port)(port.name, "seq(tensor(float))")])
    with pytest.raises(TensorTypeError, match="v0"):
        core.profile_model(sequence, "HETERO:NULL.0")


def test_profile_accepts_sequence_inputs(core):
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["" : 17]>
            g (seq(float[n]) s, int64 i) => (float[n] y) { y = SequenceAt (s, i) }"""
        )
    )
    inputs = {"s": [np.ones(2, np.float32), np.ones(3, np.float32)], "i": np.array(1)}
    costs = core.profile_model(model, "CPU", inputs=inputs, seconds=0.1)
    assert {time.source for time in costs.devices["CPU"].nodes.values()} == {"measured"}


@pytest.mark.parametrize(
    ("clock_offsets", "transfer_times"),
    [((0.0, 0.0), (1.0, 2.0, 3.0)), ((70.0, -50.0), (2.0, 2.0, 2.0))],
)
def test_measure_latency_with_and_without_common_clock(
    clock_offsets,
    transfer_times,
    monkeypatch,
):
    """Transfers of 1, 2 and 3 s, runs of 1 and 3 s; `clock_offsets` are those of the devices."""

    class Scripted(Clock):
        def submit(self, *_: Any) -> Any:
            a, b = (self.now_s + offset for offset in clock_offsets)
            runs = (
                StageTiming(0, "A", started_s=a + 1, ended_s=a + 2),
                StageTiming(1, "B", started_s=b + 4, ended_s=b + 7),
            )
            self.now_s += 10
            future: Future[Response] = Future()
            future.set_result(Response({}, runs))
            return SimpleNamespace(future=future)

    scripted = Scripted(read_s=0.0)
    monkeypatch.setattr("hetero.planning.cost.timing.time", scripted)
    monkeypatch.setattr("hetero.measure.load_generator.time", scripted)
    measurement = measure_latency(scripted, {}, until_s=0.0)  # type: ignore[arg-type]  # a partial stand-in
    assert measurement.run_s == pytest.approx(4.0)
    assert (measurement.send_s, measurement.transfer_s, measurement.return_s) == pytest.approx(
        transfer_times
    )


def test_supported_parts_omit_computed_weights():
    model = read_model("light:squeezenet")
    parts = supported_parts(model, model.node_names, "A")
    assert len(parts) == 1
    convs = [n.name for n in model.nodes if n.op_type == "Conv"]
    smaller_parts = supported_parts(model, set(model.node_names) - {convs[3]}, "A")
    assert len(smaller_parts) >= 2
    assert all(convs[3] not in part.node_names for part in smaller_parts)
    computed_weights = [n.name for n in model.nodes if n.op_type == "ConstantOfShape"]
    assert supported_parts(model, computed_weights, "A") == []


def _timing(rows: dict[str, tuple[float, tuple[str, ...]]], run_s: float) -> ModelTiming:
    executed = tuple(
        ExecutedNode(name, "X", i, "x", covers)
        for i, (name, (_, covers)) in enumerate(rows.items())
    )
    return ModelTiming(run_s, {name: seconds for name, (seconds, _) in rows.items()}, executed)


def _model() -> Model:
    return build("a: p = Relu(x)\nb: q = Neg(p)\nc: y = Abs(q)", outputs="y")


def test_distribute_times_of_fused_nodes():
    timing = _timing({"ab": (2.0, ("a", "b")), "layout": (1.0, ()), "c": (1.0, ("c",))}, 8.0)
    times = distribute_times(_model(), timing)
    # The layout conversion counts for a and b, in equal parts: (2 + 1) / 4 of 8 seconds.
    assert times == pytest.approx({"a": 3.0, "b": 3.0, "c": 2.0})
    assert find_fused_groups(_model(), timing.executed_nodes) == [("a", "b")]


def test_distribute_times_of_node_folded_into_several():
    rows = {"ab": (2.0, ("a", "b")), "ac": (6.0, ("a", "c"))}
    timing = _timing(rows, 8.0)
    assert distribute_times(_model(), timing) == pytest.approx({"a": 0.0, "b": 2.0, "c": 6.0})
    assert find_fused_groups(_model(), timing.executed_nodes) == []
    other_timing = _timing({"a1": (1.0, ("a",)), "a2": (1.0, ("a",)), "bc": (2.0, ("b", "c"))}, 4.0)
    assert distribute_times(_model(), other_timing) == pytest.approx({"a": 2.0, "b": 1.0, "c": 1.0})


def test_distribute_times_of_eliminated_node_is_zero():
    times = distribute_times(_model(), _timing({"a": (1.0, ("a",)), "c": (1.0, ("c",))}, 4.0))
    assert times == pytest.approx({"a": 2.0, "b": 0.0, "c": 2.0})
