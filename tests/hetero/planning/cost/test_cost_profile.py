"""Profiling on scripted devices: what is measured, estimated, left out and kept."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
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
from hetero.planning.cost.node_times import fused_groups, spread
from hetero.planning.cost.profile import profile
from hetero.planning.cost.profile_inputs import regions
from hetero.planning.cost.profile_request import Subject
from hetero.planning.cost.timing import Timing, look
from tests.support.graphs import build, feeds

CHAIN = build(
    "\n".join(f"n{i}: v{i + 1} = {'Relu' if i % 2 else 'Neg'}(v{i})" for i in range(12)),
    inputs="v0",
    outputs="v12",
)
SCRIPT = {"NULL_NODE_TIMES_US": {"op:Relu": 300, "op:Neg": 100}}


@pytest.fixture
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", devices={"NULL": 2}) as made:
        yield made


class Clock:
    """A clock that counts looks and runs, so that no load of the machine ends a measurement."""

    def __init__(self, look_s: float = 1e-4, run_s: float = 0.0) -> None:
        self.now_s = 0.0
        self.look_s, self.run_s = look_s, run_s

    def monotonic(self) -> float:
        self.now_s += self.look_s
        return self.now_s

    def install(self, core: hetero.Core, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in ("profile", "timing", "transfers", "load"):
            monkeypatch.setattr(f"hetero.planning.cost.{module}.time", self)
        deploy = core.executor.deploy

        def deployed(*arguments: Any, **options: Any) -> Any:
            deployment = deploy(*arguments, **options)
            submit = deployment.submit

            def counted(*values: Any, **more: Any) -> Any:
                self.now_s += self.run_s
                return submit(*values, **more)

            monkeypatch.setattr(deployment, "submit", counted)
            return deployment

        monkeypatch.setattr(core.executor, "deploy", deployed)


def test_the_time_granted_is_kept_to(core: hetero.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run takes a tenth of a second: warming up, counting, load and transfers all count."""
    clock = Clock(look_s=0.0, run_s=0.1)
    clock.install(core, monkeypatch)
    told: list[tuple[int, int]] = []
    costs = core.profile_model(
        CHAIN,
        "HETERO:NULL.0,CPU",
        SCRIPT,
        seconds=15.0,
        progress=lambda done, steps, text: told.append((done, steps)),
    )
    assert clock.now_s < 15 + 3
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    assert set(costs.devices) == {"NULL.0", "CPU"}
    assert all(t.seconds > 0 for d in costs.devices.values() for t in d.nodes.values())


