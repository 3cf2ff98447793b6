"""Planning tasks: plans compared with all assignments, and with constraints."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from onnx.parser import parse_model

from hetero.affinity.affinity import Affinity
from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.errors import PlanError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model
from hetero.devices.model.variables import with_states
from hetero.partition.partition import partition
from hetero.planning.cost.costs import CLIENT, LinearCost, LoadFactors, Transfer
from hetero.planning.cost.estimation import DEFAULT_SPEED, count_work
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import PlanOptions, plan_task
from hetero.planning.predict import predict_latency, predict_stages
from hetero.planning.solver.bounds import critical_path
from hetero.planning.solver.local_search import remove_fragments
from hetero.planning.solver.problem import make_problem, with_dispatch_margin
from hetero.planning.task import Constraints, build_problem
from tests.support.chains import chain, random_model
from tests.support.costs import costs, task
from tests.support.evaluation import evaluate
from tests.support.graphs import build


def busy_seconds(report: PlanReport) -> dict[str, float]:
    loads = dict.fromkeys(report.devices, 0.0)
    for s in report.stages:
        share = report.replicas[s.replica].share
        loads[s.device] += share * (s.run_s + s.transfer_s + s.overhead_s)
    return loads


def predicted_costs(
    model: Model, model_costs: Any, affinity: Mapping[str, str]
) -> tuple[float, float]:
    """Return the predicted bottleneck and latency of an affinity."""
    planning_task, split = task(model, model_costs), partition(model, affinity)
    loads = dict.fromkeys(model_costs.devices, 0.0)
    for s in predict_stages(planning_task, split):
        loads[s.device] += s.run_s + s.transfer_s + s.overhead_s
    return max(loads.values()), predict_latency(planning_task, split)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("hint", ["THROUGHPUT", "LATENCY"])
def test_plan_is_optimal_over_all_assignments(seed, hint):
    dice = random.Random(seed)
    model = random_model(seed, 6)
    times = {
        d: {n: dice.uniform(1e-3, 5e-3) * speed for n in model.node_names if dice.random() > drop}
        for d, speed, drop in (("A", 1.0, 0.2), ("B", 2.0, 0.0), ("C", 1.5, 0.2))
    }
    model_costs = costs(model, times, wire=LinearCost(4e-4, 0.0, "measured"), call_s=1e-4)
    options = PlanOptions(hint=hint, seconds=0.5)
    report = plan_task(task(model, model_costs), options)
    affinity = report.affinity
    assert all(n in times[d] for n, d in affinity.items())
    assert busy_seconds(report) == pytest.approx(dict(report.loads_s))
    objective_s = report.bottleneck_s if hint == "THROUGHPUT" else report.latency_s
    options = [[d for d in times if n in times[d]] for n in model.node_names]
    best = min(
        predicted_costs(model, model_costs, dict(zip(model.node_names, devices, strict=True)))[
            hint == "LATENCY"
        ]
        for devices in itertools.product(*options)
    )
    # Simpler plans within 3 % are preferred to the best.
    assert best * (1 - 1e-9) <= objective_s <= best * 1.03 * (1 + 1e-9)
    assert report.bound_s <= best * (1 + 1e-9)


def test_plan_is_deterministic():
    model = random_model(7, 20)
    dice = random.Random(3)
    times = {d: {n: dice.uniform(1e-3, 5e-3) for n in model.node_names} for d in ("A", "B", "C")}
    model_costs = costs(model, times, wire=LinearCost(1e-4, 0.0, "measured"))
    first, second = (
        plan_task(task(model, model_costs), PlanOptions(seconds=0.3, seed=11)) for _ in range(2)
    )
    assert first.affinity == second.affinity
    assert first.alternatives == second.alternatives


def test_report_as_json_and_sentence():
    model = chain(8)
    times = {d: dict.fromkeys(model.node_names, t) for d, t in (("A", 1e-3), ("B", 3e-3))}
    model_costs = costs(model, times)
    priority = Affinity(dict.fromkeys(model.node_names, "A"))
    report = plan_task(task(model, model_costs), PlanOptions(seconds=0.3), priority)
    document = json.loads(json.dumps(report.to_dict()))
    # Six nodes on A and two on B: 6 ms each.
    assert report.bottleneck_s == pytest.approx(6e-3)
    assert document["bottleneck_s"] == report.bottleneck_s
    assert document["replicas"][0]["affinity"] == report.affinity.devices
    assert document["sources"] == {"measured": 16}
    names = {a.name: a for a in report.alternatives}
    assert names["single A"].bottleneck_s == names["priority"].bottleneck_s == pytest.approx(8e-3)
    assert names["single B"].bottleneck_s == pytest.approx(24e-3)
    assert sum(a.chosen for a in report.alternatives) == 1
    assert report.sources == {"measured": 16}
    assert "proven lower bound 6 ms" in report.sentence()
    assert "% above the best" in report.sentence()
    assert "too weak" in replace(report, ratio=3.0).sentence()
    assert report.ratio == pytest.approx(1.0)


def test_priority_policy_keeps_the_priority_plan():
    model = chain(6)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    priority = Affinity(
        dict.fromkeys(model.node_names, "A"), dict.fromkeys(model.node_names, "why")
    )
    report = plan_task(task(model, costs(model, times)), PlanOptions(policy="PRIORITY"), priority)
    assert report.affinity == priority
    assert report.bottleneck_s == pytest.approx(6e-3)
    assert any("bottleneck 3 ms instead of 6 ms" in line for line in report.advice)


def test_single_device_plan_ignores_concurrent_load():
    model = chain(4)
    model_costs = costs(model, {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")})
    load = LoadFactors(2.0)
    devices = {n: replace(c, concurrent_load=load) for n, c in model_costs.devices.items()}
    loaded_costs = replace(model_costs, devices=devices)
    priority = Affinity(dict.fromkeys(model.node_names, "A"))
    report = plan_task(task(model, loaded_costs), PlanOptions(policy="PRIORITY"), priority)
    assert report.bottleneck_s == pytest.approx(4e-3)
    assert plan_task(
        task(model, loaded_costs), PlanOptions(seconds=0.2)
    ).bottleneck_s == pytest.approx(4e-3)


def test_predict_latency_of_two_devices_by_hand():
    """Vectors of 3 floats: x goes to A; a and b run on A; c on B in parallel to b; d on B."""
    model = build(
        "a: p = Neg(x)\nb: q = Neg(p)\nc: r = Abs(p)\nd: y = Add(q, r)",
        outputs="y q",
    )
    times = {d: {"a": 1e-3, "b": 3e-3, "c": 4e-3, "d": 2e-3} for d in "AB"}
    model_costs = costs(model, times, wire=LinearCost(1e-3, 1e-5, "measured"))
    transfers = {
        (CLIENT, "A"): LinearCost(5e-4, 1e-4, "measured"),
        ("A", CLIENT): LinearCost(2e-2, 0.0, "measured"),
        ("B", CLIENT): LinearCost(3e-4, 1e-4, "measured"),
    }
    colocated = {
        pair: Transfer(line, LinearCost(0.0, 0.0, "measured")) for pair, line in transfers.items()
    }
    affinity = {"a": "A", "b": "A", "c": "B", "d": "B"}
    _, latency = predicted_costs(
        model, replace(model_costs, transfers={**model_costs.transfers, **colocated}), affinity
    )
    send_s, wire_s = 5e-4 + 12 * 1e-4, 1e-3 + 12 * 1e-5
    subgraphs = [(s.device, s.node_names) for s in partition(model, affinity).subgraphs]
    assert subgraphs == [("A", ("a", "b")), ("B", ("c", "d"))]
    a_done_s = send_s + 1e-3 + 3e-3
    assert latency == pytest.approx(
        max(a_done_s + 2e-2, a_done_s + wire_s + 6e-3 + 3e-4 + 12 * 1e-4)
    )


def test_pipeline_parallel_plan_is_contiguous():
    model = chain(9)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B", "C")}
    options = PlanOptions(policy="PIPELINE_PARALLEL", seconds=0.3)
    report = plan_task(task(model, costs(model, times)), options)
    devices = [report.affinity[n] for n in model.node_names]
    assert [len(list(group)) for _, group in itertools.groupby(devices)] == [3, 3, 3]


def test_replicas_are_chosen_if_they_are_best():
    model = build("only: y = Neg(x)", outputs="y")
    times = {"A": {"only": 1e-3}, "B": {"only": 3e-3}}
    model_costs = costs(model, times)
    one = plan_task(task(model, model_costs), PlanOptions(seconds=0.2, replicates=False))
    assert one.bottleneck_s == pytest.approx(1e-3)
    assert any("with 2 replicas (REPLICAS=plan)" in line for line in one.advice)
    two = plan_task(task(model, model_costs), PlanOptions(seconds=0.2))
    # Three of four requests run on A: both devices are busy for 0.75 ms per request.
    assert two.bottleneck_s == pytest.approx(0.75e-3)
    assert [v.share for v in two.replicas] == pytest.approx([0.75, 0.25])
    assert [set(v.affinity.values()) for v in two.replicas] == [{"A"}, {"B"}]
    assert busy_seconds(two) == pytest.approx(dict(two.loads_s))


def test_reasons_name_the_chosen_plan():
    # Device B would take 1 % of the requests: too few for replicas, which are predicted first.
    model = read_model(chain(4))
    names = [node.name for node in model.nodes]
    times = {"A": dict.fromkeys(names, 0.001), "B": dict.fromkeys(names, 0.1)}
    report = plan_task(task(model, costs(model, times)), PlanOptions(seconds=1.0))
    assert [a.name for a in report.alternatives if a.chosen] == ["single A"]
    assert any(a.name == "replicas" for a in report.alternatives)
    assert set(report.affinity.reasons.values()) == {"plan: single A"}


def test_plan_meets_pins_colocation_and_subgraph_limit():
    model = chain(8)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    model_costs = costs(model, times)
    pins = Affinity({"n2": "B"}, {"n2": "pin: name n2"})
    constraints = Constraints(pins=pins, colocation={"g": ("n2", "n7")}, max_subgraphs=2)
    report = plan_task(task(model, model_costs, constraints), PlanOptions(seconds=0.3))
    assert report.affinity["n2"] == report.affinity["n7"] == "B"
    assert report.affinity.reasons["n2"] == "pin: name n2"
    assert len(report.stages) <= 2


def weighted(count: int) -> Model:
    """Return a chain of nodes with 12 bytes of weights each."""
    lines = "\n".join(f"n{i}: v{i + 1} = Add(v{i}, w{i})" for i in range(count))
    weights = " ".join(f"w{i}" for i in range(count))
    return build(lines, inputs="v0", outputs=f"v{count}", constants=weights)


@pytest.mark.parametrize(
    ("constraints", "constraint", "words"),
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
def test_impossible_constraints_raise_with_nodes(constraints, constraint, words):
    model = weighted(6)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    with pytest.raises(PlanError) as error:
        plan_task(task(model, costs(model, times), constraints), PlanOptions(seconds=0.2))
    assert error.value.constraint == constraint
    assert words in str(error.value)
    assert error.value.nodes


def test_plan_respects_memory_limit():
    model = weighted(6)
    times = {"A": dict.fromkeys(model.node_names, 1e-3), "B": dict.fromkeys(model.node_names, 9e-3)}
    constraints = Constraints(memory_nbytes={"A": 40})
    report = plan_task(task(model, costs(model, times), constraints), PlanOptions(seconds=0.3))
    assert sum(d == "A" for d in report.affinity.values()) == 3


def test_computed_weights_follow_their_readers():
    model = read_model("light:squeezenet")
    request_nodes = [model.nodes[p].name for p in request_dependent_positions(model)]
    seconds = {
        n: DEFAULT_SPEED(count_work(model, model.nodes[model.index_of[n]])) for n in request_nodes
    }
    every = dict.fromkeys(model.node_names, 0.0)
    model_costs = costs(
        model,
        {d: {**every, **seconds} for d in ("A", "B", "C")},
        wire=LinearCost(1e-5, 1e-10, "measured"),
    )
    report = plan_task(task(model, model_costs), PlanOptions(seconds=0.3, replicates=False))
    assert len(set(report.affinity.values())) == 3
    subgraphs = partition(model, report.affinity)
    weights = {v for n in model.nodes if n.name not in set(request_nodes) for v in n.writes}
    assert not weights & {wire_s.tensor for wire_s in subgraphs.wires}
    assert all("ConstantOfShape" not in w.tensor for w in subgraphs.wires)
    assert report.bottleneck_s < 0.6 * sum(seconds.values())


def test_fused_nodes_share_a_device():
    model = chain(6)
    times = {d: dict.fromkeys(model.node_names, 1e-3) for d in ("A", "B")}
    model_costs = costs(model, times, fused=(("n1", "n2", "n3"),))
    report = plan_task(task(model, model_costs), PlanOptions(seconds=0.2))
    assert len({report.affinity[n] for n in ("n1", "n2", "n3")}) == 1


def test_state_readers_and_producer_share_a_device():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    stateful (float[n] x, float[n] past) => (float[n] y, float[n] present)
    { a = Add (x, past) b = Neg (a) c = Exp (b) present = Neg (c) e = Exp (present) y = Neg (e) }"""
    stateless = read_model(parse_model(text))
    times = {d: dict.fromkeys(stateless.node_names, 1e-3) for d in ("A", "B")}
    colocated = []
    for model in (stateless, with_states(stateless, {"past": "present"})):
        model_costs = costs(model, times, wire=LinearCost(1e-5, 0.0, "measured"))
        options = PlanOptions(seconds=0.2, replicates=False)
        affinity = plan_task(task(model, model_costs), options).affinity
        assert set(affinity.values()) == {"A", "B"}
        colocated.append(affinity["a"] == affinity["present"])
    assert colocated == [False, True]


