"""Lower bounds: no plan of the stated kind has a smaller bottleneck.

Some hold for everything, also for a mix of plans and for replicas ("any routing of requests");
some only where each node is on one device ("without replication"). They are told apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hetero.planner.min_cut import cut
from hetero.planner.problem import Floats, Problem, allowed, sums

#: Steps of the ascent over device prices.
PRICE_STEPS = 400
#: A proven value is cut by this share, so that rounding of sums never lifts it over the truth.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Bound:
    """A proven lower bound on the bottleneck.

    Parameters
    ----------
    name : str
        How it was proven.
    seconds : float
        The bound.
    mixing : bool
        True where it also bounds mixed plans and replicas; False where it bounds plans in which
        each node is on one device.
    """

    name: str
    seconds: float
    mixing: bool


def largest_node(problem: Problem) -> Bound:
    """The largest of the nodes' shortest times: someone has to run that node."""
    best = np.where(allowed(problem), problem.times, np.inf).min(axis=1)
    return Bound("largest node", float(best.max(initial=0.0)), mixing=False)


def work(problem: Problem) -> tuple[Bound, Floats]:
    """All work spread over all devices, transfers free and nodes divisible.

    The dual of that linear programme: for any prices y >= 0 that sum to 1, the sum over the nodes
    of min_d y_d p[v, d] is a bound. An ascent over the prices makes it large; whatever it ends
    with is proven.

    Returns
    -------
    (Bound, ndarray of shape (devices,))
        The bound and the prices that prove it.
    """
    times = np.where(allowed(problem), problem.times, np.inf)
    k = problem.device_count
    classes = sorted({(c, d) for d, c in enumerate(_kinds(problem))})
    first = [next(d for c, d in classes if c == kind) for kind in sorted({c for c, _ in classes})]
    sizes = np.array([sum(c == _kinds(problem)[d] for c, _ in classes) for d in first], dtype=float)
    table = times[:, first]

    def value(price: Floats) -> tuple[float, Floats]:
        with np.errstate(invalid="ignore"):
            priced = np.where(np.isfinite(table), table * price, np.inf)
        choice = priced.argmin(axis=1)
        picked = table[np.arange(len(table)), choice]
        return float((picked * price[choice]).sum()), sums(choice, picked, len(first))

    price = 1.0 / np.full(len(first), float(k))
    best, best_price = value(price)[0], price
    # Multiplicative steps keep prices positive and, once scaled, on the simplex.
    for step in range(PRICE_STEPS):
        at, load = value(price)
        if at > best:
            best, best_price = at, price
        mean = load / sizes
        if not mean.max() > 0:
            break
        price = price * np.exp(2.0 / (2.0 + step) ** 0.8 * mean / mean.max())
        price = price / (price * sizes).sum()
    full = np.zeros(k)
    kinds = _kinds(problem)
    order = [kinds[d] for d in first]
    for d in range(k):
        full[d] = best_price[order.index(kinds[d])]
    return Bound("work over all devices", best * (1 - ROUNDING), mixing=True), full


def priced_cut(problem: Problem) -> Bound | None:
    """Two classes of devices: the best price between them, each proven by a minimum cut.

    For prices y >= 0 that sum to 1, the least sum of y_d load_d is a bound. With equal prices in a
    class its devices act as one, so that two classes make a two-way cut, which is exact. The value
    is concave in the price: a golden-section search. It bounds mixes of plans as well.

    Returns
    -------
    Bound or None
        None where there are not exactly two classes, or copies overlap compute.
    """
    kinds = _kinds(problem)
    names = sorted(set(kinds))
    if len(names) != 2 or problem.overlap:
        return None
    first, second = kinds.index(names[0]), kinds.index(names[1])
    count = kinds.count(names[0]), kinds.count(names[1])

    def value(share: float) -> float:
        a, b = share / count[0], (1 - share) / count[1]
        found = cut(
            a * problem.times[:, first],
            b * problem.times[:, second],
            allowed(problem)[:, [first, second]],
            problem,
            (
                a * problem.send[:, first] + b * problem.receive[:, second],
                b * problem.send[:, second] + a * problem.receive[:, first],
            ),
            (0, 1),
        )
        return 0.0 if found is None else found[0]

    low, high, ratio = 0.0, 1.0, (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = value(left), value(right)
    best = max(at_left, at_right)
    for _ in range(24):
        if at_left >= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = value(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = value(right)
        best = max(best, at_left, at_right)
        if high - low < 1e-4:
            break
    return Bound("best mix of plans", best * (1 - ROUNDING), mixing=True)


def _kinds(problem: Problem) -> list[int]:
    """Class of each device; pins set a device apart from its class mates."""
    pinned = {d for _, d in problem.pins}
    offset = max(problem.classes, default=0) + 1
    return [offset + d if d in pinned else c for d, c in enumerate(problem.classes)]