def test_without_any_time_each_device_runs_three_times(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(look_s=1e-3, run_s=1.0)
    clock.install(core, monkeypatch)
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,CPU", SCRIPT, seconds=1e-9)
    # One run to warm up, one for the nodes' times, one that counts.
    assert int(clock.now_s) == 6
    assert {t.source for t in costs.devices["NULL.0"].nodes.values()} == {"measured"}
    assert {t.latency.source for t in costs.transfers.values()} == {"estimated"}


@pytest.mark.slow
def test_scripted_times_come_back_in_proportion(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    Clock().install(core, monkeypatch)
    # Nor does other work on the machine spoil a figure: `test_cost_work` has that.
    monkeypatch.setattr("hetero.planning.cost.calibration.SPOILED", math.inf)
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,NULL.1", SCRIPT, seconds=0.5)
    assert not costs.missing
    assert not costs.interrupted
    assert costs.shapes == {"v0": (3,)}
    for device in costs.devices.values():
        seconds = [device.nodes[f"n{i}"].seconds for i in range(12)]
        assert {t.source for t in device.nodes.values()} == {"measured"}
        assert all(relu == pytest.approx(3 * seconds[0]) for relu in seconds[1::2])
        # A wait is never shorter than asked for.
        assert sum(seconds) >= 12 * 200e-6
    ends = ("NULL.0", "NULL.1", CLIENT)
    assert set(costs.transfers) == set(itertools.permutations(ends, 2))
    for device in costs.devices.values():
        assert device.alone.source == device.company.source == "calibrated"
    assert all(t.latency.source == "calibrated" for t in costs.transfers.values())


def test_unlike_settings_are_unlike_devices(core: hetero.Core) -> None:
    config = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_NODE_TIME_US": 200}}}
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,NULL.1", config, seconds=0.3)
    quick, slow = costs.devices["NULL.0"], costs.devices["NULL.1"]
    assert quick.identity != slow.identity
    assert slow.nodes["n0"].seconds >= 200e-6 > quick.nodes["n0"].seconds


def test_refused_nodes_have_no_time(core: hetero.Core) -> None:
    config = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_UNSUPPORTED": ["n4"]}}}
    costs = core.profile_model(CHAIN, "HETERO:NULL.0,NULL.1", config, seconds=0.3)
    assert "n4" in costs.devices["NULL.0"].nodes
    assert "n4" not in costs.devices["NULL.1"].nodes
    assert len(costs.devices["NULL.1"].nodes) == 11


def test_a_failing_part_is_estimated(core: hetero.Core) -> None:
    config = {"NULL_FAULT": "fail@1"}
    costs = core.profile_model(CHAIN, "HETERO:NULL.0", config, seconds=0.2)
    assert {t.source for t in costs.devices["NULL.0"].nodes.values()} == {"estimated"}
    assert all(t.seconds > 0 for t in costs.devices["NULL.0"].nodes.values())


@pytest.mark.parametrize("at", ["nodes on NULL.1", "all devices at once"])
def test_ctrl_c_keeps_what_was_measured(core: hetero.Core, at: str) -> None:
    # Of another speed, so that the second device is measured by itself.
    config = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_NODE_TIME_US": 20}}}

    def interrupt(done: int, steps: int, text: str) -> None:
        assert 0 <= done <= steps
        if text == at:
            raise KeyboardInterrupt

    costs = core.profile_model(
        CHAIN, "HETERO:NULL.0,NULL.1", config, seconds=0.3, progress=interrupt
    )
    assert costs.interrupted
    assert {t.source for t in costs.devices["NULL.0"].nodes.values()} == {"measured"}
    assert ("NULL.1" in costs.missing) == (at == "nodes on NULL.1")
    between = [t for pair, t in costs.transfers.items() if CLIENT not in pair]
    assert all(t.latency.source == "estimated" for t in between)


class _Vanishing:
    """An executor one of whose devices is gone once its stages are to run."""

    def __init__(self, inner: Any, gone: str) -> None:
        self._inner = inner
        self._gone = gone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def deploy(self, plan: Any, *arguments: Any, **options: Any) -> Any:
        if self._gone in plan.devices:
            raise DeviceLostError(f"device {self._gone} is gone", device=self._gone, node="local")
        return self._inner.deploy(plan, *arguments, **options)


def test_a_vanished_device_is_left_out(core: hetero.Core) -> None:
    names = core.resolve_devices("HETERO:NULL.0,NULL.1")
    described = {d.name: d for d in core.device_descriptors}
    configs = {"NULL.0": {}, "NULL.1": {"NULL_NODE_TIME_US": 10}}
    subject = Subject(
        executor=_Vanishing(core.executor, "NULL.1"),  # type: ignore[arg-type]  # a wrapper
        model=CHAIN,
        inputs={"v0": feeds(CHAIN)["v0"]},
        devices=tuple(described[n] for n in names),
        configs=configs,
        supports={n: core.executor.query(n, CHAIN, configs[n]) for n in names},
        seconds=0.3,
    )
    costs = profile(subject)
    assert list(costs.devices) == ["NULL.0"]
    assert "NULL.1 is gone" in costs.missing["NULL.1"]
    assert set(costs.transfers) == {("NULL.0", CLIENT), (CLIENT, "NULL.0")}


def test_inputs_that_cannot_be_made_up(core: hetero.Core) -> None:
    port = CHAIN.inputs[0]
    sequence = CHAIN.replace(inputs=[type(port)(port.name, "seq(tensor(float))")])
    with pytest.raises(TensorTypeError, match="v0"):
        core.profile_model(sequence, "HETERO:NULL.0")


def test_a_sequence_of_arrays_of_unlike_shapes_is_measured_with(core: hetero.Core) -> None:
    model = read_model(
        parse_model(
            """<ir_version: 8, opset_import: ["" : 17]>
            g (seq(float[n]) s, int64 i) => (float[n] y) { y = SequenceAt (s, i) }"""
        )
    )
    given = {"s": [np.ones(2, np.float32), np.ones(3, np.float32)], "i": np.array(1)}
    costs = core.profile_model(model, "CPU", inputs=given, seconds=0.1)
    assert {time.source for time in costs.devices["CPU"].nodes.values()} == {"measured"}


@pytest.mark.parametrize(
    ("zeros", "ways"), [((0.0, 0.0), (1.0, 2.0, 3.0)), ((70.0, -50.0), (2.0, 2.0, 2.0))]
)
def test_a_look_tells_ways_apart_where_clocks_compare(
    zeros: tuple[float, float], ways: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ways of 1, 2 and 3 s, runs of 1 and 3 s; `zeros`: of the clocks of both devices."""

    class Scripted(Clock):
        def submit(self, *_: Any) -> Any:
            a, b = (self.now_s + zero for zero in zeros)
            runs = (
                StageTiming(0, "A", started_s=a + 1, ended_s=a + 2),
                StageTiming(1, "B", started_s=b + 4, ended_s=b + 7),
            )
            self.now_s += 10
            future: Future[Response] = Future()
            future.set_result(Response({}, runs))
            return SimpleNamespace(future=future)

    scripted = Scripted(look_s=0.0)
    monkeypatch.setattr("hetero.planning.cost.timing.time", scripted)
    monkeypatch.setattr("hetero.measure.load_generator.time", scripted)
    found = look(scripted, {}, until_s=0.0)  # type: ignore[arg-type]  # as far as it is needed
    assert found.run_s == pytest.approx(4.0)
    assert (found.there_s, found.between_s, found.back_s) == pytest.approx(ways)


def test_regions_leave_out_made_weights() -> None:
    model = read_model("light:squeezenet")
    whole = regions(model, model.node_names, "A")
    assert len(whole) == 1
    convs = [n.name for n in model.nodes if n.op_type == "Conv"]
    without = regions(model, set(model.node_names) - {convs[3]}, "A")
    assert len(without) >= 2
    assert all(convs[3] not in part.node_names for part in without)
    made = [n.name for n in model.nodes if n.op_type == "ConstantOfShape"]
    assert regions(model, made, "A") == []


def _timing(rows: dict[str, tuple[float, tuple[str, ...]]], run_s: float) -> Timing:
    executed = tuple(
        ExecutedNode(name, "X", i, "x", covers)
        for i, (name, (_, covers)) in enumerate(rows.items())
    )
    return Timing(run_s, {name: seconds for name, (seconds, _) in rows.items()}, executed)


def _model() -> Model:
    return build("a: p = Relu(x)\nb: q = Neg(p)\nc: y = Abs(q)", outputs="y")


def test_fused_times_are_spread_and_scaled() -> None:
    timing = _timing({"ab": (2.0, ("a", "b")), "layout": (1.0, ()), "c": (1.0, ("c",))}, 8.0)
    times = spread(_model(), timing)
    # The change of layout follows a and b, which share alike: (2 + 1) of 4 parts of 8 seconds.
    assert times == pytest.approx({"a": 3.0, "b": 3.0, "c": 2.0})
    assert fused_groups(_model(), timing.executed) == [("a", "b")]


def test_a_node_folded_into_several_has_no_part_in_them_and_does_not_tie_them() -> None:
    rows = {"ab": (2.0, ("a", "b")), "ac": (6.0, ("a", "c"))}
    timing = _timing(rows, 8.0)
    assert spread(_model(), timing) == pytest.approx({"a": 0.0, "b": 2.0, "c": 6.0})
    assert fused_groups(_model(), timing.executed) == []
    only = _timing({"a1": (1.0, ("a",)), "a2": (1.0, ("a",)), "bc": (2.0, ("b", "c"))}, 4.0)
    assert spread(_model(), only) == pytest.approx({"a": 2.0, "b": 1.0, "c": 1.0})


def test_nodes_that_a_device_leaves_nothing_of_take_nothing() -> None:
    times = spread(_model(), _timing({"a": (1.0, ("a",)), "c": (1.0, ("c",))}, 4.0))
    assert times == pytest.approx({"a": 2.0, "b": 0.0, "c": 2.0})