def test_remove_fragments():
    free_costs = np.zeros(2)
    costly = np.full(2, 2.0)
    tensors = [(v, [v + 1], costly, costly) for v in range(5)]
    problem = make_problem(np.ones((6, 2)), tensors)
    assert free_costs.sum() == 0
    fragmented = (0, 0, 1, 0, 0, 0)
    cleaned = remove_fragments(with_dispatch_margin(problem), fragmented)
    assert cleaned == (0,) * 6
    assert evaluate(problem, cleaned).bottleneck < evaluate(problem, fragmented).bottleneck
    # A fragment that saves more than its transfers cost remains.
    free = make_problem(np.ones((6, 2)), [(v, [v + 1], free_costs, free_costs) for v in range(5)])
    assert remove_fragments(with_dispatch_margin(free), (0, 0, 0, 1, 1, 1)) == (0, 0, 0, 1, 1, 1)


def test_critical_path_bound():
    model = build("a: p = Neg(x)\nb: q = Neg(x)\nc: y = Add(p, q)", outputs="y")
    times = {"A": {"a": 1.0, "b": 5.0, "c": 2.0}, "B": {"a": 4.0, "b": 3.0, "c": 2.0}}
    problem = build_problem(task(model, costs(model, times)), "LATENCY").problem
    assert critical_path(problem).seconds == pytest.approx(5.0)
