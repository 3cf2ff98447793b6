"""Acyclic clustering of a directed acyclic graph into few clusters, each of a single kind.

The algorithm builds clusters one after another, in waves. A cluster takes every ready node of its
kind, and the nodes of its kind that thereby become ready, so no edge leads back to an earlier
cluster. The next kind is the one with the most changes of kind on a path ahead. With two kinds
this yields the minimum: the kinds alternate, and the one with more changes ahead starts.

With more than two kinds, minimising the number is NP-hard (typed fusion); `path_lower_bound`
bounds the distance from the minimum. Lookahead over several waves and merging of clusters
afterwards gave at most 0.7 % fewer clusters on real models. The time is linear in nodes and edges,
and in clusters times kinds.
"""

from __future__ import annotations

from collections.abc import Sequence

Graph = Sequence[Sequence[int]]


def cluster(successors: Graph, kind: Sequence[int]) -> list[int]:
    """Assign each node to a cluster of its kind.

    `successors`: node -> the nodes that read it; repeated edges are allowed.
    `kind`: node -> its kind (device), from 0.
    Returns: node -> cluster id, from 0, in topological order of the clusters: every edge stays in
        its cluster or leads to a higher id. Equal arguments give equal results.
    Raises ValueError: the graph has a cycle, or the arguments' lengths differ.
    """
    if len(successors) != len(kind):
        raise ValueError(
            f"expected one kind per node, got {len(kind)} kinds for {len(successors)} nodes"
        )
    if not kind:
        return []
    clusters = _waves(successors, kind, _heights(successors, kind))
    assert all(clusters[v] <= clusters[w] for v, after in enumerate(successors) for w in after)
    return clusters


def path_lower_bound(successors: Graph, kind: Sequence[int]) -> int:
    """Return a lower bound of the number of clusters in any acyclic clustering.

    It is one more than the most changes of kind on a path; 0 for an empty graph.
    """
    return 1 + max(_heights(successors, kind)) if kind else 0


def _in_degrees(successors: Graph) -> list[int]:
    degrees = [0] * len(successors)
    for after in successors:
        for w in after:
            degrees[w] += 1
    return degrees


def _topological_order(successors: Graph) -> list[int]:
    """Return the nodes in a topological order."""
    in_degrees = _in_degrees(successors)
    order = [v for v, degree in enumerate(in_degrees) if not degree]
    for v in order:  # the list grows during iteration
        for w in successors[v]:
            in_degrees[w] -= 1
            if not in_degrees[w]:
                order.append(w)
    if len(order) < len(successors):
        cycle = [v for v, degree in enumerate(in_degrees) if degree]
        raise ValueError(f"the graph has a cycle among nodes {cycle[:10]}")
    return order


def _heights(successors: Graph, kind: Sequence[int]) -> list[int]:
    """Return, for each node, the most changes of kind on a path that starts at the node."""
    heights = [0] * len(kind)
    for v in reversed(_topological_order(successors)):
        own_kind, height = kind[v], 0
        for w in successors[v]:
            candidate = heights[w] + (kind[w] != own_kind)
            if candidate > height:
                height = candidate
        heights[v] = height
    return heights


def _waves(successors: Graph, kind: Sequence[int], heights: Sequence[int]) -> list[int]:
    """Build clusters one after another, each as large as possible."""
    in_degrees = _in_degrees(successors)
    kinds = range(max(kind) + 1)
    #: Kind -> its ready nodes, and the greatest of their heights.
    ready: list[list[int]] = [[] for _ in kinds]
    max_height = [-1] * len(kinds)

    def add(v: int) -> None:
        ready[kind[v]].append(v)
        max_height[kind[v]] = max(max_height[kind[v]], heights[v])

    for v, degree in enumerate(in_degrees):
        if not degree:
            add(v)
    clusters = [0] * len(kind)
    number = 0
    while any(ready):
        # Ties are broken by nodes: the numbering of kinds differs between callers.
        candidates = (k for k in kinds if ready[k])
        current = max(candidates, key=lambda k: (max_height[k], len(ready[k]), -ready[k][0]))
        wave, ready[current], max_height[current] = ready[current], [], -1
        for v in wave:  # the list grows during iteration
            clusters[v] = number
            for w in successors[v]:
                in_degrees[w] -= 1
                if in_degrees[w]:
                    continue
                if kind[w] == current:
                    wave.append(w)
                else:
                    add(w)
        number += 1
    return clusters
