"""Mixes of plans: several plans, including whole-model replicas, that share the requests.

A small linear programme (the configuration programme) determines the shares: maximise the request
rate such that no device has more than one second of load per second. For two classes of devices,
minimum cuts generate further plans (column generation), so that the mix is optimal. For more
classes it is the best mix of the caller's plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hetero.planning.solver.min_cut import minimum_cut
from hetero.planning.solver.problem import Assignment, Floats, Problem, is_feasible, loads

#: Maximum rounds of column generation; the benchmark instances needed 0 to 5.
MAX_ROUNDS = 40
#: Plans with a smaller share are dropped: they are not worth compiling.
MIN_SHARE = 1e-3


@dataclass(frozen=True, slots=True, order=True)
class MixPart:
    """A plan in a mix, with its share of the requests."""

    assignment: Assignment
    share: float


def max_request_rate(table: Floats) -> tuple[Floats, Floats]:
    """Maximise ``sum(x)`` with ``table @ x <= 1`` and ``x >= 0``.

    `table` (shape (devices, plans)): loads, not negative; every plan loads some device.
    Returns: the optimum, shape (plans,), and its dual prices, shape (devices,).
    """
    # Imported here because scipy takes half a second to import, and most users never plan.
    from scipy.optimize import linprog

    # The solver would treat tiny numbers of seconds as zeros.
    scale = float(table.max())
    devices, plans = table.shape
    result = linprog(-np.ones(plans), table / scale, np.ones(devices), method="highs-ds")
    shares: Floats = np.maximum(result.x, 0.0) / scale
    prices: Floats = np.maximum(-result.ineqlin.marginals, 0.0) / scale
    return shares, prices


def mix_plans(
    problem: Problem, plans: Iterable[Assignment], *, adds_plans: bool = True
) -> tuple[MixPart, ...]:
    """Return the best mix of plans, and of further ones from column generation.

    `problem`: without colocation groups.
    `adds_plans`: whether to generate further plans.
    Returns: plans that together fit the devices' memory; nothing if no mix helps.
    """
    columns = [p for p in dict.fromkeys(plans) if is_feasible(problem, p)]
    if not columns or any(loads(problem, p).max() <= 0 for p in columns):
        # No feasible plan, or a plan without any load, which a mix cannot improve.
        return ()
    for _ in range(MAX_ROUNDS if adds_plans and len(set(problem.classes)) == 2 else 0):
        _, prices = max_request_rate(_load_table(problem, columns))
        new_plans = [p for p in _cheapest_plans(problem, prices) if p not in set(columns)]
        new_plans = [p for p in new_plans if is_feasible(problem, p)]
        if not new_plans:
            break
        columns.extend(new_plans)
    while True:
        shares, _ = max_request_rate(_load_table(problem, columns))
        total = float(shares.sum())
        used = [i for i in range(len(columns)) if shares[i] > MIN_SHARE * total]
        if _fit_together(problem, [columns[i] for i in used]):
            break
        # The plans exceed the memory together: drop the one with the smallest share.
        columns.pop(min(used, key=lambda i: (shares[i], i)))
    weights = shares[used] / shares[used].sum()
    return tuple(MixPart(columns[i], float(w)) for i, w in zip(used, weights, strict=True))


def _load_table(problem: Problem, columns: Sequence[Assignment]) -> Floats:
    return np.stack([loads(problem, p) for p in columns], axis=1)


def _fit_together(problem: Problem, plans: Sequence[Assignment]) -> bool:
    """Return whether the weights of all plans together fit each device; common nodes count once."""
    placed = np.zeros((problem.node_count, problem.device_count), dtype=bool)
    for plan in plans:
        placed[np.arange(problem.node_count), plan] = True
    used_nbytes = (placed * problem.weights[:, None]).sum(axis=0)
    return bool((used_nbytes <= problem.memory * (1 + 1e-12)).all())


def _cheapest_plans(problem: Problem, prices: Floats) -> list[Assignment]:
    """Return the cheapest plan by prices, for pairs of devices of the two classes."""
    names = sorted(set(problem.classes))
    members = [[d for d, c in enumerate(problem.classes) if c == name] for name in names]
    a, b = (float(prices[m].mean()) for m in members)
    first, second = members[0][0], members[1][0]
    cut = minimum_cut(problem, first, second, (a, b)) if a + b > 0 else None
    if cut is None:
        return []
    plans = []
    for offset in range(max(len(m) for m in members)):
        replacement = {first: members[0][offset % len(members[0])]}
        replacement[second] = members[1][offset % len(members[1])]
        plans.append(tuple(replacement[d] for d in cut[1]))
    return plans
