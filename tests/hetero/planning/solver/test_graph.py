"""Orders, contraction, clusters: what must stay the same when a graph is ordered or shrunk."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.errors import PlanError
from hetero.planning.solver.contraction import coarsen, collapse_groups, fuse, fuse_cycles
from hetero.planning.solver.graph import components, depth_first
from hetero.planning.solver.problem import Problem, allowed, loads, make_problem
from tests.support.evaluation import evaluate
from tests.support.instances import random_problem, residual_network


def chain(times: list[list[float]], cost: float) -> Problem:
    """Nodes one after the other, a tensor of ``cost`` seconds on either side between them."""
    table = np.array(times)
    sides = np.full(table.shape[1], cost)
    return make_problem(table, [(v, [v + 1], sides, sides) for v in range(len(table) - 1)])


@pytest.mark.parametrize("seed", range(5))
def test_an_order_keeps_every_edge(seed: int) -> None:
    problem = random_problem(seed, nodes=40, devices=2)
    n, edges = problem.node_count, problem.edges()
    order = depth_first(n, edges)
    assert sorted(order) == list(range(n))
    place = {v: i for i, v in enumerate(order)}
    assert all(place[u] < place[v] for u, v in edges)


def test_an_order_of_a_cycle_names_its_nodes() -> None:
    with pytest.raises(PlanError, match="cycle") as caught:
        depth_first(4, [(0, 1), (1, 2), (2, 1)])
    assert caught.value.data["nodes"] == (1, 2)


def test_components_are_mutual_reachability() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        n = 9
        edges = [(int(u), int(v)) for u, v in rng.integers(0, n, (14, 2))]
        reach = np.eye(n, dtype=bool)
        for u, v in edges:
            reach[u, v] = True
        for _ in range(n):
            reach |= (reach.astype(int) @ reach.astype(int)) > 0
        found = components(n, edges)
        for u in range(n):
            for v in range(n):
                assert (found[u] == found[v]) == bool(reach[u, v] and reach[v, u])


@pytest.mark.parametrize("seed", range(6))
def test_contraction_keeps_loads(seed: int) -> None:
    problem = random_problem(seed, nodes=20, devices=3, groups=[(0, 7), (7, 12), (3, 4)])
    problem.times[:] = np.where(np.isfinite(problem.times), problem.times, 5.0)
    rng = np.random.default_rng(seed)
    groups = collapse_groups(problem)
    assert groups.supernode[0] == groups.supernode[7] == groups.supernode[12]
    fused = groups.then(fuse_cycles(groups.problem))
    some = fuse(problem, rng.permutation(np.arange(20) % 6).tolist())
    for contraction in (groups, fused, some):
        small = contraction.problem
        for _ in range(10):
            plan = tuple(rng.integers(0, 3, small.node_count).tolist())
            whole = contraction.expand(plan)
            np.testing.assert_allclose(loads(small, plan), loads(problem, whole))
    assert len(depth_first(fused.problem.node_count, fused.problem.edges()))


def test_coarsening_is_small_acyclic_and_keeps_support() -> None:
    problem = residual_network(3000, seed=1)
    problem.times[:, :2] = problem.times[:, 2:] / 4
    small = coarsen(problem, 100)
    assert small.problem.node_count < 220
    assert len(depth_first(small.problem.node_count, small.problem.edges()))
    mixed = residual_network(3000, seed=1)
    small = coarsen(mixed, 100)
    np.testing.assert_array_equal(allowed(small.problem)[list(small.supernode)], allowed(mixed))
    assert len(depth_first(small.problem.node_count, small.problem.edges()))


def test_evaluation_of_a_chain_by_hand() -> None:
    problem = chain([[1, 9], [1, 9], [9, 2], [1, 9]], cost=0.5)
    judged = evaluate(problem, (0, 0, 1, 0))
    # Device 0: three nodes, one tensor out, one in; device 1: its node, one in, one out.
    assert judged.loads.tolist() == [4.0, 3.0]
    assert (judged.subgraphs, judged.levels) == (3, 3)
    # 1 + 1 and the send, the receive and 2 and the send, the receive and 1.
    assert judged.latency == pytest.approx(2.5 + 3.0 + 1.5)
    assert judged.bottleneck == 4.0
