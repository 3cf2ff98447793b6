"""Figures and texts of plan reports, from given candidates."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hetero.planning import plan_task as module
from hetero.planning.plan_report import Alternative, milliseconds
from hetero.planning.plan_task import MAX_ALTERNATIVES, PlanOptions, plan_task
from hetero.planning.solver.bounds import Bound, largest_node
from hetero.planning.solver.candidates import Candidate, Solution
from hetero.planning.solver.graph import topological_order
from hetero.planning.solver.problem import (
    allowed_devices,
    device_seconds,
    is_feasible,
    make_problem,
    with_dispatch_margin,
)
from hetero.planning.solver.replicas import Replica
from tests.support.chains import chain
from tests.support.costs import costs, task


def candidate(
    name: str, bottleneck: float, latency: float = 1.0, *others: str, **values: Any
) -> Candidate:
    replicas = values.pop("replicas", (Replica((0,), 1.0),))
    device_loads = values.pop("loads", (bottleneck, 0.0))
    return Candidate(
        (name, *others), replicas, device_loads, bottleneck, latency, values.pop("subgraphs", 1), 1
    )


def solve(
    choice: Candidate, *others: Candidate, bound_s: float = 0.5, cut_short: bool = False
) -> Solution:
    return Solution(choice, others, (Bound("proof", bound_s, covers_replicas=True),), cut_short)


THROUGHPUT, LATENCY = PlanOptions(), PlanOptions(hint="LATENCY")


# Bounds.


@pytest.mark.parametrize(
    ("options", "others", "expected"),
    [
        (THROUGHPUT, (), (5.0, "proof")),
        (THROUGHPUT, (candidate("single A", 4),), (4.0, "single A")),
        (THROUGHPUT, (candidate("slicing", 4),), (4.0, "slicing")),
        (THROUGHPUT, (candidate("single A", 4), candidate("single B", 3)), (3.0, "single B")),
        (THROUGHPUT, (candidate("single A", 5),), (5.0, "proof")),
        (THROUGHPUT, (candidate("cut", 4, loads=(4.0, 1.0)),), (5.0, "proof")),  # two devices
        (LATENCY, (candidate("single A", 9, 2),), (2.0, "single A")),
    ],
)
def test_plan_on_one_device_may_lower_the_bound(options, others, expected):
    solution = solve(candidate("best", 6, 6, loads=(6.0, 1.0)), *others, bound_s=5.0)
    scope = "any routing of requests over these devices"
    assert module._bound(options, solution) == (*expected, scope)


# Advice.


def test_advice_names_a_better_plan():
    choice, best = candidate("priority", 0.5, 0.2), candidate("slicing", 0.25, 0.3)
    loads_s = {"A": 0.5, "B": 0.5}
    assert module._advice(THROUGHPUT, solve(choice, best), loads_s) == (
        "slicing: bottleneck 250 ms instead of 500 ms",
    )
    assert module._advice(LATENCY, solve(choice, best), loads_s) == ()
    better = candidate("slicing", 0.9, 0.1)
    assert module._advice(LATENCY, solve(choice, better), loads_s) == (
        "slicing: latency 100 ms instead of 200 ms",
    )
    close = candidate("slicing", 0.496)
    assert module._advice(THROUGHPUT, solve(choice, close), loads_s) == ()
    assert module._advice(THROUGHPUT, solve(choice), loads_s) == ()


@pytest.mark.parametrize(
    ("loads_s", "halved"),
    [
        ({"A": 0.5, "B": 0.125}, "250 ms"),
        ({"A": 0.5, "B": 0.375}, "375 ms"),
        ({"A": 0.5, "B": 0.499}, None),
        ({"A": 0.125, "B": 0.5}, "250 ms"),
    ],
)
def test_advice_of_a_second_device(loads_s, halved):
    busiest = max(loads_s, key=lambda name: loads_s[name])
    lines = module._advice(THROUGHPUT, solve(candidate("best", 0.5)), loads_s)
    assert lines == (
        ()
        if halved is None
        else (
            (
                f"a second device like {busiest}, taking every other request of its subgraphs: "
                f"bottleneck {halved} instead of 500 ms"
            ),
        )
    )
    for options in (LATENCY, PlanOptions(policy="PRIORITY")):
        assert module._advice(options, solve(candidate("best", 0.5)), loads_s) == ()


# Alternatives.


def alternatives(choice: Candidate, *others: Candidate, hint: Any = "THROUGHPUT") -> Any:
    predictor: Any = SimpleNamespace(
        crossing_nbytes=lambda c: [12, 30] if c.subgraphs > 1 else [],
        placements=lambda name, replicas: replicas,
    )
    rows = module._alternatives(
        ("A", "B"), PlanOptions(hint=hint), predictor, solve(choice, *others)
    )
    assert sum(row.chosen for row in rows) == 1
    return rows


def test_alternative_has_the_figures_of_its_plan():
    replicas = (Replica((0,), 0.5), Replica((1,), 0.5))
    cut = candidate("slicing", 2, 5, loads=(2.0, 1.0), subgraphs=3, replicas=replicas)
    single = candidate("single B", 4, 3, loads=(0.0, 4.0))
    assert alternatives(cut, single) == (
        Alternative("slicing", 2, 5, ("A", "B"), 3, cuts=2, nbytes=42, replicas=2, chosen=True),
        Alternative("single B", 4, 3, ("B",), 1, 0, 0, 1, chosen=False),
    )
    assert [row.name for row in alternatives(cut, single, hint="LATENCY")] == [
        "single B",
        "slicing",
    ]


def test_reference_plans_have_their_own_rows():
    both = candidate("single A", 1, 1, "priority", "annealing")
    rows = alternatives(both, candidate("slicing", 2), candidate("packing", 2))
    # The figures of `packing` are those of `slicing`.
    assert [(row.name, row.chosen) for row in rows] == [
        ("priority", False),
        ("single A", True),
        ("slicing", False),
    ]


def test_plan_that_is_a_tidied_reference_has_another_name():
    rows = alternatives(candidate("priority, tidied", 1), candidate("priority", 2))
    assert [(row.name, row.chosen) for row in rows] == [
        ("priority, tidied", True),
        ("priority", False),
    ]


def test_number_of_alternatives_is_limited():
    others = [candidate(f"plan {i}", 2 + i) for i in range(30)]
    single = candidate("single A", 99)
    rows = alternatives(candidate("best", 1), *others, single)
    assert len(rows) == MAX_ALTERNATIVES
    assert rows[-1].name == "single A"


# Reports.


@pytest.fixture(scope="module")
def report():
    model = chain(4)
    times = {d: dict.fromkeys(model.node_names, t) for d, t in (("A", 1e-3), ("B", 4e-3))}
    return plan_task(task(model, costs(model, times)), PlanOptions(seconds=0.2))


def test_report_as_text(report):
    assert milliseconds(0.0012345) == "1.234 ms"
    text = replace(report, bottleneck_s=0.25, latency_s=0.5, loads_s={"A": 1.0}, stages=(1, 2))
    expected = "<PlanReport 'g': 2 subgraphs on A; 250 ms between results, 500 ms for one>"
    assert repr(text) == expected
    rows = (
        Alternative("one", 0.001, 0.002, ("A", "B"), 3, chosen=True),
        Alternative("two", 0.003, 0.004, ("B",), 1),
    )
    html = replace(text, alternatives=rows)._repr_html_()
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in html.split("<tr>")[1:]]
    assert cells == [
        ["plan", "devices", "subgraphs", "between results", "one request"],
        ["one (chosen)", "A, B", "3", "1 ms", "2 ms"],
        ["two", "B", "1", "3 ms", "4 ms"],
    ]
    assert expected[1:-1].replace("'", "&#x27;") in html


def test_report_as_sentence(report):
    fixed = replace(
        report,
        bottleneck_s=0.25,
        latency_s=0.5,
        bottleneck="A",
        bound_s=0.2,
        bound_name="proof",
        bound_scope="all plans",
        ratio=1.25,
        cut_short=False,
    )
    tail = "proven lower bound 200 ms (proof): at most 25.0 % above the best of all plans"
    assert fixed.sentence() == f"bottleneck 250 ms on A, {tail}"
    assert fixed.figure_s == 0.25
    latency = replace(fixed, hint="LATENCY")
    assert latency.sentence() == f"one request takes 500 ms, {tail}"
    assert latency.figure_s == 0.5
    assert "at most 0.0 %" in replace(fixed, ratio=0.99).sentence()
    assert "100.0 %" in replace(fixed, ratio=2.0).sentence()
    assert "too weak to prove" in replace(fixed, ratio=2.01).sentence()
    assert replace(fixed, cut_short=True).sentence().endswith("another run may find another plan")


def test_report_as_json(report):
    document = report.to_dict()
    assert document["bottleneck_s"] == report.bottleneck_s
    assert document["ratio"] == report.ratio
    assert replace(report, bound_s=0.0).to_dict()["ratio"] is None
    assert document["replicas"] == [
        {"share": r.share, "affinity": dict(r.affinity), "reasons": dict(r.affinity.reasons)}
        for r in report.replicas
    ]
    assert document["sources"] == {"measured": 8}


# Problems.


@pytest.mark.parametrize(
    ("count", "edges", "order"),
    [
        (3, [], [0, 1, 2]),
        (4, [(3, 0), (3, 1), (3, 2)], [3, 0, 1, 2]),
        (5, [(0, 3), (1, 4)], [0, 3, 1, 4, 2]),  # a branch is completed before the next
        (4, [(0, 2), (1, 2), (2, 3)], [0, 1, 2, 3]),
        (4, [(0, 2), (0, 2), (2, 1)], [0, 2, 1, 3]),
    ],
)
def test_topological_order(count, edges, order):
    assert topological_order(count, edges) == order


INF = np.inf
PROBLEM = make_problem(
    np.array([[1.0, 20.0], [2.0, INF], [4.0, 50.0]]),
    [
        (0, [1, 2, 2, 0], np.array([0.5, 0.25]), np.array([7.0, 9.0])),
        (1, [1], np.ones(2), np.ones(2)),  # nothing reads it
    ],
    weights=np.array([3.0, 4.0, 5.0]),
    memory=np.array([9.0, INF]),
    pins=[(0, 0)],
    groups=[[1, 2], [2], [1, 1]],
    dispatch=np.array([0.125, 0.0625]),
)


def test_problem_is_normalised():
    assert (PROBLEM.tails.tolist(), PROBLEM.heads) == ([0], ((1, 2),))
    assert PROBLEM.tails.dtype == np.int64
    assert PROBLEM.groups == ((1, 2),)
    assert PROBLEM.names == ("node 0", "node 1", "node 2")
    assert PROBLEM.devices == ("device 0", "device 1")
    assert PROBLEM.edges() == [(0, 1), (0, 2)]
    empty = make_problem(np.ones((2, 2)), [])
    assert empty.tails.dtype == np.int64
    assert (empty.weights.tolist(), empty.memory.tolist()) == ([0, 0], [INF, INF])
    assert empty.dispatch.tolist() == [0, 0]
    assert (empty.node_count, empty.device_count) == (2, 2)


def test_loads_count_each_tensor_once():
    problem = make_problem(
        np.array([[1.0, 10.0, 100.0]] * 3),
        [(0, [1, 2], np.array([0.5, 0.25, 0.125]), np.array([2.0, 4.0, 8.0]))],
    )
    assert device_seconds(problem, (0, 0, 0)).tolist() == [3, 0, 0]
    assert device_seconds(problem, (0, 1, 1)).tolist() == [1 + 0.5, 20 + 4, 0]
    assert device_seconds(problem, (0, 1, 2)).tolist() == [1 + 0.5, 10 + 4, 100 + 8]
    assert device_seconds(problem, (1, 1, 0)).tolist() == [1 + 2, 20 + 0.25, 0]
    margin = with_dispatch_margin(
        make_problem(problem.times, [(0, [1], *np.ones((2, 3)))], dispatch=np.array([1.0, 2, 3]))
    )
    assert margin.receive.tolist() == [[2, 3, 4]]
    assert margin.send.tolist() == [[1, 1, 1]]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ((0, 0, 0), False),  # 12 of 9 bytes
        ((0, 1, 1), False),  # not supported
        ((1, 0, 0), False),  # the pin
        ((0, 0, 1), False),  # the group
    ],
)
def test_constraints_exclude_plans(assignment, expected):
    assert is_feasible(PROBLEM, assignment) == expected
    larger = replace(PROBLEM, memory=np.array([12.0, INF]))
    assert is_feasible(larger, assignment) == (assignment == (0, 0, 0))


def test_allowed_devices_and_the_largest_node():
    assert allowed_devices(PROBLEM).tolist() == [[True, False], [True, False], [True, True]]
    assert largest_node(PROBLEM) == Bound("largest node", 4.0, covers_replicas=False)
    pinned = replace(PROBLEM, pins=((2, 1),))
    assert largest_node(pinned).seconds == 50
