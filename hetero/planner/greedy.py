"""The plans that need no search: a priority list, one device alone, one class at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.planner.problem import Assignment, Problem, allowed


def priority(problem: Problem, order: Sequence[int] | None = None) -> Assignment | None:
    """Give each node to the first device that may take it and has room for its weights.

    Parameters
    ----------
    problem : Problem
        Without colocation groups (contract first).
    order : sequence of int, optional
        The devices by priority; their own order when None.

    Returns
    -------
    tuple of int or None
        The device of every node; None when a node finds no room.
    """
    mask = allowed(problem).tolist()
    free: list[float] = problem.memory.tolist()
    weights: list[float] = problem.weights.tolist()
    devices = list(range(problem.device_count)) if order is None else list(order)
    assignment = []
    for v in range(problem.node_count):
        for d in devices:
            if mask[v][d] and weights[v] <= free[d]:
                free[d] -= weights[v]
                assignment.append(d)
                break
        else:
            return None
    return tuple(assignment)


def single(problem: Problem, device: int) -> Assignment | None:
    """Everything on one device, or None when it does not support or hold all of it."""
    mask = allowed(problem)[:, device]
    if not mask.all() or float(problem.weights.sum()) > problem.memory[device] * (1 + 1e-12):
        return None
    return (device,) * problem.node_count


def pack(problem: Problem) -> Assignment | None:
    """A feasible assignment for tight memory: heavy and choosy nodes first, to the emptiest device.

    Returns
    -------
    tuple of int or None
        None when this order of filling finds no room for a node.
    """
    mask = allowed(problem)
    free = problem.memory.copy()
    load = np.zeros(problem.device_count)
    where = [-1] * problem.node_count
    choosy = mask.sum(axis=1)
    order = sorted(
        range(problem.node_count),
        key=lambda v: (
            -float(problem.weights[v]) if choosy[v] > 1 else -np.inf,
            int(choosy[v]),
            v,
        ),
    )
    for v in order:
        fits = [d for d in np.flatnonzero(mask[v]).tolist() if problem.weights[v] <= free[d]]
        if not fits:
            return None
        if problem.weights[v] > 0 and np.isfinite([free[d] for d in fits]).all():
            best = max(fits, key=lambda d: (free[d], -load[d], -d))
        else:
            best = min(fits, key=lambda d: (load[d] + problem.times[v, d], d))
        where[v] = best
        free[best] -= problem.weights[v]
        load[best] += problem.times[v, best]
    return tuple(where)
