"""A graph's successors, its strongly connected components, and a topological order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.devices.errors import PlanError


def successors(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Successors of each of ``count`` nodes, in the edges' order."""
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        after[u].append(v)
    return after


def components(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Strongly connected component of each node, in no order."""
    # Here, because most users never plan, and scipy takes half a second to import.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    pairs = np.array(edges, dtype=np.int32).reshape(len(edges), 2)
    graph = csr_array((np.ones(len(edges), bool), (pairs[:, 0], pairs[:, 1])), (count, count))
    _, label = connected_components(graph, directed=True, connection="strong")
    found: list[int] = label.tolist()
    return found


def depth_first(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Topological order that follows a branch to its join before it takes the next.

    Of nodes that become ready together the first is taken first.
    """
    after = successors(count, edges)
    missing = [0] * count
    for _, v in edges:
        missing[v] += 1
    ready = [v for v in reversed(range(count)) if not missing[v]]
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in after[u]:
            missing[v] -= 1
        ready += sorted({v for v in after[u] if not missing[v]}, reverse=True)
    if len(order) < count:
        left = sorted(set(range(count)) - set(order))
        raise PlanError(
            f"order: {len(left)} of {count} nodes are on a cycle or behind one, first index "
            f"{left[0]}; wanted an acyclic graph. Fuse each strongly connected component first.",
            nodes=tuple(left),
        )
    return order
