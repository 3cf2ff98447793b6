"""The cheapest assignment to two devices by weighted cost: an s-t minimum cut, exact.

A node on the source's side is on the first device. Each tensor has two auxiliary nodes, so that a
send and a receive are paid once per tensor, whichever side the tail is on, however many heads
cross. Capacities are whole numbers, so that the flow is exact and ends: of 64 bits, as bounds are
proven with them, where scipy's maximum flow has 32.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from hetero.planning.solver.problem import Assignment, Problem, allowed

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
        """One augmenting path down the levels; 0 when none is left."""
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

    `problem`: without colocation groups; memory is not looked at.
    `price`: what a second of load costs on each, not negative.
    Returns: a lower bound, tight to rounding, on the least priced sum, and an assignment that has
        it; None when a node is supported by neither.
    """
    mask = allowed(problem)[:, [first, second]]
    if not mask.any(axis=1).all():
        return None
    a, b = price
    on_first = a * np.where(mask[:, 0], problem.times[:, first], 0.0)
    on_second = b * np.where(mask[:, 1], problem.times[:, second], 0.0)
    # A tensor from the first device to the second, and one the other way.
    down = a * problem.send[:, first] + b * problem.receive[:, second]
    up = b * problem.send[:, second] + a * problem.receive[:, first]
    total = float(on_first.sum() + on_second.sum() + down.sum() + up.sum())
    if total <= 0.0:
        return 0.0, tuple(first if ok else second for ok in mask[:, 0].tolist())
    scale = RESOLUTION / total
    n, m = problem.node_count, len(problem.heads)
    source, sink = n + 2 * m, n + 2 * m + 1
    network = Network(n + 2 * m + 2)
    for v in range(n):
        network.arc(source, v, int(on_second[v] * scale) if mask[v, 1] else FOREVER)
        network.arc(v, sink, int(on_first[v] * scale) if mask[v, 0] else FOREVER)
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
    return flow / scale, tuple(first if reached[v] else second for v in range(n))
