"""Planning by cost: against every assignment, under constraints, and through Core."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

import hetero
from devices.errors import AffinityError, PlanError, PropertyError, UnsupportedNodesError
from devices.model.model import Model, Node
from devices.model.reader import read_model
from devices.model.variables import with_states
from devices.null.plugin import NullPlugin
from devices.plugin.support import Refusal
from hetero.affinity.affinity import Affinity
from hetero.partition.partition import partition
from hetero.planning import PlanReport
from hetero.planning.choose import Choice, choose
from hetero.planning.cost import CLIENT, ClientTime, Line, Pace, Time, Transfer
from hetero.planning.cost.cost_file import write_costs
from hetero.planning.cost.work import ASSUMED_SPEED, node_work, request_positions
from hetero.planning.predict import predict
from hetero.planning.problem import Constraints
from hetero.planning.problem import build as build_problem
from hetero.planning.solver import evaluate, make_problem
from hetero.planning.solver.candidates import wary
from hetero.planning.solver.latency import critical_path
from hetero.planning.solver.tidy import tidy
from tests.hetero.costs import costs, task
from tests.hetero.graphs import build, feeds

QUICK = {"PLAN_SECONDS": 0.5}


def chain(length: int) -> Model:
    lines = "\n".join(f"n{i}: v{i + 1} = Neg(v{i})" for i in range(length))
    return build(lines, inputs="v0", outputs=f"v{length}")


def random_model(seed: int, count: int) -> Model:
    dice = random.Random(seed)
    values = ["x"]
    lines = []
    for i in range(count):
        a, b = dice.choice(values[-3:]), dice.choice(values)
        lines.append(f"n{i}: v{i} = Add({a}, {b})")
        values.append(f"v{i}")
    ends = " ".join(v for v in values[1:] if not any(f"({v}," in x or f" {v})" in x for x in lines))
    return build("\n".join(lines), outputs=ends)


def load_of(report: PlanReport) -> dict[str, float]:
    found = dict.fromkeys(report.devices, 0.0)
    for s in report.stages:
        share = report.variants[s.variant].share
        found[s.device] += share * (s.run_s + s.transfer_s + s.overhead_s)
    return found


def judged(model: Model, given: Any, placed: Mapping[str, str]) -> tuple[float, float]:
    """Bottleneck and latency of an affinity, by the prediction of its real partition."""
    stages, _, latency = predict(task(model, given), model, partition(model, placed))
    loads = dict.fromkeys(given.devices, 0.0)
    for s in stages:
        loads[s.device] += s.run_s + s.transfer_s + s.overhead_s
    return max(loads.values()), latency


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hint", ["THROUGHPUT", "LATENCY"])
def test_no_assignment_is_better(seed: int, hint: Any) -> None:
    dice = random.Random(seed)
    model = random_model(seed, 6)
    times = {
        d: {n: dice.uniform(1e-3, 5e-3) * speed for n in model.node_names if dice.random() > drop}
        for d, speed, drop in (("A", 1.0, 0.2), ("B", 2.0, 0.0), ("C", 1.5, 0.2))
    }
    given = costs(model, times, wire=Line(4e-4, 0.0, "measured"), dispatch_s=1e-4)
    choice = Choice(hint=hint, seconds=0.5)
    report = choose(task(model, given), choice)
    placed = report.affinity
    assert all(n in times[d] for n, d in placed.items())
    assert load_of(report) == pytest.approx(dict(report.loads_s))
    figure = report.bottleneck_s if hint == "THROUGHPUT" else report.latency_s
    able = [[d for d in times if n in times[d]] for n in model.node_names]
    best = min(
        judged(model, given, dict(zip(model.node_names, devices, strict=True)))[hint == "LATENCY"]
        for devices in itertools.product(*able)
    )
    # Simpler plans within 3 % are preferred to the best.
    assert best * (1 - 1e-9) <= figure <= best * 1.03 * (1 + 1e-9)
    assert report.bound_s <= best * (1 + 1e-9)


def test_the_same_task_gives_the_same_plan() -> None:
    model = random_model(7, 40)
    dice = random.Random(3)
    times = {d: {n: dice.uniform(1e-3, 5e-3) for n in model.node_names} for d in ("A", "B", "C")}
    given = costs(model, times, wire=Line(1e-4, 0.0, "measured"))
    first, second = (choose(task(model, given), Choice(seconds=1.0, seed=11)) for _ in range(2))
    assert first.affinity == second.affinity
    assert first.alternatives == second.alternatives


def test_a_report_is_json_and_tells_the_rest() -> None:
    model = chain(8)
    times = {d: dict.fromkeys(model.node_names, t) for d, t in (("A", 1e-3), ("B", 3e-3))}
    given = costs(model, times)
    listed = Affinity(dict.fromkeys(model.node_names, "A"))
    report = choose(task(model, given), Choice(seconds=0.3), listed)
    document = json.loads(json.dumps(report.to_dict()))
    # Six nodes on A and two on B, or so: 6 ms each.
    assert report.bottleneck_s == pytest.approx(6e-3)
    assert document["predicted"]["bottleneck_s"] == report.bottleneck_s
    assert document["predicted"]["throughput_per_s"] == pytest.approx(1 / 6e-3)
    names = {a.name: a for a in report.alternatives}
    assert names["single A"].bottleneck_s == names["priority"].bottleneck_s == pytest.approx(8e-3)
    assert names["single B"].bottleneck_s == pytest.approx(24e-3)
    assert sum(a.chosen for a in report.alternatives) == 1
    assert report.sources == {"measured": 16}
    assert "proven lower bound 6 ms" in report.sentence()
    assert report.ratio == pytest.approx(1.0)


def test_priority_is_only_judged() -> None:
    model = chain(6)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    listed = Affinity(dict.fromkeys(model.node_names, "A"), dict.fromkeys(model.node_names, "why"))
    report = choose(task(model, costs(model, times)), Choice(policy="PRIORITY"), listed)
    assert report.affinity == listed
    assert report.bottleneck_s == pytest.approx(6e-3)
    assert any("bottleneck 3 ms instead of 6 ms" in line for line in report.advice)


def test_a_device_without_company_is_not_slowed_by_it() -> None:
    model = chain(4)
    given = costs(model, {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")})
    pace = Pace(Time(2.0, "calibrated"))
    loaded = {n: replace(c, company=pace) for n, c in given.devices.items()}
    both = replace(given, devices=loaded)
    listed = Affinity(dict.fromkeys(model.node_names, "A"))
    alone = choose(task(model, both), Choice(policy="PRIORITY"), listed)
    assert alone.bottleneck_s == pytest.approx(4e-3)
    assert choose(task(model, both), Choice(seconds=0.2)).bottleneck_s == pytest.approx(4e-3)


def test_a_request_takes_its_stages_and_the_ways_between_them_and_the_client() -> None:
    """By hand: vectors of 3 floats, x to A; a on A; b on A and c on B side by side; d on B."""
    model = build(
        "a: p = Neg(x)\nb: q = Neg(p)\nc: r = Abs(p)\nd: y = Add(q, r)",
        outputs="y q",
    )
    times = {d: {"a": 1e-3, "b": 3e-3, "c": 4e-3, "d": 2e-3} for d in "AB"}
    given = costs(model, times, wire=Line(1e-3, 1e-5, "measured"))
    ways = {
        (CLIENT, "A"): Line(5e-4, 1e-4, "measured"),
        ("A", CLIENT): Line(2e-2, 0.0, "measured"),
        ("B", CLIENT): Line(3e-4, 1e-4, "measured"),
    }
    ends = {pair: Transfer(way, Line(0.0, 0.0, "measured")) for pair, way in ways.items()}
    placed = {"a": "A", "b": "A", "c": "B", "d": "B"}
    _, latency = judged(model, replace(given, transfers={**given.transfers, **ends}), placed)
    there, wire = 5e-4 + 12 * 1e-4, 1e-3 + 12 * 1e-5
    cut = [(s.device, s.node_names) for s in partition(model, placed).subgraphs]
    assert cut == [("A", ("a", "b")), ("B", ("c", "d"))]
    on_a = there + 1e-3 + 3e-3
    assert latency == pytest.approx(max(on_a + 2e-2, on_a + wire + 6e-3 + 3e-4 + 12 * 1e-4))


@pytest.mark.parametrize(("stage_s", "stages", "busiest"), [(1e-4, 2, "A"), (3e-3, 1, CLIENT)])
def test_what_all_requests_share_bounds_the_rate(stage_s: float, stages: int, busiest: str) -> None:
    """Two halves of 4 ms, unless a second stage costs the client more than that saves."""
    model = chain(2)
    given = costs(model, {d: dict.fromkeys(model.node_names, 4e-3) for d in "AB"})
    client = ClientTime(Time(6e-3 * (stages == 1), "measured"), Time(stage_s, "measured"))
    report = choose(task(model, replace(given, client=client)), Choice(seconds=0.2))
    assert len(report.stages) == stages
    assert report.bottleneck == busiest
    assert report.bottleneck_s == pytest.approx(max(8e-3 / stages, client(stages)))


def test_pipelines_are_in_order() -> None:
    model = chain(9)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B", "C")}
    choice = Choice(policy="PIPELINE_PARALLEL", seconds=0.3)
    report = choose(task(model, costs(model, times)), choice)
    devices = [report.affinity[n] for n in model.node_names]
    assert [len(list(group)) for _, group in itertools.groupby(devices)] == [3, 3, 3]


def test_replicas_where_variants_may_be() -> None:
    model = build("only: y = Neg(x)", outputs="y")
    times = {"A": {"only": 1e-3}, "B": {"only": 3e-3}}
    given = costs(model, times)
    one = choose(task(model, given), Choice(seconds=0.2))
    assert one.bottleneck_s == pytest.approx(1e-3)
    assert any("with 2 plans sharing requests" in line for line in one.advice)
    two = choose(task(model, given), Choice(seconds=0.2, max_variants=2))
    # Three of four requests to A: both devices are busy for 0.75 ms a request.
    assert two.bottleneck_s == pytest.approx(0.75e-3)
    assert [v.share for v in two.variants] == pytest.approx([0.75, 0.25])
    assert [set(v.affinity.values()) for v in two.variants] == [{"A"}, {"B"}]
    assert load_of(two) == pytest.approx(dict(two.loads_s))


def test_constraints_hold() -> None:
    model = chain(8)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    given = costs(model, times)
    pins = Affinity({"n2": "B"}, {"n2": "pin: name n2"})
    limits = Constraints(pins=pins, colocation={"g": ("n2", "n7")}, max_subgraphs=2)
    report = choose(task(model, given, limits), Choice(seconds=0.3))
    assert report.affinity["n2"] == report.affinity["n7"] == "B"
    assert report.affinity.reasons["n2"] == "pin: name n2"
    assert len(report.stages) <= 2


def weighted(count: int) -> Model:
    """A chain whose nodes have 12 bytes of weights each."""
    lines = "\n".join(f"n{i}: v{i + 1} = Add(v{i}, w{i})" for i in range(count))
    weights = " ".join(f"w{i}" for i in range(count))
    return build(lines, inputs="v0", outputs=f"v{count}", constants=weights)


@pytest.mark.parametrize(
    ("limits", "constraint", "said"),
    [
        (Constraints(memory_nbytes={"A": 24, "B": 24}), "memory", "n0"),
        (Constraints(memory_nbytes={"A": 4, "B": 4}), "memory", "n0"),
        (
            Constraints(pins=Affinity({"n0": "A", "n1": "B"}), colocation={"g": ("n0", "n1")}),
            "colocation",
            "'n0', 'n1'",
        ),
        (Constraints(pins=Affinity({"n0": "A", "n1": "B"}), max_subgraphs=1), "subgraphs", "n0"),
    ],
)
def test_impossible_constraints_name_nodes(limits: Constraints, constraint: str, said: str) -> None:
    model = weighted(6)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    with pytest.raises(PlanError) as caught:
        choose(task(model, costs(model, times), limits), Choice(seconds=0.2))
    assert caught.value.constraint == constraint
    assert said in str(caught.value)
    assert caught.value.nodes


def test_memory_is_kept_to() -> None:
    model = weighted(6)
    times = {"A": dict.fromkeys(model.node_names, 1e-3), "B": dict.fromkeys(model.node_names, 9e-3)}
    limits = Constraints(memory_nbytes={"A": 40})
    report = choose(task(model, costs(model, times), limits), Choice(seconds=0.3))
    assert sum(d == "A" for d in report.affinity.values()) == 3


def test_made_weights_follow_their_readers() -> None:
    model = read_model("light:squeezenet")
    alive = [model.nodes[p].name for p in request_positions(model)]
    seconds = {n: ASSUMED_SPEED(node_work(model, model.nodes[model.index_of[n]])) for n in alive}
    every = dict.fromkeys(model.node_names, 0.0)
    given = costs(
        model,
        {d: {**every, **seconds} for d in ("A", "B", "C")},
        wire=Line(1e-5, 1e-10, "measured"),
    )
    report = choose(task(model, given), Choice(seconds=1.0))
    assert len(set(report.affinity.values())) == 3
    cut = partition(model, report.affinity)
    made = {v for n in model.nodes if n.name not in set(alive) for v in n.writes}
    assert not made & {wire.tensor for wire in cut.wires}
    assert all("ConstantOfShape" not in w.tensor for w in cut.wires)
    assert report.bottleneck_s < 0.6 * sum(seconds.values())


def test_what_devices_fuse_stays_together() -> None:
    model = chain(6)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    given = costs(model, times, fused=(("n1", "n2", "n3"),))
    report = choose(task(model, given), Choice(seconds=0.2))
    assert len({report.affinity[n] for n in ("n1", "n2", "n3")}) == 1


def test_who_reads_a_state_and_who_makes_it_share_a_device() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    stateful (float[n] x, float[n] past) => (float[n] y, float[n] present)
    { a = Add (x, past) b = Neg (a) c = Exp (b) present = Neg (c) e = Exp (present) y = Neg (e) }"""
    plain = read_model(parse_model(text))
    times = {d: dict.fromkeys(plain.node_names, 1e-3) for d in ("A", "B")}
    ends = []
    for model in (plain, with_states(plain, {"past": "present"})):
        given = costs(model, times, wire=Line(1e-5, 0.0, "measured"))
        affinity = choose(task(model, given), Choice(seconds=0.2)).affinity
        assert set(affinity.values()) == {"A", "B"}
        ends.append(affinity["a"] == affinity["present"])
    assert ends == [False, True]


