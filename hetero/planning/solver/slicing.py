"""Cut one topological order into one interval per device, at the least bottleneck.

The state is how many devices of each class are used so far (PipeEdge's dynamic programme, over an
order of any acyclic graph). An interval's transfers are sums of rectangles in the plane (first
position, end position), so all n² intervals are costed by one two-dimensional running sum.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hetero.planning.solver.problem import Assignment, Floats, Problem, allowed

#: Largest order that is sliced: a table of its intervals, float64, takes 8 * (n + 1)² bytes.
MAX_NODES = 2500


def interval_costs(problem: Problem, order: Sequence[int], device: int) -> Floats:
    """Load of ``device`` for every interval of ``order``; ``inf`` where it may not have it.

    Returns: shape (nodes + 1, nodes + 1), float64. Entry (i, j) is for positions i <= p < j; 0 on
        the diagonal, ``inf`` below it.
    """
    n = problem.node_count
    ordered = np.asarray(order, dtype=np.int64)
    times = problem.times[ordered, device]
    usable = allowed(problem)[ordered, device]
    compute = np.concatenate([[0.0], np.cumsum(np.where(usable, times, 0.0))])
    bad = np.concatenate([[0], np.cumsum(~usable)])
    held = np.concatenate([[0.0], np.cumsum(problem.weights[ordered])])
    work = compute[None, :] - compute[:, None]
    size = n + 1
    cost_of: Floats = work + _transfers(problem, order, device)[:size, :size]
    # Differences of running sums leave rounding below zero.
    np.maximum(cost_of, 0.0, out=cost_of)
    cost_of += problem.dispatch[device]
    cost_of[bad[None, :] > bad[:, None]] = np.inf
    if np.isfinite(problem.memory[device]):
        cost_of[held[None, :] - held[:, None] > problem.memory[device] * (1 + 1e-12)] = np.inf
    cost_of[np.tril_indices(size, -1)] = np.inf
    np.fill_diagonal(cost_of, 0.0)
    return cost_of


def _transfers(problem: Problem, order: Sequence[int], device: int) -> Floats:
    """Seconds that ``device`` sends and receives for each interval, as rectangles of intervals."""
    n = problem.node_count
    place = {v: p for p, v in enumerate(order)}
    table = np.zeros((n + 2, n + 2))

    def add(starts: tuple[int, int], ends: tuple[int, int], cost: float) -> None:
        """Add to all intervals that start and end there; the running sums fill the rectangle."""
        for start, sign in zip(starts, (1, -1), strict=True):
            table[start, ends[0]] += sign * cost
            table[start, ends[1]] -= sign * cost

    send, receive = problem.send[:, device].tolist(), problem.receive[:, device].tolist()
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        at = place[tail]
        uses = sorted(place[v] for v in heads)
        if send[h]:
            # The interval holds the tail, and the last use comes at or after its end.
            add((0, at + 1), (at + 1, uses[-1] + 1), send[h])
        if receive[h]:
            # The first use at or after the interval's start lies in it, the tail does not.
            for previous, use in itertools.pairwise([-1, *uses]):
                add((max(previous, at) + 1, use + 1), (use + 1, n + 1), receive[h])
    np.cumsum(table, axis=0, out=table)
    np.cumsum(table, axis=1, out=table)
    return table


def slice_order(problem: Problem, order: Sequence[int]) -> tuple[float, Assignment] | None:
    """The best way to give each device at most one interval of a topological order.

    Returns: the bottleneck in seconds and the device of every node; None where no way fits.
    """
    members: dict[int, list[int]] = {}
    for d, name in enumerate(problem.classes):
        members.setdefault(name, []).append(d)
    kinds = list(members.values())
    costs = [interval_costs(problem, order, kind[0]) for kind in kinds]
    n = problem.node_count
    start = np.full(n + 1, np.inf)
    start[0] = 0.0
    zero = (0,) * len(kinds)
    best: dict[tuple[int, ...], Floats] = {zero: start}
    for used in itertools.product(*(range(len(kind) + 1) for kind in kinds)):
        if used == zero:
            continue
        row = np.full(n + 1, np.inf)
        for t, count in enumerate(used):
            if count:
                before = best[_less(used, t)]
                live = np.flatnonzero(np.isfinite(before))
                if live.size:
                    lo, hi = int(live[0]), int(live[-1]) + 1
                    reach = np.maximum(before[lo:hi, None], costs[t][lo:hi, :]).min(axis=0)
                    np.minimum(row, reach, out=row)
        best[used] = row
    used = min(best, key=lambda s: (best[s][n], sum(s), s))
    bottleneck = float(best[used][n])
    if not np.isfinite(bottleneck):
        return None
    # Back from the end, each step takes one interval off the order. Any that stays within the
    # bottleneck will do; the longest keeps the intervals few.
    assignment = [-1] * n
    end = n
    while end:
        for t in (t for t, count in enumerate(used) if count):
            before = best[_less(used, t)]
            reach = np.maximum(before[: end + 1], costs[t][: end + 1, end])
            if (fits := np.flatnonzero(reach <= bottleneck)).size:
                begin = int(fits[0])
                for v in order[begin:end]:
                    assignment[v] = kinds[t][used[t] - 1]
                end, used = begin, _less(used, t)
                break
        else:
            raise AssertionError("the slicing table has no way back")
    return bottleneck, tuple(assignment)


def _less(used: tuple[int, ...], kind: int) -> tuple[int, ...]:
    return (*used[:kind], used[kind] - 1, *used[kind + 1 :])
