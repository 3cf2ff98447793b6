"""Brute force over every assignment of a small problem, written apart from the planner."""

from __future__ import annotations

import itertools

import numpy as np

from hetero.planning.solver.problem import Problem


def every_assignment(problem: Problem) -> np.ndarray:
    """All assignments that support, pins, colocation and memory allow, one a row."""
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
    """Load of each device under each assignment, shape (rows, devices)."""
    k = problem.device_count
    result = np.zeros((len(rows), k))
    for d in range(k):
        here = rows == d
        result[:, d] = (
            here * np.where(np.isfinite(problem.times[:, d]), problem.times[:, d], 0)
        ).sum(1)
        for h, tail in enumerate(problem.tails):
            heads = here[:, list(problem.heads[h])]
            result[:, d] += problem.send[h, d] * (here[:, tail] & ~heads.all(axis=1))
            result[:, d] += problem.receive[h, d] * (~here[:, tail] & heads.any(axis=1))
    return result


def least_bottleneck(problem: Problem) -> float:
    """The optimum."""
    return float(every_load(problem, every_assignment(problem)).max(axis=1).min())
