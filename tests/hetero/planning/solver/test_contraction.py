"""Contraction of problems, which preserves loads and support."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.planning.solver.contraction import coarsen, collapse_groups, fuse, fuse_cycles
from hetero.planning.solver.graph import topological_order
from hetero.planning.solver.problem import allowed_devices, device_seconds
from tests.support.planner_problems import random_problem, residual_network


@pytest.mark.parametrize("seed", range(6))
def test_contraction_preserves_loads(seed):
    problem = random_problem(seed, nodes=20, devices=3, groups=[(0, 7), (7, 12), (3, 4)])
    problem.times[:] = np.where(np.isfinite(problem.times), problem.times, 5.0)
    rng = np.random.default_rng(seed)
    groups = collapse_groups(problem)
    assert groups.supernode[0] == groups.supernode[7] == groups.supernode[12]
    without_cycles = groups.compose(fuse_cycles(groups.problem))
    arbitrary = fuse(problem, rng.permutation(np.arange(20) % 6).tolist())
    for contraction in (groups, without_cycles, arbitrary):
        contracted = contraction.problem
        for _ in range(10):
            plan = tuple(rng.integers(0, 3, contracted.node_count).tolist())
            assignment = contraction.expand(plan)
            np.testing.assert_allclose(
                device_seconds(contracted, plan), device_seconds(problem, assignment)
            )
    assert len(topological_order(without_cycles.problem.node_count, without_cycles.problem.edges()))


def test_coarsen_is_acyclic_and_preserves_support():
    problem = residual_network(3000, seed=1)
    problem.times[:, :2] = problem.times[:, 2:] / 4
    contracted = coarsen(problem, 100)
    assert contracted.problem.node_count < 220
    assert len(topological_order(contracted.problem.node_count, contracted.problem.edges()))
    network = residual_network(3000, seed=1)
    contracted = coarsen(network, 100)
    np.testing.assert_array_equal(
        allowed_devices(contracted.problem)[list(contracted.supernode)], allowed_devices(network)
    )
    assert len(topological_order(contracted.problem.node_count, contracted.problem.edges()))
