"""Problems for the solver, compared with figures computed by hand. Values are 12 bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.affinity.affinity import Affinity
from hetero.devices.model.model import Model
from hetero.devices.model.variables import with_states
from hetero.planning.cost.costs import (
    CLIENT,
    Costs,
    DeviceCosts,
    LinearCost,
    LoadFactors,
    Time,
    Transfer,
)
from hetero.planning.task import Constraints, Task, build_problem, node_time, transfer_cost
from tests.support.costs import identity, task
from tests.support.graphs import build

MODEL = build("a: v = Add(x, c)\nb: w = Neg(v)\nd: y = Add(w, c)", outputs="y", constants="c")


def line(a: float, b: float = 0.0) -> LinearCost:
    return LinearCost(a, b, "measured")


def device(times: Mapping[str, float], **factors: Any) -> DeviceCosts:
    return DeviceCosts(identity("A"), {n: Time(s, "measured") for n, s in times.items()}, **factors)


def make_task(
    devices: Mapping[str, DeviceCosts],
    transfers: Mapping[tuple[str, str], Transfer] | None = None,
    model: Model = MODEL,
    **constraints: Any,
) -> Task:
    costs = Costs(model.name, model.content_hash, {}, devices, transfers or {})
    return task(model, costs, Constraints(**constraints))


LOADED = device(
    {"a": 1, "b": 2, "d": 4},
    single_load=LoadFactors(5, 0.1),
    concurrent_load=LoadFactors(7, 0.2),
    core_sharing_factor=3,
)
PLAIN = device({"a": 10, "b": 20, "d": 40})


def test_times_and_overheads_under_load():
    problem = build_problem(make_task({"A": LOADED, "B": PLAIN}), "THROUGHPUT").problem
    assert problem.times.tolist() == [[7, 10], [14, 20], [28, 40]]
    assert problem.dispatch.tolist() == [0.2, 0]
    assert (problem.names, problem.devices) == (("a", "b", "d"), ("A", "B"))


def test_times_of_one_request_have_no_load():
    problem = build_problem(make_task({"A": LOADED, "B": PLAIN}), "LATENCY").problem
    assert problem.times.tolist() == [[1, 10], [2, 20], [4, 40]]
    assert problem.dispatch.tolist() == [0, 0]


@pytest.mark.parametrize(("hint", "seconds"), [("THROUGHPUT", 14), ("LATENCY", 2)])
def test_node_time_keeps_its_source(hint, seconds):
    costs = replace(LOADED, nodes={"b": Time(2, "estimated")})
    assert node_time(costs, "b", hint) == Time(seconds, "estimated")
    assert node_time(costs, "z", hint) is None


def test_node_needs_a_time_and_support():
    planning_task = make_task({"A": device({"a": 1, "d": 4}), "B": PLAIN})
    supports = {**planning_task.supports, "B": planning_task.supports["A"]}
    problem = build_problem(replace(planning_task, supports=supports), "LATENCY").problem
    assert problem.times.tolist() == [[1, 10], [math.inf, math.inf], [4, 40]]


TRANSFERS = {
    ("A", "B"): Transfer(line(1, 10), line(2, 20)),
    ("A", "C"): Transfer(line(3, 5), line(4, 50)),
    ("B", "A"): Transfer(line(5, 7), line(6, 70)),
    (CLIENT, "A"): Transfer(line(100, 100), line(100, 100)),
    ("A", CLIENT): Transfer(line(100, 100), line(100, 100)),
    ("A", "Z"): Transfer(line(900, 900), line(900, 900)),
}


def test_transfers_keep_both_ends_busy():
    planning_task = make_task({"A": PLAIN, "B": PLAIN, "C": PLAIN}, TRANSFERS)
    result = build_problem(planning_task, "THROUGHPUT")
    # Highest: A sends 4 + 50 n, B sends 6 + 70 n; lowest: A sends 2 + 20 n.
    rows = {
        "send": [[4 + 12 * 50, 6 + 12 * 70, 0]] * 2,
        "receive": [[6 + 12 * 70, 2 + 12 * 20, 4 + 12 * 50]] * 2,
    }
    assert {name: getattr(result.problem, name).tolist() for name in rows} == rows
    rows["send"] = [[2 + 12 * 20, 6 + 12 * 70, 0]] * 2
    assert {name: getattr(result.floor, name).tolist() for name in rows} == rows


def test_transfer_of_one_request_counts_for_the_receiver():
    planning_task = make_task({"A": PLAIN, "B": PLAIN, "C": PLAIN}, TRANSFERS)
    problem = build_problem(planning_task, "LATENCY").problem
    assert problem.send.tolist() == [[0, 0, 0]] * 2
    assert problem.receive.tolist() == [[5 + 12 * 7, 1 + 12 * 10, 3 + 12 * 5]] * 2


def test_equal_transfers_have_one_problem():
    result = build_problem(make_task({"A": PLAIN, "B": PLAIN}), "THROUGHPUT")
    assert result.floor is result.problem


def test_cost_of_a_transfer_by_hint():
    costs = make_task({"A": PLAIN}, TRANSFERS).costs
    assert transfer_cost(costs, "A", "B", "THROUGHPUT") == line(2, 20)
    assert transfer_cost(costs, "A", "B", "LATENCY") == line(1, 10)
    assert transfer_cost(costs, "B", "B", "LATENCY")(10**9) == 0


def test_tensors_have_producers_and_all_readers():
    model = build("a: v = Neg(x)\nb: w = Neg(v)\nd: y = Add(v, w)\ne: z = Neg(x)", outputs="y z")
    costs = device({"a": 1, "b": 1, "d": 1, "e": 1})
    problem = build_problem(make_task({"A": costs}, model=model), "LATENCY").problem
    assert list(zip(problem.tails.tolist(), problem.heads, strict=True)) == [(0, (1, 2)), (1, (2,))]


# Memory.


def test_weights_count_once_by_their_first_reader():
    model = build(
        "a: v = Add(x, c)\nb: w = Add(v, k)\nd: y = Sum(w, c, e, k)",
        outputs="y",
        constants="c e",
        literals="k",
    )
    costs = device({"a": 1, "b": 1, "d": 1})
    problem = build_problem(make_task({"A": costs}, model=model), "LATENCY").problem
    assert problem.weights.tolist() == [12, 12, 12]


def test_computed_weights_count_by_their_result():
    model = build("e: f = Concat(c, c)\na: y = Add(x, f)", outputs="y", constants="c")
    model.nodes[0].proto.attribute.add(name="axis", i=0, type=2)
    costs = device({"a": 1})
    problem = build_problem(make_task({"A": costs}, model=model), "LATENCY").problem
    assert problem.names == ("a",)
    assert problem.weights.tolist() in ([24], [12])


@pytest.mark.parametrize("sessions", [1, 3])
def test_states_count_for_each_session(sessions):
    model = with_states(
        build("a: n = Add(x, s)\nb: y = Add(n, s)", inputs="x s", outputs="y n"), {"s": "n"}
    )
    costs = device({"a": 1, "b": 1})
    planning_task = make_task({"A": costs}, model=model, sessions=sessions)
    assert build_problem(planning_task, "LATENCY").problem.weights.tolist() == [12 * sessions, 0]


def test_memory_is_unlimited_unless_given():
    planning_task = make_task({"A": PLAIN, "B": PLAIN}, memory_nbytes={"B": 50}, max_subgraphs=4)
    problem = build_problem(planning_task, "LATENCY").problem
    assert problem.memory.tolist() == [math.inf, 50]
    assert problem.max_subgraphs == 4


# Pins and groups.


def test_pins_of_other_nodes_and_devices_do_not_count():
    pins = Affinity({"b": "B", "d": "Z"}, {})
    problem = build_problem(make_task({"A": PLAIN, "B": PLAIN}, pins=pins), "LATENCY").problem
    assert problem.pins == ((1, 1),)


FUSED = {"A": device({"a": 1, "b": 1, "d": 1}, fused_groups=(("a", "b"),)), "B": PLAIN}


@pytest.mark.parametrize(
    ("devices", "constraints", "groups"),
    [
        (FUSED, {}, ((0, 1),)),
        (FUSED, {"pins": Affinity({"a": "A", "b": "A"}, {})}, ((0, 1),)),
        (FUSED, {"pins": Affinity({"a": "A"}, {})}, ()),
        (FUSED, {"pins": Affinity({"a": "A", "b": "B"}, {})}, ()),
        (FUSED, {"colocation": {"mine": ["b", "d"]}}, ((1, 2),)),
        (FUSED, {"colocation": {"mine": ["d", "z"]}}, ((0, 1),)),
        ({**FUSED, "B": device({"a": 1, "d": 1})}, {}, ()),
    ],
)
def test_groups_that_share_a_device(devices, constraints, groups):
    assert build_problem(make_task(devices, **constraints), "LATENCY").problem.groups == groups


# Assignments of the problem as affinities of the model.


def test_affinity_of_an_assignment():
    model = build(
        "e: f = Exp(k)\na: v = Add(x, f)\nb: w = Neg(v)\nd: y = Add(w, g)",
        outputs="y",
        literals="k g",
    )
    costs = {
        "A": device({"e": 1, "a": 1, "b": 1, "d": 1}),
        "B": device({"a": 1, "b": 1, "d": 1}),
    }
    result = build_problem(make_task(costs, model=model), "LATENCY")
    affinity = result.affinity([1, 0, 1], "plan: best")
    # B does not support `e`, so its reader's device does not count.
    assert affinity.devices == {
        "make_k": "A",
        "make_g": "B",
        "e": "A",
        "a": "B",
        "b": "A",
        "d": "B",
    }
    assert affinity.reasons == {
        "make_k": "follows e",
        "make_g": "follows d",
        "e": "plan: best",
        **dict.fromkeys("abd", "plan: best"),
    }
    follows = result.affinity([0, 0, 1], "plan")
    assert (follows["e"], follows.reasons["e"]) == ("A", "follows a")


def test_affinity_keeps_pins_with_their_reasons():
    model = build("e: f = Exp(c)\na: v = Add(x, f)\nb: y = Neg(v)", outputs="y", constants="c")
    costs = {name: device({"e": 1, "a": 1, "b": 1}) for name in "AB"}
    pins = Affinity({"e": "B", "a": "A"}, {"a": "pin: name a"})
    result = build_problem(make_task(costs, model=model, pins=pins), "LATENCY")
    affinity = result.affinity([0, 1], "plan")
    assert affinity.devices == {"e": "B", "a": "A", "b": "B"}
    assert affinity.reasons == {"e": "pin", "a": "pin: name a", "b": "plan"}


def test_open_shapes_are_those_of_the_costs():
    model = build("a: v = Neg(x)\nb: y = Neg(v)", outputs="y")
    port = model.inputs[0]
    model = model.replace(inputs=[type(port)("x", port.type, ("N",))])
    costs = {name: device({"a": 1, "b": 1}) for name in "AB"}
    planning_task = make_task(costs, {("A", "B"): Transfer(line(0, 1), line(0, 1))}, model)
    sized = replace(planning_task, costs=replace(planning_task.costs, shapes={"x": (5,)}))
    sizes = [build_problem(t, "LATENCY").problem.receive.max() for t in (planning_task, sized)]
    assert sizes == [4 * 1, 4 * 5]
    assert np.isfinite(sizes).all()
