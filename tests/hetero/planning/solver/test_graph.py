"""Topological orders, components, and contraction, which preserves loads."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.errors import PlanError
from hetero.planning.solver.graph import strong_components, topological_order
from hetero.planning.solver.problem import Problem, make_problem
from tests.support.evaluation import evaluate
from tests.support.planner_problems import random_problem


def chain(times: list[list[float]], cost: float) -> Problem:
    """Return a chain of nodes; sending or receiving a tensor takes `cost` seconds."""
    table = np.array(times)
    sides = np.full(table.shape[1], cost)
    return make_problem(table, [(v, [v + 1], sides, sides) for v in range(len(table) - 1)])


@pytest.mark.parametrize("seed", range(5))
def test_topological_order_respects_every_edge(seed):
    problem = random_problem(seed, nodes=40, devices=2)
    n, edges = problem.node_count, problem.edges()
    order = topological_order(n, edges)
    assert sorted(order) == list(range(n))
    position_of = {v: i for i, v in enumerate(order)}
    assert all(position_of[u] < position_of[v] for u, v in edges)


def test_topological_order_of_cycle_raises_with_nodes():
    with pytest.raises(PlanError, match="cycle") as error:
        topological_order(4, [(0, 1), (1, 2), (2, 1)])
    assert error.value.data["nodes"] == (1, 2)


def test_strong_components_match_reachability():
    rng = np.random.default_rng(4)
    for _ in range(20):
        n = 9
        edges = [(int(u), int(v)) for u, v in rng.integers(0, n, (14, 2))]
        reach = np.eye(n, dtype=bool)
        for u, v in edges:
            reach[u, v] = True
        for _ in range(n):
            reach |= (reach.astype(int) @ reach.astype(int)) > 0
        component_of = strong_components(n, edges)
        for u in range(n):
            for v in range(n):
                assert (component_of[u] == component_of[v]) == bool(reach[u, v] and reach[v, u])


def test_evaluate_chain_by_hand():
    problem = chain([[1, 9], [1, 9], [9, 2], [1, 9]], cost=0.5)
    evaluation = evaluate(problem, (0, 0, 1, 0))
    # Device 0: three nodes, one tensor out, one in; device 1: its node, one in, one out.
    assert evaluation.loads.tolist() == [4.0, 3.0]
    assert (evaluation.subgraphs, evaluation.levels) == (3, 3)
    # 1 + 1 and the send, the receive and 2 and the send, the receive and 1.
    assert evaluation.latency == pytest.approx(2.5 + 3.0 + 1.5)
    assert evaluation.bottleneck == 4.0
