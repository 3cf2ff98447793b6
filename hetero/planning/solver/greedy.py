"""The plans that need no search: a priority list, minimum cuts, packings."""

from __future__ import annotations

import itertools

import numpy as np

from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.problem import Assignment, Floats, Ints, Problem, allowed

#: By how much the largest load of a packing may be above the least.
PACKED = 0.1


def priority(problem: Problem) -> Assignment | None:
    """Give each node to the first device that may take it and has room for its weights.

    `problem`: without colocation groups (contract first).
    Returns: the device of every node; None when a node finds no room.
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


def pack(problem: Problem, seconds: float) -> tuple[Assignment | None, bool]:
    """Return a feasible assignment for tight memory, and whether the clock ended the search.

    Transfers aside, its largest load is within a tenth of the least: an integer programme that
    says for each node and device whether the node is there, and how large loads may be.

    `problem`: without colocation groups.
    """
    # Here, because most users never plan, and scipy takes half a second to import.
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    nodes, devices = np.nonzero(allowed(problem))
    n, k = problem.times.shape
    places = len(nodes)

    def table(rows: Ints, values: Floats, count: int) -> csr_array:
        return csr_array((values, (rows, np.arange(places))), (count, places + 1))

    times = problem.times[nodes, devices]
    loads = table(devices, times / max(times.max(), 1e-300), k).toarray()
    loads[:, -1] = -1
    limited = np.isfinite(problem.memory)
    weights = table(devices, problem.weights[nodes], k)[limited]
    found = milp(
        np.eye(1, places + 1, places)[0],
        constraints=[
            LinearConstraint(table(nodes, np.ones(places), n), 1, 1),
            LinearConstraint(loads, ub=0),
            LinearConstraint(weights, ub=problem.memory[limited]),
        ],
        integrality=np.arange(places + 1) < places,
        bounds=Bounds(0, [1] * places + [np.inf]),
        options={"time_limit": seconds, "mip_rel_gap": PACKED},
    )
    late = found.status == 1
    if found.x is None:
        return None, late
    chosen = found.x[:-1] > 0.5
    where = dict(zip(nodes[chosen].tolist(), devices[chosen].tolist(), strict=True))
    return tuple(where[v] for v in range(n)), late
