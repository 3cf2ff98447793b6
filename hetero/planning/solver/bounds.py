"""Lower bounds: no plan of the stated kind has a smaller bottleneck.

Some hold for everything, also for a mix of plans and for replicas ("any routing of requests");
some only where each node is on one device ("without replication"). `Bound.mixing` tells which.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.planning.solver.graph import depth_first, successors
from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.problem import Problem, allowed, sums

#: Steps of the ascent over device prices.
PRICE_STEPS = 400
#: A proven value is cut by this share, so that rounding of sums never lifts it over the truth.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on the bottleneck."""

    #: How it was proven.
    name: str
    seconds: float
    #: True where it also bounds mixed plans and replicas; False where it bounds plans in which each
    #: node is on one device.
    mixing: bool

    @property
    def scope(self) -> str:
        """What it bounds, in words."""
        if self.mixing:
            return "any routing of requests over these devices"
        return "any assignment of this model without replication"


def largest_node(problem: Problem) -> Bound:
    """The largest of the nodes' shortest times: someone has to run that node."""
    best = np.where(allowed(problem), problem.times, np.inf).min(axis=1)
    return Bound("largest node", float(best.max(initial=0.0)), mixing=False)


def work(problem: Problem) -> Bound:
    """All work spread over all devices, transfers free and nodes divisible.

    The dual of that linear programme: for any prices y >= 0 that sum to 1 over the devices, the sum
    over the nodes of min_d y_d p[v, d] is a bound. An ascent over the prices makes it large;
    whatever it ends with is proven. Devices of one class have one price.
    """
    kinds = sorted(set(problem.classes))
    first = [problem.classes.index(c) for c in kinds]
    sizes = np.array([float(problem.classes.count(c)) for c in kinds])
    table = np.where(allowed(problem), problem.times, np.inf)[:, first]
    nodes = np.arange(len(table))
    price = np.full(len(first), 1.0 / problem.device_count)
    best = 0.0
    # Multiplicative steps keep prices positive and, once scaled, on the simplex.
    for step in range(PRICE_STEPS):
        choice = (table * price).argmin(axis=1)
        picked = table[nodes, choice]
        best = max(best, float((picked * price[choice]).sum()))
        mean = sums(choice, picked, len(first)) / sizes
        if not mean.max() > 0:
            break
        price = price * np.exp(2.0 / (2.0 + step) ** 0.8 * mean / mean.max())
        price = price / (price * sizes).sum()
    return Bound("work over all devices", best * (1 - ROUNDING), mixing=True)


def priced_cut(problem: Problem) -> Bound | None:
    """Two classes of devices: the best price between them, each proven by a minimum cut; else None.

    For prices y >= 0 that sum to 1, the least sum of y_d load_d is a bound. With equal prices in a
    class its devices act as one, so that two classes make a two-way cut, which is exact. The value
    is concave in the price, and a bound at each. It bounds mixes of plans as well.
    """
    kinds, names = problem.classes, sorted(set(problem.classes))
    if len(names) != 2:
        return None
    first, second = kinds.index(names[0]), kinds.index(names[1])
    count = kinds.count(names[0]), kinds.count(names[1])

    def value(share: float) -> float:
        prices = share / count[0], (1 - share) / count[1]
        found = two_way(problem, first, second, prices)
        return 0.0 if found is None else found[0]

    # Here, because most users never plan, and scipy takes half a second to import.
    from scipy.optimize import minimize_scalar

    options = {"xatol": 1e-4, "maxiter": 24}
    found = minimize_scalar(lambda s: -value(s), bounds=(0, 1), method="bounded", options=options)
    best = -float(found.fun)
    return Bound("best mix of plans", best * (1 - ROUNDING), mixing=True)


def critical_path(problem: Problem) -> Bound:
    """The longest chain of nodes, each on its best device: no request is answered sooner."""
    shortest = np.where(allowed(problem), problem.times, np.inf).min(axis=1, initial=np.inf)
    edges = problem.edges()
    after = successors(problem.node_count, edges)
    ready = [0.0] * problem.node_count
    longest = 0.0
    for u in depth_first(problem.node_count, edges):
        finish = ready[u] + float(shortest[u])
        longest = max(longest, finish)
        for v in after[u]:
            ready[v] = max(ready[v], finish)
    return Bound("critical path", longest, mixing=True)
