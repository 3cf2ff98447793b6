"""Cost planning of models by a Core, on real and scripted devices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.errors import (
    AffinityError,
    ArgumentError,
    PlanError,
    PropertyError,
    UnsupportedNodesError,
)
from hetero.devices.model.model import Model, Node
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.plugin.support import Refusal
from hetero.planning.cost.cost_file import write_costs
from tests.support.chains import chain
from tests.support.core_fixtures import core_fixture
from tests.support.costs import costs
from tests.support.graphs import build, feeds
from tests.support.models import branches
from tests.support.overfull_plugin import SmallPlugin
from tests.support.products import WIDTH, products

core = core_fixture("module", devices={"NULL": 2})


SCRIPT = {"NULL_NODE_TIME_US": 500, "PROFILE_SECONDS": 0.1, "PLAN_SECONDS": 0.1}


def test_time_limit_of_a_profile_is_positive():
    with hetero.Core("inprocess") as core:
        for seconds in (0, -1, float("nan")):
            with pytest.raises(ArgumentError, match="expected a number greater than 0"):
                core.profile_model(branches(), "CPU", seconds=seconds)


def test_performance_hint_enables_cost_planning(core):
    model = chain(8)
    with core.compile_model(model, "HETERO:NULL.0,NULL.1", SCRIPT) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["NULL.0"]
        assert compiled.plan_report is None
    # Nodes so slow that splitting pays even with slow transfers on a busy machine.
    config = {**SCRIPT, "NULL_NODE_TIME_US": 20_000, "PERFORMANCE_HINT": "THROUGHPUT"}
    config["REPLICAS"] = 1
    with core.compile_model(model, "HETERO:NULL.0,NULL.1", config) as compiled:
        assert set(compiled.get_property("EXECUTION_DEVICES")) == {"NULL.0", "NULL.1"}
        report = compiled.plan_report
        assert report is not None
        assert report.policy == "AUTO"
        assert dict(compiled.affinity.devices) == dict(report.affinity.devices)
        pass_through = math.ceil(report.latency_s / report.bottleneck_s)
        num_requests = max(pass_through, 2) + 1
        assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == num_requests
        compiled(feeds(model))
    with core.compile_model(model, "NULL.1", config) as compiled:
        assert compiled.plan_report is None


def test_plan_model_from_cost_file(core, tmp_path):
    model = chain(8)
    devices = "HETERO:NULL.0,NULL.1"
    path = tmp_path / "costs.json"
    write_costs(core.profile_model(model, devices, SCRIPT, seconds=0.3), path)
    config = {**SCRIPT, "COST_FILE": str(path), "MODEL_DISTRIBUTION_POLICY": "AUTO"}
    first = core.plan_model(model, devices, config)
    assert core.plan_model(model, devices, config).affinity == first.affinity
    assert core.read_costs(path, model, devices, SCRIPT).model_hash == model.content_hash
    with pytest.raises(PlanError, match="hash"):
        core.plan_model(chain(7), devices, config)
    with pytest.raises(PlanError, match="device CPU is missing"):
        core.plan_model(model, "HETERO:NULL.0,CPU", config)
    with pytest.raises(PlanError, match="measured with 500"):
        core.plan_model(model, devices, {**config, "NULL_NODE_TIME_US": 1})


def test_costs_of_other_shapes_are_refused(core):
    devices = "HETERO:NULL.0,NULL.1"
    small, large = ({**SCRIPT, "PLAN_SHAPES": {"x": [rows, 3]}} for rows in (1, 2))
    costs_of_one_row = core.profile_model(branches(), devices, small)
    core.plan_model(branches(), devices, small, costs=costs_of_one_row)
    with pytest.raises(PlanError, match="shape"):
        core.plan_model(branches(), devices, large, costs=costs_of_one_row)


def test_budget_is_reduced_below_the_predicted_peak():
    """The peak of 161 kB is less than the budget of 162 kB."""
    budgets = {"SMALL": 4 * WIDTH * WIDTH * 4 + 2000, "CPU": 1_000_000_000}
    options = {"FIT_MEMORY": True, "DEVICE_MEMORY_NBYTES": budgets}
    with (
        hetero.Core("inprocess", plugins=[SmallPlugin]) as core,
        core.compile_model(products(4), "HETERO:SMALL,CPU", options) as compiled,
    ):
        advice = " ".join(compiled.plan_report.advice)
    assert "predicted peak 161 kB; planned again with 145 kB" in advice


def test_plan_model_pins_and_invalid_constraints(core):
    model = chain(6)
    devices = "HETERO:NULL.0,NULL.1"
    report = core.plan_model(model, devices, SCRIPT, affinity={"n0": "NULL.1"})
    assert report.affinity["n0"] == "NULL.1"
    unsupported = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_UNSUPPORTED": ["n0"]}}}
    with pytest.raises(AffinityError, match="n0"):
        core.plan_model(model, devices, {**SCRIPT, **unsupported}, affinity={"n0": "NULL.1"})
    with pytest.raises(PlanError, match=r"DEVICE_MEMORY_NBYTES: .*got 'GPU'"):
        core.plan_model(model, devices, {**SCRIPT, "DEVICE_MEMORY_NBYTES": {"GPU": 1}})
    with pytest.raises(AffinityError, match="COLOCATION"):
        core.plan_model(model, devices, {**SCRIPT, "COLOCATION": {"g": ["none"]}})
    for config in ({"COLOCATION": {"g": 1}}, {"DEVICE_MEMORY_NBYTES": {"NULL": "much"}}):
        with pytest.raises(PropertyError):
            core.plan_model(model, devices, {**SCRIPT, **config})


def test_replicas_share_requests_with_equal_results(core, tmp_path):
    model = build("a: p = Neg(x)\nb: y = Add(p, x)", outputs="y")
    device_string = "HETERO:CPU,ORT"
    config = {
        "MODEL_DISTRIBUTION_POLICY": "AUTO",
        "COLOCATION": {"all": ["*"]},
        "PLAN_SECONDS": 0.3,
        "COST_FILE": str(tmp_path / "costs.json"),
    }
    values = feeds(model)
    # Two devices of equal scripted speed: half of the requests for each.
    profiled = core.profile_model(model, device_string, seconds=0.2)
    equal = costs(model, {d: dict.fromkeys(model.node_names, 1e-3) for d in profiled.devices})
    devices = {
        name: replace(device, identity=profiled.devices[name].identity)
        for name, device in equal.devices.items()
    }
    write_costs(replace(equal, devices=devices), config["COST_FILE"])
    with core.compile_model(model, "CPU") as compiled:
        expected = compiled(values)[0]
    with core.compile_model(model, device_string, config) as compiled:
        assert compiled.plan_report is not None
        shares = [v.share for v in compiled.plan_report.replicas]
        assert shares == pytest.approx([0.5, 0.5])
        stages = set()
        for _ in range(4):
            result = compiled.submit(values).future.result()
            np.testing.assert_array_equal(result.outputs["y"], expected)
            stages |= {(run.stage, run.device) for run in result.stage_timings}
        assert {device for _, device in stages} == {"CPU", "ORT"}
        assert {(s.index, s.device) for s in compiled.subgraphs} == stages
        np.testing.assert_array_equal(compiled(values)[0], expected)
        assert compiled.executed_nodes()


def test_costs_are_saved_in_the_cache_folder(core, tmp_path, monkeypatch):
    model = chain(5)
    devices = "HETERO:NULL.0,NULL.1"
    config = {**SCRIPT, "PERFORMANCE_HINT": "THROUGHPUT", "CACHE_DIR": str(tmp_path)}
    first = core.plan_model(model, devices, config)
    (cost_file,) = tmp_path.glob("*.costs.json")
    measured = cost_file.read_bytes()
    assert core.plan_model(model, devices, config).node_times == first.node_times
    assert cost_file.read_bytes() == measured
    cost_file.write_text("damaged")
    with hetero.Core(executor="inprocess", devices={"NULL": 2}) as other:
        other.plan_model(model, devices, config)
    assert cost_file.read_text() != "damaged"
    with core.compile_model(model, devices, config) as compiled:
        assert not compiled.get_property("LOADED_FROM_CACHE")
    with core.compile_model(model, devices, config) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
        assert compiled.affinity == core.compile_model(model, devices, config).affinity


def test_core_measures_costs_once(core, monkeypatch):
    model = chain(3)
    config = {**SCRIPT, "PERFORMANCE_HINT": "THROUGHPUT"}
    texts: list[str] = []
    first = core.plan_model(
        model, "HETERO:NULL.0,NULL.1", config, progress=lambda done, steps, text: texts.append(text)
    )
    assert "nodes on NULL.0" in texts
    assert texts[-1] == "searching plans"
    monkeypatch.setattr("hetero.planning.cost_planner.profile", None)
    replanned = core.plan_model(chain(3), "HETERO:NULL.0,NULL.1", config)
    assert replanned.node_times == first.node_times


class AbsNextToNegPlugin(NullPlugin):
    """Supports `Abs` only in a model that also has a `Neg`."""

    name = "PICKY"

    def refuse(self, node: Node, model: Model, config: Any) -> Refusal | None:
        if node.op_type == "Abs" and all(n.op_type != "Neg" for n in model.nodes):
            return Refusal("policy", "Abs without Neg")
        return super().refuse(node, model, config)


def test_plan_with_refused_subgraph_is_replaced():
    model = build("n0: p = Neg(x)\nn1: y = Abs(p)", outputs="y")
    config = {
        **SCRIPT,
        "DEVICE_PROPERTIES": {
            "PICKY": {"NULL_NODE_TIMES_US": {"op:Neg": 9000, "op:Abs": 0}},
            "NULL": {"NULL_NODE_TIMES_US": {"op:Neg": 0, "op:Abs": 9000}},
        },
    }
    with hetero.Core(executor="inprocess", plugins=[AbsNextToNegPlugin]) as core:
        report = core.plan_model(model, "HETERO:PICKY,NULL", config)
        assert dict(report.affinity.devices) != {"n0": "NULL", "n1": "PICKY"}
        hint = {**config, "PERFORMANCE_HINT": "THROUGHPUT"}
        with core.compile_model(model, "HETERO:PICKY,NULL", hint) as compiled:
            assert dict(compiled.affinity.devices) == dict(report.affinity.devices)
            compiled(feeds(model))


def test_priority_with_refused_subgraph_is_replaced():
    """PICKY supports Neg and Abs together; the pin between them separates them."""
    model = build("n0: p = Neg(x)\nn1: q = Tanh(p)\nn2: y = Abs(q)", outputs="y")
    with hetero.Core(executor="inprocess", plugins=[AbsNextToNegPlugin]) as core:
        devices, pins = "HETERO:PICKY,CPU", {"n1": "CPU"}
        with core.compile_model(model, devices, affinity=pins) as compiled:
            assert dict(compiled.affinity.devices) == {"n0": "PICKY", "n1": "CPU", "n2": "CPU"}
            compiled(feeds(model))
        priority_config = {**SCRIPT, "MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
        report = core.plan_model(model, devices, priority_config, affinity=pins)
        assert dict(report.affinity.devices) == {"n0": "PICKY", "n1": "CPU", "n2": "CPU"}


def test_compile_refusal_without_alternative_raises():
    model = build("n0: p = Neg(x)\nn1: q = Tanh(p)\nn2: y = Abs(q)", outputs="y")
    unsupported = {"DEVICE_PROPERTIES": {"NULL": {"NULL_UNSUPPORTED": ["n0", "n2"]}}}
    with hetero.Core(executor="inprocess", plugins=[AbsNextToNegPlugin]) as core:
        config = {**SCRIPT, **unsupported}
        with pytest.raises(UnsupportedNodesError, match="Abs without Neg"):
            core.compile_model(model, "HETERO:PICKY,NULL", config, affinity={"n1": "NULL"})
