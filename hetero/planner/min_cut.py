"""The cheapest assignment to two devices by weighted cost: an s-t minimum cut, exact.

A node on the source's side is on the first device. Each tensor has two auxiliary nodes, so that a
send and a receive are paid once per tensor, whichever side the tail is on, however many heads
cross. Capacities are whole numbers, so that the flow is exact and ends.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from hetero.planner.problem import Assignment, Floats, Problem, allowed

#: The largest finite total capacity: costs are scaled to it and rounded down.
RESOLUTION = 2**46
#: More than any cut: an arc that must not be cut.
FOREVER = 2**60


class Network:
    """A flow network in arrays; arc ``i`` and its reverse ``i ^ 1`` share one capacity account."""

    __slots__ = ("capacity", "first", "head")

    def __init__(self, count: int) -> None:
        self.first: list[list[int]] = [[] for _ in range(count)]
        self.head: list[int] = []
        self.capacity: list[int] = []

    def arc(self, u: int, v: int, capacity: int) -> None:
        """Add an arc from ``u`` to ``v``; without capacity it is left out."""
        if capacity <= 0:
            return
        self.first[u].append(len(self.head))
        self.head.append(v)
        self.capacity.append(capacity)
        self.first[v].append(len(self.head))
        self.head.append(u)
        self.capacity.append(0)

    def source_side(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """Maximum flow by Dinic's algorithm, and which nodes the source still reaches after it."""
        flow = 0
        while True:
            level = self._levels(source)
            if level[sink] < 0:
                return flow, [at >= 0 for at in level]
            at = [0] * len(self.first)
            while pushed := self._push(source, sink, level, at):
                flow += pushed

    def _levels(self, source: int) -> list[int]:
        level = [-1] * len(self.first)
        level[source] = 0
        queue = deque([source])
        while queue:
            u = queue.popleft()
            for arc in self.first[u]:
                v = self.head[arc]
                if level[v] < 0 and self.capacity[arc]:
                    level[v] = level[u] + 1
                    queue.append(v)
        return level

    def _push(self, source: int, sink: int, level: list[int], at: list[int]) -> int:
        """One augmenting path down the levels; 0 when there is none left."""
        path: list[int] = []
        u = source
        while u != sink:
            arcs = self.first[u]
            while at[u] < len(arcs):
                arc = arcs[at[u]]
                if self.capacity[arc] and level[self.head[arc]] == level[u] + 1:
                    path.append(arc)
                    u = self.head[arc]
                    break
                at[u] += 1
            else:
                if u == source:
                    return 0
                # A dead end: step back, and do not try that arc again in this phase.
                u = self.head[path.pop() ^ 1]
                at[u] += 1
        amount = min(self.capacity[arc] for arc in path)
        for arc in path:
            self.capacity[arc] -= amount
            self.capacity[arc ^ 1] += amount
        return amount


def two_way(
    problem: Problem, first: int, second: int, price: tuple[float, float]
) -> tuple[float, Assignment] | None:
    """The assignment to ``first`` and ``second`` with the least priced sum of their loads.

    Parameters
    ----------
    problem : Problem
        Without colocation groups; memory is not looked at.
    first, second : int
        The two devices.
    price : (float, float)
        What a second of load costs on each.

    Returns
    -------
    (float, tuple of int) or None
        A lower bound, tight to rounding, on the least priced sum, and an assignment that has it;
        None when a node is supported by neither.
    """
    a, b = price
    mask = allowed(problem)
    node_a = a * problem.times[:, first]
    node_b = b * problem.times[:, second]
    down = a * problem.send[:, first] + b * problem.receive[:, second]
    up = b * problem.send[:, second] + a * problem.receive[:, first]
    return cut(node_a, node_b, mask[:, [first, second]], problem, (down, up), (first, second))


def cut(
    node_a: Floats,
    node_b: Floats,
    mask: np.ndarray[tuple[int, int], np.dtype[np.bool_]],
    problem: Problem,
    tensor_costs: tuple[Floats, Floats],
    labels: tuple[int, int],
) -> tuple[float, Assignment] | None:
    """Least-cost labelling with two labels.

    Parameters
    ----------
    node_a, node_b : ndarray, shape (nodes,)
        Cost of a node under the first and under the second label.
    mask : ndarray, shape (nodes, 2), bool
        Which labels a node may have.
    problem : Problem
        For its tensors.
    tensor_costs : (ndarray, ndarray), each of shape (tensors,)
        Cost when the tail has the first label and some head the second; and the other way round.
    labels : (int, int)
        What to write for the two labels.

    Returns
    -------
    (float, tuple of int) or None
        Cost, never above the least one, and labels; None when a node may have neither.
    """
    if not mask.any(axis=1).all():
        return None
    n, m = problem.node_count, len(problem.heads)
    down, up = tensor_costs
    total = float(
        np.where(mask[:, 0], node_a, 0).sum()
        + np.where(mask[:, 1], node_b, 0).sum()
        + down.sum()
        + up.sum()
    )
    if total <= 0.0:
        return 0.0, tuple(labels[0] if mask[v, 0] else labels[1] for v in range(n))
    scale = RESOLUTION / total
    source, sink = n + 2 * m, n + 2 * m + 1
    network = Network(n + 2 * m + 2)
    for v in range(n):
        network.arc(source, v, int(node_b[v] * scale) if mask[v, 1] else FOREVER)
        network.arc(v, sink, int(node_a[v] * scale) if mask[v, 0] else FOREVER)
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        out, into = n + 2 * h, n + 2 * h + 1
        if down[h] > 0:
            network.arc(tail, out, int(down[h] * scale))
            for v in heads:
                network.arc(out, v, FOREVER)
        if up[h] > 0:
            network.arc(into, tail, int(up[h] * scale))
            for v in heads:
                network.arc(v, into, FOREVER)
    flow, reached = network.source_side(source, sink)
    return flow / scale, tuple(labels[0] if reached[v] else labels[1] for v in range(n))
