"""Slicing: the optimal division of a topological order into one interval per device.

This is PipeEdge's dynamic programme, applied to a topological order of any acyclic graph. Its state
is the number of devices of each class used so far. The transfers of an interval are sums of
rectangles in the plane (first position, end position), so a two-dimensional prefix sum yields the
costs of all n² intervals.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from hetero.planning.solver.problem import Assignment, Floats, Problem, allowed_devices

#: Maximum number of nodes: a float64 table of all intervals takes 8 * (n + 1)² bytes.
MAX_NODES = 2500


def interval_costs(problem: Problem, order: Sequence[int], device: int) -> Floats:
    """Return the load of a device for every interval of an order; ``inf`` for excluded intervals.

    Returns: shape (nodes + 1, nodes + 1), float64. Entry (i, j) is for positions i <= p < j; 0 on
        the diagonal, ``inf`` below it.
    """
    n = problem.node_count
    ordered = np.asarray(order, dtype=np.int64)
    times = problem.times[ordered, device]
    usable = allowed_devices(problem)[ordered, device]
    compute = np.concatenate([[0.0], np.cumsum(np.where(usable, times, 0.0))])
    num_excluded = np.concatenate([[0], np.cumsum(~usable)])
    nbytes = np.concatenate([[0.0], np.cumsum(problem.weights[ordered])])
    work = compute[None, :] - compute[:, None]
    size = n + 1
    cost_of: Floats = work + _transfers(problem, order, device)[:size, :size]
    # Rounding errors in differences of prefix sums may be below zero.
    np.maximum(cost_of, 0.0, out=cost_of)
    cost_of += problem.dispatch[device]
    cost_of[num_excluded[None, :] > num_excluded[:, None]] = np.inf
    if np.isfinite(problem.memory[device]):
        cost_of[nbytes[None, :] - nbytes[:, None] > problem.memory[device] * (1 + 1e-12)] = np.inf
    cost_of[np.tril_indices(size, -1)] = np.inf
    np.fill_diagonal(cost_of, 0.0)
    return cost_of


def _transfers(problem: Problem, order: Sequence[int], device: int) -> Floats:
    """Return the seconds that a device sends and receives for each interval."""
    n = problem.node_count
    position_of = {v: p for p, v in enumerate(order)}
    table = np.zeros((n + 2, n + 2))

    def add(starts: tuple[int, int], ends: tuple[int, int], cost: float) -> None:
        """Add a cost to a rectangle of intervals; prefix sums fill in its interior."""
        for start, sign in zip(starts, (1, -1), strict=True):
            table[start, ends[0]] += sign * cost
            table[start, ends[1]] -= sign * cost

    send, receive = problem.send[:, device].tolist(), problem.receive[:, device].tolist()
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        tail_position = position_of[tail]
        head_positions = sorted(position_of[v] for v in heads)
        if send[h]:
            # Intervals with the tail that end before the last head.
            add((0, tail_position + 1), (tail_position + 1, head_positions[-1] + 1), send[h])
        if receive[h]:
            # Intervals without the tail whose first head is this one.
            for previous, use in itertools.pairwise([-1, *head_positions]):
                add((max(previous, tail_position) + 1, use + 1), (use + 1, n + 1), receive[h])
    np.cumsum(table, axis=0, out=table)
    np.cumsum(table, axis=1, out=table)
    return table


def slice_order(problem: Problem, order: Sequence[int]) -> tuple[float, Assignment] | None:
    """Return the best assignment of at most one interval of a topological order to each device.

    Returns: the bottleneck in seconds and the device of each node; None if no division fits.
    """
    members: dict[int, list[int]] = {}
    for d, name in enumerate(problem.classes):
        members.setdefault(name, []).append(d)
    device_classes = list(members.values())
    costs = [interval_costs(problem, order, devices[0]) for devices in device_classes]
    n = problem.node_count
    start = np.full(n + 1, np.inf)
    start[0] = 0.0
    zero = (0,) * len(device_classes)
    best: dict[tuple[int, ...], Floats] = {zero: start}
    for counts in itertools.product(*(range(len(devices) + 1) for devices in device_classes)):
        if counts == zero:
            continue
        bottlenecks = np.full(n + 1, np.inf)
        for device_class, count in enumerate(counts):
            if count:
                previous = best[_without_one(counts, device_class)]
                reachable = np.flatnonzero(np.isfinite(previous))
                if reachable.size:
                    first, last = int(reachable[0]), int(reachable[-1]) + 1
                    interval_loads = costs[device_class][first:last, :]
                    reach = np.maximum(previous[first:last, None], interval_loads).min(axis=0)
                    np.minimum(bottlenecks, reach, out=bottlenecks)
        best[counts] = bottlenecks
    counts = min(best, key=lambda s: (best[s][n], sum(s), s))
    bottleneck = float(best[counts][n])
    if not np.isfinite(bottleneck):
        return None
    # Backtrack from the end, one interval per step. Any interval within the bottleneck is valid;
    # the longest one minimises their number.
    assignment = [-1] * n
    end = n
    while end:
        for device_class in (device_class for device_class, count in enumerate(counts) if count):
            previous = best[_without_one(counts, device_class)]
            reach = np.maximum(previous[: end + 1], costs[device_class][: end + 1, end])
            if (fits := np.flatnonzero(reach <= bottleneck)).size:
                begin = int(fits[0])
                for v in order[begin:end]:
                    assignment[v] = device_classes[device_class][counts[device_class] - 1]
                end, counts = begin, _without_one(counts, device_class)
                break
        else:
            raise AssertionError("backtracking the slicing table failed")
    return bottleneck, tuple(assignment)


def _without_one(counts: tuple[int, ...], device_class: int) -> tuple[int, ...]:
    return (*counts[:device_class], counts[device_class] - 1, *counts[device_class + 1 :])
