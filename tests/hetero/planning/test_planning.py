"""Planning by cost: against every assignment, and under constraints."""

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
from hetero.planning.cost.costs import CLIENT, Line, Pace, Transfer
from hetero.planning.cost.estimation import ASSUMED_SPEED, node_work
from hetero.planning.plan_report import PlanReport
from hetero.planning.plan_task import Choice, choose
from hetero.planning.predict import predict
from hetero.planning.solver.bounds import critical_path
from hetero.planning.solver.local_search import tidy
from hetero.planning.solver.problem import make_problem, wary
from hetero.planning.task import Constraints
from hetero.planning.task import build as build_problem
from tests.support.chains import chain, random_model
from tests.support.costs import costs, task
from tests.support.evaluation import evaluate
from tests.support.graphs import build


def load_of(report: PlanReport) -> dict[str, float]:
    found = dict.fromkeys(report.devices, 0.0)
    for s in report.stages:
        share = report.variants[s.variant].share
        found[s.device] += share * (s.run_s + s.transfer_s + s.overhead_s)
    return found


def judged(model: Model, given: Any, placed: Mapping[str, str]) -> tuple[float, float]:
    """Bottleneck and latency of an affinity, by the prediction of its real partition."""
    stages, _, latency = predict(task(model, given), partition(model, placed))
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
    given = costs(model, times, wire=Line(4e-4, 0.0, "measured"), call_s=1e-4)
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
    model = random_model(7, 20)
    dice = random.Random(3)
    times = {d: {n: dice.uniform(1e-3, 5e-3) for n in model.node_names} for d in ("A", "B", "C")}
    given = costs(model, times, wire=Line(1e-4, 0.0, "measured"))
    first, second = (choose(task(model, given), Choice(seconds=0.3, seed=11)) for _ in range(2))
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
    assert document["bottleneck_s"] == report.bottleneck_s
    assert document["variants"][0]["affinity"] == report.affinity.devices
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
    pace = Pace(2.0)
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
    alive = [model.nodes[p].name for p in request_dependent_positions(model)]
    seconds = {n: ASSUMED_SPEED(node_work(model, model.nodes[model.index_of[n]])) for n in alive}
    every = dict.fromkeys(model.node_names, 0.0)
    given = costs(
        model,
        {d: {**every, **seconds} for d in ("A", "B", "C")},
        wire=Line(1e-5, 1e-10, "measured"),
    )
    report = choose(task(model, given), Choice(seconds=0.3))
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
    assert critical_path(problem).seconds == pytest.approx(5.0)
