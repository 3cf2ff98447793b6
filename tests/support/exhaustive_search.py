"""Exhaustive search over the assignments of a small problem, independent of the planner."""

from __future__ import annotations

import itertools

import numpy as np

from hetero.planning.solver.problem import Problem


def every_assignment(problem: Problem) -> np.ndarray:
    """Return all assignments that support, pins, colocation and memory allow, one per row."""
    n, k = problem.times.shape
    rows = np.array(list(itertools.product(range(k), repeat=n)))
    good = np.isfinite(problem.times[np.arange(n), rows]).all(axis=1)
    for v, d in problem.pins:
        good &= rows[:, v] == d
    for group in problem.groups:
        good &= (rows[:, list(group)] == rows[:, [group[0]]]).all(axis=1)
    for d in range(k):
        good &= ((rows == d) * problem.weights).sum(axis=1) <= problem.memory[d]
    return rows[good]


def every_load(problem: Problem, rows: np.ndarray) -> np.ndarray:
    """Return the load of each device under each assignment, shape (rows, devices)."""
    k = problem.device_count
    result = np.zeros((len(rows), k))
    for d in range(k):
        is_on_device = rows == d
        result[:, d] = (
            is_on_device * np.where(np.isfinite(problem.times[:, d]), problem.times[:, d], 0)
        ).sum(1)
        for h, tail in enumerate(problem.tails):
            heads = is_on_device[:, list(problem.heads[h])]
            result[:, d] += problem.send[h, d] * (is_on_device[:, tail] & ~heads.all(axis=1))
            result[:, d] += problem.receive[h, d] * (~is_on_device[:, tail] & heads.any(axis=1))
    return result


def least_bottleneck(problem: Problem) -> float:
    """Return the smallest bottleneck of all assignments."""
    return float(every_load(problem, every_assignment(problem)).max(axis=1).min())
