"""The planner against brute force over all assignments of small random problems."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hetero.planning.solver import bounds
from hetero.planning.solver.contraction import collapse_groups
from hetero.planning.solver.graph import depth_first
from hetero.planning.solver.heuristics import priority
from hetero.planning.solver.local_search import State, anneal, tidy
from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.mixing import mix, most_requests
from hetero.planning.solver.problem import Problem, is_feasible, loads, make_problem
from hetero.planning.solver.slicing import slice_order
from tests.support.evaluation import plan
from tests.support.every_assignment import every_assignment, every_load, least_bottleneck
from tests.support.instances import random_problem

SIZES = [(9, 2), (8, 3), (9, 3), (6, 3), (7, 2)]


def problems(count: int) -> list[Problem]:
    """Small problems with, in turn, nothing, memory, a group, a pin to mind."""
    made = []
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
                same = [v for v in range(nodes) if np.isfinite(problem.times[v, 0])]
                problem = replace(problem, groups=((same[0], same[-1]),))
            case 3:
                device = int(np.isfinite(problem.times[2]).argmax())
                problem = random_problem(seed, nodes=nodes, devices=devices, pins=[(2, device)])
        if len(every_assignment(problem)):
            made.append(problem)
    assert len(made) > count * 0.8
    return made


@pytest.fixture(scope="module")
def cases() -> list[tuple[Problem, float]]:
    return [(p, least_bottleneck(p)) for p in problems(15)]


def test_loads_equal_the_definition() -> None:
    for problem in problems(6):
        rows = every_assignment(problem)[::37]
        want = every_load(problem, rows)
        got = [loads(problem, tuple(row)) for row in rows.tolist()]
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_plans_find_the_optimum(
    cases: list[tuple[Problem, float]],
) -> None:
    for problem, optimum in cases[:5]:
        found = plan(problem, seconds=0.3, max_parts=1)
        assert is_feasible(problem, found.chosen.assignment)
        assert found.chosen.bottleneck == pytest.approx(optimum, rel=1e-9)
        assert max(found.chosen.loads) == found.chosen.bottleneck


def test_no_bound_is_above_the_optimum(cases: list[tuple[Problem, float]]) -> None:
    for problem, optimum in cases:
        base = collapse_groups(problem).problem
        proven = [bounds.largest_node(base), bounds.work(base), bounds.priced_cut(base)]
        for bound in proven:
            assert bound is None or 0 < bound.seconds <= optimum, bound


def test_annealing_stays_feasible_and_loses_nothing(cases: list[tuple[Problem, float]]) -> None:
    for problem, optimum in cases:
        base = collapse_groups(problem).problem
        start = priority(base)
        if start is None:
            continue
        found, cut_short = anneal(base, start, proposals=2_000, seed=3)
        assert not cut_short
        assert is_feasible(base, found)
        least = loads(base, found).max()
        assert optimum * (1 - 1e-12) <= least <= loads(base, start).max() * (1 + 1e-12)


def test_a_device_a_million_times_slower_overflows_nothing() -> None:
    times = np.array([[1e-3, 1e3]] * 4)
    problem = make_problem(times, [(v, [v + 1], np.zeros(2), np.zeros(2)) for v in range(3)])
    assert anneal(problem, (0,) * 4, proposals=500, seed=1) == ((0,) * 4, False)


def test_moves_keep_loads_exact() -> None:
    problem = random_problem(5, nodes=9, devices=3)
    state = State(problem, priority(problem) or ())
    rng = np.random.default_rng(0)
    for _ in range(300):
        v = int(rng.integers(9))
        state.move(v, int(rng.choice(state.options[v])))
    want = loads(problem, tuple(state.where))
    np.testing.assert_allclose(state.loads, want, atol=1e-9)


def test_tidy_raises_neither_the_bottleneck_nor_the_sum() -> None:
    for problem in problems(20):
        base = collapse_groups(problem).problem
        for row in every_assignment(base)[::701].tolist():
            before = loads(base, tuple(row))
            after_plan = tidy(base, tuple(row))
            after = loads(base, after_plan)
            assert is_feasible(base, after_plan)
            assert after.max() <= before.max() * (1 + 1e-9)
            assert after.sum() <= before.sum() * (1 + 1e-9)


def test_two_way_cut_is_the_least_priced_sum() -> None:
    for seed in range(12):
        problem = random_problem(seed, nodes=9, devices=2)
        priced = every_load(problem, every_assignment(problem)) @ np.array([0.3, 0.7])
        found = two_way(problem, 0, 1, (0.3, 0.7))
        assert found is not None
        value, chosen = found
        assert value == pytest.approx(priced.min(), rel=1e-6)
        assert value <= priced.min()
        got = loads(problem, chosen) @ np.array([0.3, 0.7])
        assert got == pytest.approx(priced.min(), rel=1e-6)


def best_rate(table: np.ndarray) -> float:
    """Most requests a second of any mix of the columns, proven by prices that reach it."""
    shares, prices = most_requests(table)
    assert (shares >= 0).all()
    assert (prices >= 0).all()
    assert (table @ shares).max() <= 1 + 1e-9
    # No mix has a higher rate than the prices' sum, where they make each plan cost 1 or more.
    assert (prices @ table).min() >= 1 - 1e-9
    assert prices.sum() == pytest.approx(shares.sum(), rel=1e-9)
    return float(shares.sum())


def test_the_best_rate_is_proven_by_its_prices() -> None:
    rng = np.random.default_rng(1)
    for k, count in itertools.product((1, 2, 4), (1, 3, 12)):
        table = rng.uniform(0.0, 5.0, (k, count)) + np.eye(k, count)
        assert best_rate(table * 1e-9) * 1e-9 == pytest.approx(best_rate(table), rel=1e-9)


def test_mix_for_two_devices_is_the_best_of_all_mixes() -> None:
    for seed in range(10):
        problem = random_problem(seed, nodes=8, devices=2)
        rows = every_assignment(problem)
        want = 1 / best_rate(every_load(problem, rows).T)
        parts = mix(problem, [tuple(rows[0].tolist())])
        shares = np.array([part.share for part in parts])
        loads_of = np.stack([loads(problem, part.assignment) for part in parts], axis=1)
        assert (loads_of @ shares).max() == pytest.approx(want, rel=2e-3)
        assert shares.sum() == pytest.approx(1)
        bound = bounds.priced_cut(problem)
        if bound is not None:
            assert bound.seconds == pytest.approx(want, rel=1e-4)
            assert bound.seconds <= want


def test_slicing_is_the_best_of_all_interval_plans() -> None:
    for seed in range(9):
        problem = random_problem(seed, nodes=7, devices=3)
        if seed % 2:
            problem = replace(problem, memory=np.full(3, 0.5 * problem.weights.sum()))
        order = depth_first(7, problem.edges())
        best = np.inf
        for one, two in itertools.combinations_with_replacement(range(8), 2):
            for devices in itertools.permutations(range(3)):
                chosen = [0] * 7
                for place, v in enumerate(order):
                    chosen[v] = devices[(place >= one) + (place >= two)]
                if is_feasible(problem, tuple(chosen)):
                    best = min(best, float(every_load(problem, np.array([chosen])).max()))
        found = slice_order(problem, order)
        if found is None:
            assert best == np.inf
        else:
            assert found[0] == pytest.approx(best, rel=1e-9)
            assert every_load(problem, np.array([found[1]])).max() == pytest.approx(best)
