"""Proven lower bounds on the bottleneck or latency of any plan.

Some bounds are valid for all plans, including replicas ("any routing of requests"); others only for
plans with each node on one device ("without replication").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.planning.solver.graph import successors, topological_order
from hetero.planning.solver.min_cut import minimum_cut
from hetero.planning.solver.problem import Problem, allowed_devices, sum_by_index

#: Iterations of the ascent over device prices.
PRICE_STEPS = 400
#: Relative margin subtracted from a bound, so that rounding errors never make it invalid.
ROUNDING_MARGIN = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on the bottleneck, or on the latency."""

    #: Method of the proof.
    name: str
    seconds: float
    #: Whether it is also valid for replicas, or only for plans with each node on one device.
    covers_replicas: bool

    @property
    def scope(self) -> str:
        """Description of the plans for which the bound is valid."""
        if self.covers_replicas:
            return "any routing of requests over these devices"
        return "any assignment of this model without replication"


def largest_node(problem: Problem) -> Bound:
    """Return the bound by the most expensive node: a device has to run it."""
    best = np.where(allowed_devices(problem), problem.times, np.inf).min(axis=1)
    return Bound("largest node", float(best.max(initial=0.0)), covers_replicas=False)


def total_work(problem: Problem) -> Bound:
    """Return the bound by all work, divided among all devices without transfers.

    The bound is the dual of a linear programme: for any prices y >= 0 that sum to 1 over the
    devices, the sum over the nodes of min_d y_d p[v, d] is a lower bound. An ascent over the prices
    increases it; each iterate is valid. Devices of one class share a price.
    """
    classes = sorted(set(problem.classes))
    representatives = [problem.classes.index(c) for c in classes]
    sizes = np.array([float(problem.classes.count(c)) for c in classes])
    table = np.where(allowed_devices(problem), problem.times, np.inf)[:, representatives]
    nodes = np.arange(len(table))
    price = np.full(len(representatives), 1.0 / problem.device_count)
    best_s = 0.0
    # Multiplicative steps keep prices positive and, once scaled, on the simplex.
    for step in range(PRICE_STEPS):
        choice = (table * price).argmin(axis=1)
        costs = table[nodes, choice]
        best_s = max(best_s, float((costs * price[choice]).sum()))
        mean_loads = sum_by_index(choice, costs, len(representatives)) / sizes
        if not mean_loads.max() > 0:
            break
        price = price * np.exp(2.0 / (2.0 + step) ** 0.8 * mean_loads / mean_loads.max())
        price = price / (price * sizes).sum()
    return Bound("work over all devices", best_s * (1 - ROUNDING_MARGIN), covers_replicas=True)


def priced_cut(problem: Problem) -> Bound | None:
    """Return the bound by minimum cuts for two classes of devices; None for other numbers.

    For prices y >= 0 that sum to 1, the minimum sum of y_d load_d is a lower bound. With equal
    prices within a class, its devices act as one, so a minimum cut between two classes is exact.
    The bound is concave in the price and valid for each price. It is also valid for replicas.
    """
    classes, names = problem.classes, sorted(set(problem.classes))
    if len(names) != 2:
        return None
    first, second = classes.index(names[0]), classes.index(names[1])
    count = classes.count(names[0]), classes.count(names[1])

    def value(share: float) -> float:
        prices = share / count[0], (1 - share) / count[1]
        result = minimum_cut(problem, first, second, prices)
        return 0.0 if result is None else result[0]

    # Imported here because scipy takes half a second to import, and most users never plan.
    from scipy.optimize import minimize_scalar

    options = {"xatol": 1e-4, "maxiter": 24}
    result = minimize_scalar(lambda s: -value(s), bounds=(0, 1), method="bounded", options=options)
    seconds = -float(result.fun)
    return Bound("priced minimum cuts", seconds * (1 - ROUNDING_MARGIN), covers_replicas=True)


def critical_path(problem: Problem) -> Bound:
    """Return the bound by the critical path: the longest chain of nodes on their best devices."""
    shortest = np.where(allowed_devices(problem), problem.times, np.inf).min(axis=1, initial=np.inf)
    edges = problem.edges()
    successors_of = successors(problem.node_count, edges)
    ready_s = [0.0] * problem.node_count
    longest_s = 0.0
    for u in topological_order(problem.node_count, edges):
        finish_s = ready_s[u] + float(shortest[u])
        longest_s = max(longest_s, finish_s)
        for v in successors_of[u]:
            ready_s[v] = max(ready_s[v], finish_s)
    return Bound("critical path", longest_s, covers_replicas=True)
