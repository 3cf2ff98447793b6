"""Heuristic plans without search: the priority list, minimum cuts, memory packing."""

from __future__ import annotations

import itertools
import math
import random

from hetero.planning.solver.min_cut import minimum_cut
from hetero.planning.solver.problem import Assignment, Problem, allowed_devices

#: Number of packings that `pack_memory` tries.
PACKING_ATTEMPTS = 60


def priority_plan(problem: Problem) -> Assignment | None:
    """Assign each node to the first allowed device with enough memory for its weights.

    `problem`: without colocation groups (contract them first).
    Returns: None if no device has enough memory for a node.
    """
    mask = allowed_devices(problem).tolist()
    free_nbytes: list[float] = problem.memory.tolist()
    weights: list[float] = problem.weights.tolist()
    assignment = []
    for v in range(problem.node_count):
        for d in range(problem.device_count):
            if mask[v][d] and weights[v] <= free_nbytes[d]:
                free_nbytes[d] -= weights[v]
                assignment.append(d)
                break
        else:
            return None
    return tuple(assignment)


def minimum_cut_plans(problem: Problem) -> list[Assignment]:
    """Return the plan with the minimum sum of loads for each pair of devices of different classes.

    The plans may exceed the devices' memory.
    """
    representatives = [problem.classes.index(c) for c in sorted(set(problem.classes))]
    cuts = (
        minimum_cut(problem, a, b, (1.0, 1.0))
        for a, b in itertools.combinations(representatives, 2)
    )
    return [cut[1] for cut in cuts if cut is not None]


def pack_memory(problem: Problem) -> Assignment | None:
    """Search a feasible assignment for scarce memory, by bin packing; None without success.

    Heavy nodes come first, each on the device with the most free memory (or the least). Further
    attempts randomise the order of the nodes and this choice, with a fixed seed.
    """
    rng = random.Random(0)
    for attempt in range(PACKING_ATTEMPTS):
        shake = 0.0 if attempt < 2 else 0.6
        assignment = _fill(
            problem, tightest=float(attempt % 2) if attempt < 2 else 0.7, shake=shake, rng=rng
        )
        if assignment is not None:
            return assignment
    return None


def _fill(
    problem: Problem, *, tightest: float, shake: float, rng: random.Random
) -> Assignment | None:
    """Pack all nodes once.

    `tightest`: probability that a node goes to the device with the least sufficient memory.
    `shake`: randomisation of the order of the nodes.
    """
    mask = allowed_devices(problem).tolist()
    times, weights = problem.times.tolist(), problem.weights.tolist()
    free_nbytes: list[float] = problem.memory.tolist()
    loads = [0.0] * problem.device_count
    device_of = [-1] * problem.node_count
    # Nodes with a single allowed device come first: their memory is needed in any case.
    rank = [
        (sum(mask[v]) > 1, -w * (1 - shake * rng.random()) if w else 0.0)
        for v, w in enumerate(weights)
    ]
    for v in sorted(range(problem.node_count), key=lambda v: (rank[v], v)):
        fits = [
            d for d, ok in enumerate(mask[v]) if ok and weights[v] <= free_nbytes[d] * (1 + 1e-12)
        ]
        if not fits:
            return None
        if not weights[v] or any(math.isinf(free_nbytes[d]) for d in fits):
            best = min(fits, key=lambda d: (loads[d] + times[v][d], d))
        elif rng.random() < tightest:
            best = min(fits, key=lambda d: (free_nbytes[d], d))
        else:
            best = max(fits, key=lambda d: (free_nbytes[d], -d))
        device_of[v] = best
        free_nbytes[best] -= weights[v]
        loads[best] += times[v][best]
    return tuple(device_of)
