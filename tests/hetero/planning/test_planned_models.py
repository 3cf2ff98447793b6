"""Models that a Core plans by cost, on real and scripted devices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hetero
from hetero.devices.errors import AffinityError, PlanError, PropertyError, UnsupportedNodesError
from hetero.devices.model.model import Model, Node
from hetero.devices.null.plugin import NullPlugin
from hetero.devices.plugin.support import Refusal
from hetero.planning.cost.cost_file import write_costs
from tests.support.chains import chain
from tests.support.costs import costs
from tests.support.graphs import build, feeds


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", devices={"NULL": 2}) as made:
        yield made


SCRIPT = {"NULL_NODE_TIME_US": 500, "PROFILE_SECONDS": 0.1, "PLAN_SECONDS": 0.1}


def test_hints_plan_by_cost_and_priority_stays_the_default(core: hetero.Core) -> None:
    model = chain(8)
    with core.compile_model(model, "HETERO:NULL.0,NULL.1", SCRIPT) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["NULL.0"]
        assert compiled.plan_report is None
    # Nodes so slow that to split them pays, however slow a busy machine finds the transfers.
    config = {**SCRIPT, "NULL_NODE_TIME_US": 20_000, "PERFORMANCE_HINT": "THROUGHPUT"}
    with core.compile_model(model, "HETERO:NULL.0,NULL.1", config) as compiled:
        assert set(compiled.get_property("EXECUTION_DEVICES")) == {"NULL.0", "NULL.1"}
        report = compiled.plan_report
        assert report is not None
        assert report.policy == "AUTO"
        assert dict(compiled.affinity.devices) == dict(report.affinity.devices)
        pass_through = math.ceil(report.latency_s / report.bottleneck_s)
        enough = max(pass_through, 2) + 1
        assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == enough
        compiled(feeds(model))
    with core.compile_model(model, "NULL.1", config) as compiled:
        assert compiled.plan_report is None


def test_plans_from_a_cost_file(core: hetero.Core, tmp_path: Path) -> None:
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
    with pytest.raises(PlanError, match="CPU is not in it"):
        core.plan_model(model, "HETERO:NULL.0,CPU", config)
    with pytest.raises(PlanError, match="NULL_NODE_TIME_US 500"):
        core.plan_model(model, devices, {**config, "NULL_NODE_TIME_US": 1})


def test_pins_hold_in_plans_and_wrong_ones_are_refused(core: hetero.Core) -> None:
    model = chain(6)
    devices = "HETERO:NULL.0,NULL.1"
    report = core.plan_model(model, devices, SCRIPT, affinity={"n0": "NULL.1"})
    assert report.affinity["n0"] == "NULL.1"
    refusing = {"DEVICE_PROPERTIES": {"NULL.1": {"NULL_UNSUPPORTED": ["n0"]}}}
    with pytest.raises(AffinityError, match="n0"):
        core.plan_model(model, devices, {**SCRIPT, **refusing}, affinity={"n0": "NULL.1"})
    with pytest.raises(PlanError, match="DEVICE_MEMORY_NBYTES names 'GPU'"):
        core.plan_model(model, devices, {**SCRIPT, "DEVICE_MEMORY_NBYTES": {"GPU": 1}})
    with pytest.raises(AffinityError, match="COLOCATION"):
        core.plan_model(model, devices, {**SCRIPT, "COLOCATION": {"g": ["none"]}})
    for wrong in ({"COLOCATION": {"g": 1}}, {"DEVICE_MEMORY_NBYTES": {"NULL": "much"}}):
        with pytest.raises(PropertyError):
            core.plan_model(model, devices, {**SCRIPT, **wrong})


def test_variants_share_requests_and_give_the_same_answers(
    core: hetero.Core, tmp_path: Path
) -> None:
    model = build("a: p = Neg(x)\nb: y = Add(p, x)", outputs="y")
    devices = "HETERO:CPU,ORT"
    config = {
        "MODEL_DISTRIBUTION_POLICY": "AUTO",
        "MAX_VARIANTS": 4,
        "COLOCATION": {"all": ["*"]},
        "PLAN_SECONDS": 0.3,
        "COST_FILE": str(tmp_path / "costs.json"),
    }
    values = feeds(model)
    # Two devices of one speed, whatever the clock says: half of the requests for each.
    found = core.profile_model(model, devices, seconds=0.2)
    equal = costs(model, {d: dict.fromkeys(model.node_names, 1e-3) for d in found.devices})
    known = {
        name: replace(device, identity=found.devices[name].identity)
        for name, device in equal.devices.items()
    }
    write_costs(replace(equal, devices=known), config["COST_FILE"])
    with core.compile_model(model, "CPU") as alone:
        expected = alone(values)[0]
    with core.compile_model(model, devices, config) as compiled:
        assert compiled.plan_report is not None
        shares = [v.share for v in compiled.plan_report.variants]
        assert shares == pytest.approx([0.5, 0.5])
        ran = set()
        for _ in range(4):
            answer = compiled.submit(values).future.result()
            np.testing.assert_array_equal(answer.outputs["y"], expected)
            ran |= {(run.stage, run.device) for run in answer.stage_timings}
        assert {device for _, device in ran} == {"CPU", "ORT"}
        assert {(s.index, s.device) for s in compiled.subgraphs} == ran
        np.testing.assert_array_equal(compiled(values)[0], expected)
        assert compiled.executed_nodes()


def test_costs_are_kept_in_the_cache_folder(
    core: hetero.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain(5)
    devices = "HETERO:NULL.0,NULL.1"
    config = {**SCRIPT, "PERFORMANCE_HINT": "THROUGHPUT", "CACHE_DIR": str(tmp_path)}
    first = core.plan_model(model, devices, config)
    (kept,) = tmp_path.glob("*.costs.json")
    measured = kept.read_bytes()
    assert core.plan_model(model, devices, config).node_times == first.node_times
    assert kept.read_bytes() == measured
    kept.write_text("damaged")
    with hetero.Core(executor="inprocess", devices={"NULL": 2}) as other:
        other.plan_model(model, devices, config)
    assert kept.read_text() != "damaged"
    with core.compile_model(model, devices, config) as compiled:
        assert not compiled.get_property("LOADED_FROM_CACHE")
    with core.compile_model(model, devices, config) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
        assert compiled.affinity == core.compile_model(model, devices, config).affinity


def test_costs_are_measured_once_by_a_core(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = chain(3)
    config = {**SCRIPT, "PERFORMANCE_HINT": "THROUGHPUT"}
    told: list[str] = []
    first = core.plan_model(
        model, "HETERO:NULL.0,NULL.1", config, progress=lambda done, steps, text: told.append(text)
    )
    assert "nodes on NULL.0" in told
    assert told[-1] == "searching plans"
    monkeypatch.setattr("hetero.planning.cost_planner.profile", None)
    again = core.plan_model(chain(3), "HETERO:NULL.0,NULL.1", config)
    assert again.node_times == first.node_times


class Picky(NullPlugin):
    """Takes `Abs` only where a `Neg` stands beside it."""

    name = "PICKY"

    def refuse(self, node: Node, model: Model, config: Any) -> Refusal | None:
        if node.op_type == "Abs" and all(n.op_type != "Neg" for n in model.nodes):
            return Refusal("policy", "Abs without Neg")
        return super().refuse(node, model, config)


def test_a_plan_whose_subgraph_is_refused_is_made_anew() -> None:
    model = build("n0: p = Neg(x)\nn1: y = Abs(p)", outputs="y")
    config = {
        **SCRIPT,
        "DEVICE_PROPERTIES": {
            "PICKY": {"NULL_NODE_TIMES_US": {"op:Neg": 9000, "op:Abs": 0}},
            "NULL": {"NULL_NODE_TIMES_US": {"op:Neg": 0, "op:Abs": 9000}},
        },
    }
    with hetero.Core(executor="inprocess", plugins=[Picky]) as core:
        report = core.plan_model(model, "HETERO:PICKY,NULL", config)
        assert dict(report.affinity.devices) != {"n0": "NULL", "n1": "PICKY"}
        hint = {**config, "PERFORMANCE_HINT": "THROUGHPUT"}
        with core.compile_model(model, "HETERO:PICKY,NULL", hint) as compiled:
            assert dict(compiled.affinity.devices) == dict(report.affinity.devices)
            compiled(feeds(model))


def test_a_subgraph_of_the_priority_list_that_is_refused_is_placed_anew() -> None:
    """PICKY takes Neg and Abs together; the pin in between parts them, and Abs goes on alone."""
    model = build("n0: p = Neg(x)\nn1: q = Tanh(p)\nn2: y = Abs(q)", outputs="y")
    with hetero.Core(executor="inprocess", plugins=[Picky]) as core:
        devices, pins = "HETERO:PICKY,CPU", {"n1": "CPU"}
        with core.compile_model(model, devices, affinity=pins) as compiled:
            assert dict(compiled.affinity.devices) == {"n0": "PICKY", "n1": "CPU", "n2": "CPU"}
            compiled(feeds(model))
        judged = {**SCRIPT, "MODEL_DISTRIBUTION_POLICY": "PRIORITY"}
        report = core.plan_model(model, devices, judged, affinity=pins)
        assert dict(report.affinity.devices) == {"n0": "PICKY", "n1": "CPU", "n2": "CPU"}


def test_a_refusal_that_no_other_device_can_mend_is_raised() -> None:
    model = build("n0: p = Neg(x)\nn1: q = Tanh(p)\nn2: y = Abs(q)", outputs="y")
    refusing = {"DEVICE_PROPERTIES": {"NULL": {"NULL_UNSUPPORTED": ["n0", "n2"]}}}
    with hetero.Core(executor="inprocess", plugins=[Picky]) as core:
        config = {**SCRIPT, **refusing}
        with pytest.raises(UnsupportedNodesError, match="Abs without Neg"):
            core.compile_model(model, "HETERO:PICKY,NULL", config, affinity={"n1": "NULL"})
