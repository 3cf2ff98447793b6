"""Plan search: published optima, constraints, replicas, determinism, and errors."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import partition
from hetero.devices.errors import PlanError
from hetero.planning.solver.candidates import Candidate, Hint, Solution
from hetero.planning.solver.problem import is_feasible, make_problem
from tests.support.evaluation import evaluate, plan
from tests.support.exhaustive_search import every_assignment, least_bottleneck
from tests.support.planner_problems import DATA, load, random_problem, residual_network

#: Best contiguous plan of each published instance, by the authors' dynamic programme.
CONTIGUOUS = {
    "operator/bert_l-3_inference": 27.9186,
    "operator/bert_l-12_inference": 147.478,
    "operator/resnet50_inference": 124.349,
    "layer/bert24_inference": 17.7899,
    "layer/resnet50_inference": 33.7747,
}
#: Best known assignment of each instance.
BEST_KNOWN = {
    "operator/bert_l-3_inference": 21.9084,
    "operator/bert_l-12_inference": 130.038,
    "operator/resnet50_inference": 124.349,
    "layer/bert24_inference": 17.7147,
    "layer/resnet50_inference": 33.482,
}


def best_objective_s(solution: Solution, hint: Hint = "THROUGHPUT") -> float:
    """Return the best objective of all candidates."""
    return min(c.objective_s(hint) for c in (solution.choice, *solution.runners_up))


def candidate_named(solution: Solution, name: str) -> Candidate:
    return next(c for c in (solution.choice, *solution.runners_up) if name in c.names)


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_contiguous_plans_reach_published_optimum(name):
    solution = plan(load(DATA / f"{name}.json"), seconds=1, contiguous=True)
    assert solution.choice.bottleneck == pytest.approx(CONTIGUOUS[name], rel=1e-5)
    assert solution.bound.seconds <= BEST_KNOWN[name]
    assert solution.choice.subgraphs <= 7


@pytest.mark.slow
@pytest.mark.parametrize("name", BEST_KNOWN)
def test_plans_reach_best_known_bottleneck(name):
    solution = plan(load(DATA / f"{name}.json"), seconds=5, replicates=False)
    bottlenecks = [
        c.bottleneck for c in (solution.choice, *solution.runners_up) if len(c.replicas) == 1
    ]
    assert min(bottlenecks) <= 1.03 * BEST_KNOWN[name]


#: Cases whose gap to the bound is larger: model, seed and mask -> measured gap. The bound allows
#: requests to be divided among unlike cuts, which a plan cannot; a search of 20 s ends at the same
#: bottleneck as one of 2 s.
GAPS = {("operator/bert_l-3_inference", 1, 0.1): 1.055}


@pytest.mark.slow
@pytest.mark.parametrize("mask", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", [n for n in BEST_KNOWN if n.startswith("operator")])
def test_plans_are_close_to_bound(name, seed, mask):
    problem = load(DATA / f"{name}.json", mask=mask, seed=seed, slow=3.0)
    solution = plan(problem, seconds=2)
    bound = max(b.seconds for b in solution.bounds if b.covers_replicas)
    assert solution.choice.bottleneck <= GAPS.get((name, seed, mask), 1.02) * bound
    greedy = candidate_named(solution, "priority")
    assert greedy.bottleneck >= solution.choice.bottleneck


def test_replicas_beat_pipeline_if_model_fits():
    problem = make_problem(
        np.full((4, 3), 1.0), [(v, [v + 1], np.ones(3), np.ones(3)) for v in range(3)]
    )
    solution = plan(problem, seconds=0.5)
    assert solution.choice.bottleneck == pytest.approx(4 / 3)
    assert sorted(p.share for p in solution.choice.replicas) == pytest.approx([1 / 3] * 3)
    assert {p.assignment for p in solution.choice.replicas} == {(d,) * 4 for d in range(3)}
    assert solution.choice.bottleneck == pytest.approx(solution.bound.seconds, rel=1e-6)
    assert solution.bound.covers_replicas
    single = plan(problem, seconds=0.5, replicates=False)
    assert len(single.choice.replicas) == 1
    assert single.choice.bottleneck == pytest.approx(least_bottleneck(problem))


def test_replicas_fit_memory_together():
    for seed in range(6):
        problem = random_problem(seed, nodes=7, devices=2, memory=np.array([2.2, 2.2]))
        if not len(every_assignment(problem)):
            continue
        solution = plan(problem, seconds=0.3)
        for d in range(2):
            nodes = {
                v
                for p in solution.choice.replicas
                for v, device in enumerate(p.assignment)
                if device == d
            }
            assert problem.weights[sorted(nodes)].sum() <= problem.memory[d] * (1 + 1e-9)


def test_search_plan_is_deterministic():
    problem = load(DATA / "layer/resnet50_inference.json")
    first = plan(problem, seconds=0.3, seed=5)
    second = plan(problem, seconds=0.3, seed=5)
    assert not first.cut_short
    assert first.choice == second.choice
    assert first.runners_up == second.runners_up


def test_choice_prefers_fewer_subgraphs_within_tolerance():
    solution = plan(load(DATA / "layer/bert24_inference.json"), seconds=0.5, replicates=False)
    strict = next(c for c in solution.runners_up if len(c.replicas) == 1)
    assert solution.choice.subgraphs < strict.subgraphs
    assert strict.bottleneck <= solution.choice.bottleneck <= strict.bottleneck * 1.03


@pytest.mark.slow
def test_plan_meets_all_constraints():
    for seed in range(6):
        base = random_problem(seed, nodes=12, devices=3)
        device = int(np.isfinite(base.times[3]).argmax())
        problem = random_problem(
            seed,
            nodes=12,
            devices=3,
            pins=[(3, device)],
            memory=np.full(3, 0.8 * base.weights.sum()),
            max_subgraphs=4,
        )
        try:
            solution = plan(problem, seconds=0.3)
        except PlanError as refusal:
            assert refusal.data["constraint"] in {"subgraphs", "memory"}  # noqa: PT017  # some seeds
            continue
        for part in solution.choice.replicas:
            assert is_feasible(problem, part.assignment)
            assert part.assignment[3] == device
        assert solution.choice.subgraphs <= 4


def test_latency_plans_are_close_to_optimum():
    for seed in range(2):
        problem = random_problem(seed, nodes=9, devices=2)
        solution = plan(problem, "LATENCY", seconds=1)
        best = min(evaluate(problem, tuple(r)).latency for r in every_assignment(problem).tolist())
        assert best * (1 - 1e-12) <= best_objective_s(solution, "LATENCY") <= 1.05 * best
        assert 0 < solution.bound.seconds <= best


@pytest.mark.parametrize("mask", [pytest.param(0.1, marks=pytest.mark.slow), 0.3])
def test_plans_have_no_fragments(mask):
    problem = load(DATA / "operator/bert_l-3_inference.json", mask=mask, slow=3.0)
    solution = plan(problem, seconds=1, replicates=False)
    evaluation = evaluate(problem, solution.choice.assignment)
    for c in range(evaluation.subgraphs):
        nodes = [v for v, subgraph in enumerate(evaluation.cluster) if subgraph == c]
        assignment = list(solution.choice.assignment)
        for v in nodes:
            assignment[v] = 1 - assignment[v]
        if is_feasible(problem, tuple(assignment)):
            evaluation = evaluate(problem, tuple(assignment))
            assert evaluation.bottleneck > evaluation.bottleneck * (
                1 - 1e-9
            ) or evaluation.loads.sum() > evaluation.loads.sum() * (1 - 1e-9), nodes


def test_partition_benchmark_json_output(capsys):
    file = str(DATA / "layer/bert24_inference.json")
    assert partition.main([file, "--mode", "contiguous", "--seconds", "0.5", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert set(row) == {"file", "mode", "bottleneck", "lower_bound", "ratio", "seconds"}
    assert (row["file"], row["mode"]) == (file, "contiguous")
    assert row["bottleneck"] == pytest.approx(17.7899, rel=1e-5)
    assert row["ratio"] == pytest.approx(row["bottleneck"] / row["lower_bound"])


def test_large_graph_is_coarsened():
    problem = residual_network(1200, seed=2)
    solution = plan(problem, seconds=0.2)
    greedy = candidate_named(solution, "priority")
    assert solution.choice.bottleneck < 0.8 * greedy.bottleneck
    assert solution.bound.seconds <= solution.choice.bottleneck


def solve_small_problem(**limits: object) -> None:
    times = np.array([[1.0, 2.0], [1.0, np.inf], [2.0, 1.0]])
    free = np.zeros(2)
    problem = make_problem(
        limits.pop("times", times),  # type: ignore[arg-type]  # tests pass arrays
        [(0, [1], free, free), (1, [2], free, free)],
        names=["first", "conv", "last"],
        devices=["GPU", "CPU"],
        weights=np.array([10.0, 20.0, 30.0]),
        **limits,  # type: ignore[arg-type]  # arguments of one case
    )
    plan(problem, seconds=0.2)


@pytest.mark.parametrize(
    ("limits", "constraint", "words"),
    [
        ({"times": np.full((3, 2), np.inf)}, "support", "'first', 'conv', 'last'"),
        ({"pins": [(1, 1)]}, "pins", "'conv' is pinned to CPU"),
        ({"pins": [(0, 0), (0, 1)]}, "pins", "'first' is pinned to both GPU and CPU"),
        ({"memory": np.array([15.0, 25.0])}, "memory", "'last' has 30 bytes"),
        ({"memory": np.array([19.0, 90.0])}, "memory", "'conv' has 20 bytes"),
        ({"memory": np.array([28.0, 31.0])}, "memory", "need 60 bytes, but these have 59"),
        ({"memory": np.array([35.0, 35.0]), "pins": [(0, 1)]}, "memory", "were not packed"),
        ({"groups": [(1, 2)], "pins": [(2, 1)]}, "colocation", "'conv', 'last'"),
        ({"pins": [(0, 1)], "max_subgraphs": 1}, "subgraphs", "'first', 'conv'"),
        ({"pins": [(0, 1), (2, 1)], "max_subgraphs": 2}, "subgraphs", "the smallest plan has 3"),
    ],
)
def test_search_plan_impossible_constraints_raise(limits, constraint, words):
    with pytest.raises(PlanError) as error:
        solve_small_problem(**limits)
    assert words in str(error.value)
    assert error.value.data["constraint"] == constraint
