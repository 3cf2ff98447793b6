"""Choice among candidates, with each rule decisive once, and the order of predictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import PlanError
from hetero.planning.solver import candidates as module
from hetero.planning.solver.bounds import Bound
from hetero.planning.solver.candidates import (
    Candidate,
    Solution,
    choose_candidate,
    is_always_reported,
    predict_plans,
)
from hetero.planning.solver.problem import Problem, make_problem
from hetero.planning.solver.replicas import Replica, replicate_cuts, whole_model_replicas

#: Two devices; node 0 takes 1 or 2 seconds, node 1 takes 1 or 4; each tensor and subgraph costs.
PROBLEM = make_problem(
    np.array([[1.0, 2.0], [1.0, 4.0]]),
    [(0, [1], np.array([0.25, 0.5]), np.array([0.125, 0.0625]))],
    weights=np.array([10.0, 20.0]),
    memory=np.array([np.inf, 25.0]),
    dispatch=np.array([8.0, 16.0]),
)


def candidate(
    name: str,
    bottleneck: float,
    latency: float = 1.0,
    *,
    assignments: tuple[tuple[int, ...], ...] = ((0, 0),),
    subgraphs: int = 1,
    levels: int = 1,
    loads: tuple[float, ...] = (1.0, 0.0),
) -> Candidate:
    replicas = tuple(Replica(a, 1 / len(assignments)) for a in assignments)
    return Candidate((name,), replicas, loads, bottleneck, latency, subgraphs, levels)


def choose(*candidates: Candidate, problem: Problem = PROBLEM, **options: Any) -> list[str]:
    """Return the names of the chosen candidate and the others, best first."""
    defaults = {"hint": "THROUGHPUT", "replicates": True, "bound_s": 0.0, "required_name": None}
    choice, others = choose_candidate(problem, candidates, **{**defaults, **options})
    assert choice not in others
    return [c.name for c in (choice, *others)]


def test_smallest_objective_wins():
    slow, fast = candidate("slow", 2, latency=1), candidate("fast", 1, latency=2)
    assert choose(slow, fast) == ["fast", "slow"]
    assert choose(slow, fast, hint="LATENCY") == ["slow", "fast"]


TWO = ((0, 0), (1, 1))
#: A simpler candidate, and one of the same objective that is less simple by one rule.
RULES = {
    "levels": (candidate("simple", 1, levels=1, subgraphs=9), candidate("other", 1, levels=2)),
    "subgraphs": (
        candidate("simple", 1.01, subgraphs=1, assignments=TWO),
        candidate("other", 1, subgraphs=2),
    ),
    "replicas": (candidate("simple", 1.01), candidate("other", 1, assignments=TWO)),
    "objective": (candidate("simple", 1, loads=(5, 5)), candidate("other", 1.01)),
    "loads": (candidate("simple", 1, loads=(1, 1)), candidate("other", 1, loads=(1, 2))),
    "assignment": (candidate("simple", 1), candidate("other", 1, assignments=((0, 1),))),
}


@pytest.mark.parametrize("rule", RULES)
def test_simpler_candidate_wins_within_the_tolerance(rule):
    simple, other = RULES[rule]
    assert choose(simple, other)[0] == choose(other, simple)[0] == "simple"


@pytest.mark.parametrize(("objective", "choice"), [(1.03, "simple"), (1.0301, "best")])
def test_tolerance(objective, choice):
    best = candidate("best", 1, levels=2)
    assert choose(best, candidate("simple", objective))[0] == choice


@pytest.mark.parametrize(
    ("hint", "bound_s", "objective", "choice"),
    [
        ("THROUGHPUT", 1.0, 1.02, "simple"),
        ("THROUGHPUT", 1.0, 1.025, "best"),  # the best is proven, the simpler one is not
        ("THROUGHPUT", 0.97, 1.025, "simple"),  # neither is proven
        ("THROUGHPUT", 0.99, 1.005, "simple"),
        ("LATENCY", 1.0, 1.025, "simple"),
    ],
)
def test_tolerance_near_the_bound(hint, bound_s, objective, choice):
    best = candidate("best", 1, 1, levels=2)
    simple = candidate("simple", objective, objective)
    assert choose(best, simple, hint=hint, bound_s=bound_s)[0] == choice


def test_replicas_that_are_not_allowed_remain_alternatives():
    two = candidate("two", 1, assignments=TWO)
    one = candidate("one", 2)
    assert choose(two, one, replicates=True) == ["two", "one"]
    assert choose(two, one, replicates=False) == ["one", "two"]


def with_limit(max_subgraphs: int) -> Problem:
    return make_problem(PROBLEM.times, [], max_subgraphs=max_subgraphs)


def test_limit_of_subgraphs_excludes_candidates():
    small, large = candidate("small", 2, subgraphs=2), candidate("large", 1, subgraphs=3)
    assert choose(small, large, problem=with_limit(3)) == ["large", "small"]
    assert choose(small, large, problem=with_limit(2)) == ["small"]
    with pytest.raises(PlanError, match="at most 1, but the smallest plan has 2") as caught:
        choose(large, small, problem=with_limit(1))
    assert caught.value.data["constraint"] == "subgraphs"
    assert caught.value.data["fewest"] == 2
    assert caught.value.data["nodes"] == ()


def test_required_candidate_is_chosen_regardless_of_its_objective():
    listed = Candidate(("single A", "priority"), (Replica((0, 0), 1),), (1, 0), 9, 9, 3, 1)
    assert choose(candidate("fast", 1), listed, required_name="priority") == ["single A", "fast"]
    with_three = with_limit(3)
    assert choose(listed, problem=with_three, required_name="priority") == ["single A"]


@pytest.mark.parametrize(
    ("problem", "assignment", "constraint"),
    [(PROBLEM, (1, 1), "memory"), (with_limit(1), (0, 1), "subgraphs")],
)
def test_required_candidate_that_violates_a_constraint_raises(problem, assignment, constraint):
    listed = candidate("priority", 1, assignments=(assignment,), subgraphs=2)
    with pytest.raises(PlanError, match=r"^priority: this plan violates") as caught:
        choose(listed, candidate("other", 1), problem=problem, required_name="priority")
    assert caught.value.data["constraint"] == constraint


def test_assignment_of_replicas_has_the_largest_share():
    replicas = (Replica((0, 0), 0.3), Replica((1, 1), 0.7))
    two = Candidate(("annealing", "replicas"), replicas, (1.0,), 1, 2, 1, 1)
    assert (two.assignment, two.name) == ((1, 1), "annealing")
    assert (two.objective_s("THROUGHPUT"), two.objective_s("LATENCY")) == (1, 2)


def test_bound_of_replicas_covers_replicas():
    bounds = (Bound("one", 3, covers_replicas=False), Bound("all", 2, covers_replicas=True))
    one, two = candidate("one", 1), candidate("two", 1, assignments=TWO)
    assert Solution(one, (), bounds, cut_short=False).bound.name == "one"
    assert Solution(two, (), bounds, cut_short=False).bound.name == "all"
    assert [b.scope for b in bounds] == [
        "any assignment of this model without replication",
        "any routing of requests over these devices",
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("single A", True),
        ("single A, tidied", False),
        ("priority", True),
        ("replicas", True),
        ("annealing", False),
        ("singles", False),
    ],
)
def test_names_that_are_always_reported(name, expected):
    assert is_always_reported(name) == expected


# Predictions.

ON_A, ON_B, SPLIT = ((Replica(a, 1.0),) for a in ((0, 0), (1, 1), (0, 1)))
HALVES = (Replica((0, 0), 0.5), Replica((1, 1), 0.5))


def predicted(hint: Any, plans: dict[Any, tuple[str, ...]], deadline: float) -> Any:
    """Return the plans in the order of their predictions, and whether the deadline passed."""
    order: list[Any] = []

    def predict(names: tuple[str, ...], replicas: tuple[Replica, ...]) -> Candidate:
        assert plans[replicas] == names
        order.append(replicas)
        return candidate(names[0], 1)

    candidates, is_late = predict_plans(PROBLEM, plans, hint, predict, deadline)
    assert len(candidates) == len(order)
    return order, is_late


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(module.time, "monotonic", lambda: 100.0)


@pytest.mark.usefixtures("clock")
def test_most_promising_plan_is_predicted_first():
    # Loads: all on A 2 and 0; all on B 0 and 6; halves 1 and 3;
    # split: A 1 + 0.25, B 4 + 0.0625 and the dispatch of 16.
    names = {ON_B: ("slicing",), SPLIT: ("annealing",), HALVES: ("packing",), ON_A: ("tidied",)}
    assert predicted("THROUGHPUT", names, 101) == ([ON_A, HALVES, ON_B, SPLIT], False)
    assert predicted("LATENCY", names, 101) == ([ON_A, HALVES, ON_B, SPLIT], False)


@pytest.mark.usefixtures("clock")
def test_objective_of_the_estimate_depends_on_the_hint():
    # Half the requests on A and a quarter on B: the maximum is smaller, the sum is larger.
    uneven = (Replica((0, 0), 0.5), Replica((1, 1), 0.25))
    names = {ON_A: ("slicing",), uneven: ("packing",)}
    assert predicted("THROUGHPUT", names, 101)[0] == [uneven, ON_A]  # 1.5 and 2
    assert predicted("LATENCY", names, 101)[0] == [ON_A, uneven]  # 2 and 2.5


@pytest.mark.usefixtures("clock")
def test_required_plans_come_before_others_and_after_the_best():
    names = {ON_A: ("slicing",), HALVES: ("packing",), ON_B: ("annealing", "priority")}
    assert predicted("THROUGHPUT", names, 101) == ([ON_A, ON_B, HALVES], False)
    assert predicted("THROUGHPUT", names, 99) == ([ON_A, ON_B], True)


@pytest.mark.usefixtures("clock")
def test_deadline_leaves_one_plan_and_all_that_are_required():
    assert predicted("THROUGHPUT", {ON_A: ("slicing",)}, 99) == ([ON_A], False)
    names = {ON_A: ("slicing",), ON_B: ("single B",)}
    assert predicted("THROUGHPUT", names, 99) == ([ON_A, ON_B], False)
    assert predicted("THROUGHPUT", {ON_A: ("slicing",), ON_B: ("x",)}, 100)[1] is False


# Replicas.


def chain(times: list[list[float]], **limits: Any) -> Problem:
    sides = np.full(len(times[0]), 0.25)
    return make_problem(np.array(times), [(0, [1], sides, sides)], **limits)


def test_whole_model_replicas_share_by_speed():
    problem = chain([[1.0, 4.0, 2.0, np.inf], [1.0, 4.0, 2.0, 1.0]])
    expected = [
        {(0, 0): 2 / 3, (2, 2): 1 / 3},
        {(0, 0): 4 / 7, (2, 2): 2 / 7, (1, 1): 1 / 7},
    ]
    plans = [{r.assignment: r.share for r in plan} for plan in whole_model_replicas(problem)]
    assert [list(plan) for plan in plans] == [list(plan) for plan in expected]
    assert plans == [pytest.approx(plan) for plan in expected]


@pytest.mark.parametrize(
    "limits",
    [{"memory": np.array([9.0, 50.0]), "weights": np.array([5.0, 5.0])}, {"pins": [(0, 1)]}],
)
def test_replica_that_does_not_fit_is_left_out(limits):
    assert list(whole_model_replicas(chain([[1.0, 1.0], [1.0, 1.0]], **limits))) == []


def test_cuts_are_copied_within_the_classes():
    # Devices 0, 2 and 4 are equal, and 1 and 3.
    problem = chain([[1.0, 3.0, 1.0, 3.0, 1.0], [1.0, 3.0, 1.0, 3.0, 1.0]])
    plans = [(0, 1), (1, 0), (0, 2), (0, 0), (2, 3)]
    halves = [
        [((0, 1), 0.5), ((2, 3), 0.5)],
        [((1, 0), 0.5), ((3, 2), 0.5)],
        [((0, 1), 0.5), ((2, 3), 0.5)],
    ]
    copies = [[(r.assignment, r.share) for r in plan] for plan in replicate_cuts(problem, plans)]
    assert copies == halves


def test_cut_of_one_class_is_copied_to_disjoint_devices():
    problem = chain([[1.0] * 6, [1.0] * 6])
    ((first, second, third),) = replicate_cuts(problem, [(1, 0)])
    assert [r.assignment for r in (first, second, third)] == [(1, 0), (3, 2), (5, 4)]
    assert {r.share for r in (first, second, third)} == {1 / 3}
    assert list(replicate_cuts(chain([[1.0] * 3, [1.0] * 3]), [(0, 1)])) == []