def test_fragments_are_given_back() -> None:
    none = np.zeros(2)
    costly = np.full(2, 2.0)
    tensors = [(v, [v + 1], costly, costly) for v in range(5)]
    problem = make_problem(np.ones((6, 2)), tensors)
    assert none.sum() == 0
    fragmented = (0, 0, 1, 0, 0, 0)
    settled = tidy(wary(problem), fragmented)
    assert settled == (0,) * 6
    assert evaluate(problem, settled).bottleneck < evaluate(problem, fragmented).bottleneck
    # What pays for its transfers stays.
    free = make_problem(np.ones((6, 2)), [(v, [v + 1], none, none) for v in range(5)])
    assert tidy(wary(free), (0, 0, 0, 1, 1, 1)) == (0, 0, 0, 1, 1, 1)


def test_critical_path() -> None:
    model = build("a: p = Neg(x)\nb: q = Neg(x)\nc: y = Add(p, q)", outputs="y")
    times = {"A": {"a": 1.0, "b": 5.0, "c": 2.0}, "B": {"a": 4.0, "b": 3.0, "c": 2.0}}
    problem = build_problem(task(model, costs(model, times)), "LATENCY").problem
    assert critical_path(problem) == pytest.approx(5.0)


# Through Core, on real and scripted devices.


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", devices={"NULL": 2}) as made:
        yield made


SCRIPT = {"NULL_NODE_TIME_US": 500, "PROFILE_SECONDS": 0.3, "PLAN_SECONDS": 0.3}


def test_hints_plan_by_cost_and_priority_stays_the_default(core: hetero.Core) -> None:
    model = chain(8)
    with core.compile_model(model, "HETERO:NULL.0,NULL.1", SCRIPT) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ("NULL.0",)
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
    with pytest.raises(PlanError, match="properties"):
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
            ran |= {(run.stage, run.device) for run in answer.stage_runs}
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
