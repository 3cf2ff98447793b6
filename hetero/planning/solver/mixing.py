"""Mix plans: route each share of the requests through its own plan, whole-model replicas included.

The shares solve a small linear programme (the configuration programme): most requests a second
such that no device has more than one second of load in it. For two classes of devices the plan that
would help most is found by a minimum cut, so that the mix becomes the best of all mixes; for more,
the mix is the best of the plans given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero.planning.solver.bounds import ROUNDING, Bound
from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.problem import (
    Assignment,
    Floats,
    Problem,
    combine,
    is_feasible,
    loads,
)

#: Rounds of pricing at most; the study's instances took 0 to 5 columns.
ROUNDS = 40
#: A share smaller than this is not worth a compiled plan.
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A plan and the share of the requests that go through it."""

    assignment: Assignment
    share: float


@dataclass(frozen=True, slots=True)
class Mix:
    """Plans with shares that sum to 1, the bottleneck in seconds a request, and its bound."""

    parts: tuple[Part, ...]
    bottleneck: float
    bound: Bound | None


def most_requests(table: Floats) -> tuple[Floats, Floats]:
    """Maximise ``sum(x)`` with ``table @ x <= 1`` and ``x >= 0``.

    `table` (shape (devices, plans), float64): loads, not negative; every plan loads some device.
    Returns: the optimum, shape (plans,), and its dual prices, shape (devices,).
    """
    # Here, because most users never plan, and scipy takes half a second to import.
    from scipy.optimize import linprog

    # Seconds may be tiny numbers, which the solver would take for zeros.
    scale = float(table.max())
    devices, plans = table.shape
    found = linprog(-np.ones(plans), table / scale, np.ones(devices), method="highs-ds")
    shares: Floats = np.maximum(found.x, 0.0) / scale
    prices: Floats = np.maximum(-found.ineqlin.marginals, 0.0) / scale
    return shares, prices


def mix(problem: Problem, plans: Iterable[Assignment], *, price: bool = True) -> Mix | None:
    """The best shares of the given plans, and of those that pricing adds.

    `problem`: without colocation groups.
    `plans`: feasible assignments to choose from.
    Returns: None when there is nothing to mix. Its parts fit the devices' memory together.
    """
    columns = [p for p in dict.fromkeys(plans) if is_feasible(problem, p)]
    if not columns or any(_bottleneck(problem, p) <= 0 for p in columns):
        # Nothing to share, or nothing to gain: a plan that takes no time.
        return None
    bound = None
    classes = sorted(set(problem.classes))
    for _ in range(ROUNDS if price else 0):
        _, prices = most_requests(_table(problem, columns))
        if len(classes) != 2 or problem.overlap:
            break
        fresh, proven = _price(problem, prices)
        if proven is not None and (bound is None or proven > bound):
            bound = proven
        fresh = [p for p in fresh if p not in set(columns) and is_feasible(problem, p)]
        if not fresh:
            break
        columns.extend(fresh)
    proof = None
    if bound is not None:
        proof = Bound("best mix of plans", bound * (1 - ROUNDING), mixing=True)
    while True:
        shares, _ = most_requests(_table(problem, columns))
        total = float(shares.sum())
        used = [i for i in range(len(columns)) if shares[i] > LEAST_SHARE * total]
        if _fit(problem, [columns[i] for i in used]):
            break
        # Plans that do not fit beside each other: without the least used one they may.
        least = min(used, key=lambda i: (shares[i], i))
        columns.pop(least)
    if len(used) < 2:
        return Mix((Part(columns[used[0]], 1.0),), _bottleneck(problem, columns[used[0]]), proof)
    weights = shares[used] / shares[used].sum()
    parts = tuple(Part(columns[i], float(w)) for i, w in zip(used, weights, strict=True))
    table = _table(problem, [p.assignment for p in parts])
    return Mix(parts, float((table @ weights).max()), proof)


def _table(problem: Problem, columns: Sequence[Assignment]) -> Floats:
    return np.stack([combine(problem, *loads(problem, p)) for p in columns], axis=1)


def _bottleneck(problem: Problem, plan: Assignment) -> float:
    return float(combine(problem, *loads(problem, plan)).max())


def _fit(problem: Problem, plans: Sequence[Assignment]) -> bool:
    """Whether the weights of all the plans' nodes fit each device, shared nodes once."""
    held = np.zeros((problem.node_count, problem.device_count), dtype=bool)
    for plan in plans:
        held[np.arange(problem.node_count), plan] = True
    used = (held * problem.weights[:, None]).sum(axis=0)
    return bool((used <= problem.memory * (1 + 1e-12)).all())


def _price(problem: Problem, prices: Floats) -> tuple[list[Assignment], float | None]:
    """The plan that the prices make cheapest, on each device of its classes, and the bound."""
    names = sorted(set(problem.classes))
    members = [[d for d, c in enumerate(problem.classes) if c == name] for name in names]
    a, b = (float(prices[m].mean()) for m in members)
    first, second = members[0][0], members[1][0]
    total = a * len(members[0]) + b * len(members[1])
    if total <= 0:
        return [], None
    found = two_way(problem, first, second, (a, b))
    if found is None:
        return [], None
    value, chosen = found
    plans = []
    for turn in range(max(len(m) for m in members)):
        other = {first: members[0][turn % len(members[0])]}
        other[second] = members[1][turn % len(members[1])]
        plans.append(tuple(other[d] for d in chosen))
    return plans, value / total
