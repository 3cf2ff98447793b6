"""The plans that need no search: a priority list, minimum cuts, packings."""

from __future__ import annotations

import itertools
import math
import random

from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.problem import Assignment, Problem, allowed

#: Fillings that `pack` tries.
PACKINGS = 60


def priority(problem: Problem) -> Assignment | None:
    """Give each node to the first device that may take it and has room for its weights, if one has.

    `problem`: without colocation groups (contract first).
    """
    mask = allowed(problem).tolist()
    free: list[float] = problem.memory.tolist()
    weights: list[float] = problem.weights.tolist()
    assignment = []
    for v in range(problem.node_count):
        for d in range(problem.device_count):
            if mask[v][d] and weights[v] <= free[d]:
                free[d] -= weights[v]
                assignment.append(d)
                break
        else:
            return None
    return tuple(assignment)


def serial_cuts(problem: Problem) -> list[Assignment]:
    """The least sum of loads of each pair of devices of different classes, memory not looked at."""
    first = [problem.classes.index(c) for c in sorted(set(problem.classes))]
    found = (two_way(problem, a, b, (1.0, 1.0)) for a, b in itertools.combinations(first, 2))
    return [cut[1] for cut in found if cut is not None]


def pack(problem: Problem) -> Assignment | None:
    """A feasible assignment for tight memory, by several orders of filling, where one of them fits.

    Heavy nodes first, each to the device with most room or with least, then the same with the order
    of the nodes and the choice between the two shaken, by a fixed seed.
    """
    rng = random.Random(0)
    for turn in range(PACKINGS):
        shake = 0.0 if turn < 2 else 0.6
        found = _fill(problem, tightest=float(turn % 2) if turn < 2 else 0.7, shake=shake, rng=rng)
        if found is not None:
            return found
    return None


def _fill(
    problem: Problem, *, tightest: float, shake: float, rng: random.Random
) -> Assignment | None:
    """One filling; ``tightest`` is how often a node goes to the device with least room for it."""
    mask = allowed(problem).tolist()
    times, weights = problem.times.tolist(), problem.weights.tolist()
    free: list[float] = problem.memory.tolist()
    load = [0.0] * problem.device_count
    where = [-1] * problem.node_count
    # Nodes without a choice come first: what they take is gone whatever else happens.
    rank = [
        (sum(mask[v]) > 1, -w * (1 - shake * rng.random()) if w else 0.0)
        for v, w in enumerate(weights)
    ]
    for v in sorted(range(problem.node_count), key=lambda v: (rank[v], v)):
        fits = [d for d, ok in enumerate(mask[v]) if ok and weights[v] <= free[d] * (1 + 1e-12)]
        if not fits:
            return None
        if not weights[v] or any(math.isinf(free[d]) for d in fits):
            best = min(fits, key=lambda d: (load[d] + times[v][d], d))
        elif rng.random() < tightest:
            best = min(fits, key=lambda d: (free[d], d))
        else:
            best = max(fits, key=lambda d: (free[d], -d))
        where[v] = best
        free[best] -= weights[v]
        load[best] += times[v][best]
    return tuple(where)
