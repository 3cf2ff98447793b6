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

from hetero.planning.solver.min_cut import two_way
from hetero.planning.solver.problem import Assignment, Floats, Problem, is_feasible, loads

#: Rounds of pricing at most; the study's instances took 0 to 5 columns.
ROUNDS = 40
#: A share smaller than this is not worth a compiled plan.
LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A plan and the share of the requests that go through it."""

    assignment: Assignment
    share: float


def most_requests(table: Floats) -> tuple[Floats, Floats]:
    """Maximise ``sum(x)`` with ``table @ x <= 1`` and ``x >= 0``.

    `table` (shape (devices, plans)): loads, not negative; every plan loads some device.
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


def mix(problem: Problem, plans: Iterable[Assignment], *, price: bool = True) -> tuple[Part, ...]:
    """The best shares of the given plans, and of those that pricing adds; a problem without groups.

    Returns: plans that fit the devices' memory together, none where there is nothing to mix.
    """
    columns = [p for p in dict.fromkeys(plans) if is_feasible(problem, p)]
    if not columns or any(loads(problem, p).max() <= 0 for p in columns):
        # Nothing to share, or nothing to gain: a plan that takes no time.
        return ()
    for _ in range(ROUNDS if price and len(set(problem.classes)) == 2 else 0):
        _, prices = most_requests(_table(problem, columns))
        fresh = [p for p in _cheapest(problem, prices) if p not in set(columns)]
        fresh = [p for p in fresh if is_feasible(problem, p)]
        if not fresh:
            break
        columns.extend(fresh)
    while True:
        shares, _ = most_requests(_table(problem, columns))
        total = float(shares.sum())
        used = [i for i in range(len(columns)) if shares[i] > LEAST_SHARE * total]
        if _fit(problem, [columns[i] for i in used]):
            break
        # Plans that do not fit beside each other: without the least used one they may.
        columns.pop(min(used, key=lambda i: (shares[i], i)))
    weights = shares[used] / shares[used].sum()
    return tuple(Part(columns[i], float(w)) for i, w in zip(used, weights, strict=True))


def _table(problem: Problem, columns: Sequence[Assignment]) -> Floats:
    return np.stack([loads(problem, p) for p in columns], axis=1)


def _fit(problem: Problem, plans: Sequence[Assignment]) -> bool:
    """Whether the weights of all the plans' nodes fit each device, shared nodes once."""
    held = np.zeros((problem.node_count, problem.device_count), dtype=bool)
    for plan in plans:
        held[np.arange(problem.node_count), plan] = True
    used = (held * problem.weights[:, None]).sum(axis=0)
    return bool((used <= problem.memory * (1 + 1e-12)).all())


def _cheapest(problem: Problem, prices: Floats) -> list[Assignment]:
    """The plan that prices make cheapest, on each pair of devices of the two classes."""
    names = sorted(set(problem.classes))
    members = [[d for d, c in enumerate(problem.classes) if c == name] for name in names]
    a, b = (float(prices[m].mean()) for m in members)
    first, second = members[0][0], members[1][0]
    found = two_way(problem, first, second, (a, b)) if a + b > 0 else None
    if found is None:
        return []
    plans = []
    for turn in range(max(len(m) for m in members)):
        other = {first: members[0][turn % len(members[0])]}
        other[second] = members[1][turn % len(members[1])]
        plans.append(tuple(other[d] for d in found[1]))
    return plans
