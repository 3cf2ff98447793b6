"""Solver results against brute force over all assignments of small random problems."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from hetero.planning.solver import bounds
from hetero.planning.solver.contraction import collapse_groups
from hetero.planning.solver.graph import topological_order
from hetero.planning.solver.heuristics import priority_plan
from hetero.planning.solver.local_search import LoadState, anneal, remove_fragments
from hetero.planning.solver.min_cut import minimum_cut
from hetero.planning.solver.problem import Problem, device_seconds, is_feasible, make_problem
from hetero.planning.solver.replicas import replicate_cuts, whole_model_replicas
from hetero.planning.solver.slicing import slice_order
from tests.support.evaluation import plan
from tests.support.exhaustive_search import every_assignment, every_load, least_bottleneck
from tests.support.planner_problems import random_problem

SIZES = [(9, 2), (8, 3), (9, 3), (6, 3), (7, 2)]


def small_problems(count: int) -> list[Problem]:
    """Return small problems, in turn with no constraint, memory limits, a group, and a pin."""
    problems = []
    for seed in range(count):
        nodes, devices = SIZES[seed % len(SIZES)]
        problem = random_problem(seed, nodes=nodes, devices=devices)
        match seed % 4:
            case 1:
                total = float(problem.weights.sum())
                problem = replace(
                    problem,
                    memory=np.full(devices, max(0.75 * total, float(problem.weights.max()))),
                )
            case 2:
                supporting = [v for v in range(nodes) if np.isfinite(problem.times[v, 0])]
                problem = replace(problem, groups=((supporting[0], supporting[-1]),))
            case 3:
                device = int(np.isfinite(problem.times[2]).argmax())
                problem = random_problem(seed, nodes=nodes, devices=devices, pins=[(2, device)])
        if len(every_assignment(problem)):
            problems.append(problem)
    assert len(problems) > count * 0.8
    return problems


@pytest.fixture(scope="module")
def cases():
    return [(p, least_bottleneck(p)) for p in small_problems(15)]


def test_loads_match_brute_force():
    for problem in small_problems(6):
        rows = every_assignment(problem)[::37]
        expected = every_load(problem, rows)
        actual = [device_seconds(problem, tuple(row)) for row in rows.tolist()]
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_search_plan_finds_the_optimum(
    cases,
):
    for problem, optimum in cases[:5]:
        result = plan(problem, seconds=0.3, replicates=False)
        assert is_feasible(problem, result.choice.assignment)
        assert result.choice.bottleneck == pytest.approx(optimum, rel=1e-9)
        assert max(result.choice.loads) == result.choice.bottleneck


def test_bounds_are_at_most_the_optimum(cases):
    for problem, optimum in cases:
        base = collapse_groups(problem).problem
        lower_bounds = [bounds.largest_node(base), bounds.total_work(base), bounds.priced_cut(base)]
        for bound in lower_bounds:
            assert bound is None or 0 < bound.seconds <= optimum, bound


def test_anneal_is_feasible_and_never_worse(cases):
    for problem, optimum in cases:
        base = collapse_groups(problem).problem
        start = priority_plan(base)
        if start is None:
            continue
        result, cut_short = anneal(base, start, proposals=2_000, seed=3)
        assert not cut_short
        assert is_feasible(base, result)
        bottleneck = device_seconds(base, result).max()
        assert (
            optimum * (1 - 1e-12) <= bottleneck <= device_seconds(base, start).max() * (1 + 1e-12)
        )


def test_anneal_is_cut_short_only_by_its_deadline(cases):
    base = collapse_groups(cases[0][0]).problem
    start = priority_plan(base)
    assert start is not None
    now_s = time.monotonic()
    assert anneal(base, start, proposals=1, seed=3, deadline=now_s) == (start, True)
    unlimited = anneal(base, start, proposals=2_000, seed=3)
    assert anneal(base, start, proposals=2_000, seed=3, deadline=now_s + 1e6) == unlimited


def test_anneal_with_very_slow_device_does_not_overflow():
    times = np.array([[1e-3, 1e3]] * 4)
    problem = make_problem(times, [(v, [v + 1], np.zeros(2), np.zeros(2)) for v in range(3)])
    assert anneal(problem, (0,) * 4, proposals=500, seed=1) == ((0,) * 4, False)


def test_load_state_moves_keep_loads_exact():
    problem = random_problem(5, nodes=9, devices=3)
    state = LoadState(problem, priority_plan(problem) or ())
    rng = np.random.default_rng(0)
    for _ in range(300):
        v = int(rng.integers(9))
        state.move(v, int(rng.choice(state.options[v])))
    expected = device_seconds(problem, tuple(state.device_of))
    np.testing.assert_allclose(state.loads, expected, atol=1e-9)


def test_remove_fragments_is_never_worse():
    for problem in small_problems(20):
        base = collapse_groups(problem).problem
        for row in every_assignment(base)[::701].tolist():
            loads_before = device_seconds(base, tuple(row))
            cleaned = remove_fragments(base, tuple(row))
            loads_after = device_seconds(base, cleaned)
            assert is_feasible(base, cleaned)
            assert loads_after.max() <= loads_before.max() * (1 + 1e-9)
            assert loads_after.sum() <= loads_before.sum() * (1 + 1e-9)


def test_minimum_cut_is_optimal():
    for seed in range(12):
        problem = random_problem(seed, nodes=9, devices=2)
        weighted_sums = every_load(problem, every_assignment(problem)) @ np.array([0.3, 0.7])
        result = minimum_cut(problem, 0, 1, (0.3, 0.7))
        assert result is not None
        value, assignment = result
        assert value == pytest.approx(weighted_sums.min(), rel=1e-6)
        assert value <= weighted_sums.min()
        actual = device_seconds(problem, assignment) @ np.array([0.3, 0.7])
        assert actual == pytest.approx(weighted_sums.min(), rel=1e-6)


def best_rate(table: np.ndarray) -> float:
    """Return the maximum request rate of any routing over the columns, by linear programming."""
    scale = float(table.max())
    result = linprog(
        -np.ones(table.shape[1]), table / scale, np.ones(len(table)), method="highs-ds"
    )
    return -float(result.fun) / scale


def test_priced_cut_is_the_best_routing_of_two_devices():
    num_bounds = 0
    for seed in range(10):
        problem = random_problem(seed, nodes=8, devices=2)
        expected = 1 / best_rate(every_load(problem, every_assignment(problem)).T)
        bound = bounds.priced_cut(problem)
        if bound is not None:
            num_bounds += 1
            assert bound.seconds == pytest.approx(expected, rel=1e-4)
            assert bound.seconds <= expected
    assert num_bounds > 5


def test_whole_model_replicas_are_equally_busy():
    problem = make_problem(np.array([[1.0, 2.0, 4.0], [1.0, 2.0, np.inf]]), [])
    (replicas,) = whole_model_replicas(problem)
    assert [r.assignment for r in replicas] == [(0, 0), (1, 1)]
    assert [r.share for r in replicas] == pytest.approx([2 / 3, 1 / 3])
    busy_s = [r.share * device_seconds(problem, r.assignment).max() for r in replicas]
    assert busy_s == pytest.approx([4 / 3, 4 / 3])


def test_cuts_are_replicated_on_devices_of_the_same_class():
    times = np.array([[1.0, 1.0, 1.0, 3.0, 3.0], [2.0, 2.0, 2.0, 1.0, 1.0]])
    problem = make_problem(times, [])
    (replicas,) = replicate_cuts(problem, [(0, 3), (0, 0), (0, 1)])
    assert [(r.assignment, r.share) for r in replicas] == [((0, 3), 0.5), ((1, 4), 0.5)]


def test_slice_order_is_optimal():
    for seed in range(9):
        problem = random_problem(seed, nodes=7, devices=3)
        if seed % 2:
            problem = replace(problem, memory=np.full(3, 0.5 * problem.weights.sum()))
        order = topological_order(7, problem.edges())
        best = np.inf
        for first_end, second_end in itertools.combinations_with_replacement(range(8), 2):
            for devices in itertools.permutations(range(3)):
                assignment = [0] * 7
                for position, v in enumerate(order):
                    assignment[v] = devices[(position >= first_end) + (position >= second_end)]
                if is_feasible(problem, tuple(assignment)):
                    best = min(best, float(every_load(problem, np.array([assignment])).max()))
        result = slice_order(problem, order)
        if result is None:
            assert best == np.inf
        else:
            assert result[0] == pytest.approx(best, rel=1e-9)
            assert every_load(problem, np.array([result[1]])).max() == pytest.approx(best)
