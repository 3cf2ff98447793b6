"""Graph algorithms: successors, strongly connected components, topological order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.devices.errors import PlanError


def successors(count: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return the successors of each of `count` nodes, in the order of the edges."""
    successors_of: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        successors_of[u].append(v)
    return successors_of


def strong_components(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the number of the strongly connected component of each node."""
    # Imported here because scipy takes half a second to import, and most users never plan.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    pairs = np.array(edges, dtype=np.int32).reshape(len(edges), 2)
    graph = csr_array((np.ones(len(edges), bool), (pairs[:, 0], pairs[:, 1])), (count, count))
    _, label = connected_components(graph, directed=True, connection="strong")
    components: list[int] = label.tolist()
    return components


def topological_order(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return a depth-first topological order: it completes a branch before it starts the next.

    Of nodes that become ready at the same time, the one with the lowest number comes first.
    Raises PlanError: the graph has a cycle.
    """
    successors_of = successors(count, edges)
    in_degrees = [0] * count
    for _, v in edges:
        in_degrees[v] += 1
    ready = [v for v in reversed(range(count)) if not in_degrees[v]]
    order: list[int] = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in successors_of[u]:
            in_degrees[v] -= 1
        ready += sorted({v for v in successors_of[u] if not in_degrees[v]}, reverse=True)
    if len(order) < count:
        blocked = sorted(set(range(count)) - set(order))
        raise PlanError(
            f"order: expected an acyclic graph; {len(blocked)} of {count} nodes are on a cycle or "
            f"after one, the first is {blocked[0]}. Fuse strongly connected components first.",
            nodes=tuple(blocked),
        )
    return order
