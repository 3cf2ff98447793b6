"""Topological orders of a graph, for slicing and for coarsening."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Sequence

import numpy as np

from devices.errors import PlanError


def neighbours(
    count: int, edges: Sequence[tuple[int, int]]
) -> tuple[list[list[int]], list[list[int]]]:
    """Successors and predecessors of each of ``count`` nodes, in the edges' order."""
    after: list[list[int]] = [[] for _ in range(count)]
    before: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        after[u].append(v)
        before[v].append(u)
    return after, before


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


def _kahn(
    count: int,
    edges: Sequence[tuple[int, int]],
    ready: Collection[object],
    add: Callable[[list[int]], None],
    take: Callable[[], int],
) -> list[int]:
    """Kahn's order: `add` puts nodes that became ready into `ready`, `take` picks one of it."""
    after, before = neighbours(count, edges)
    missing = [len(b) for b in before]
    add([v for v in range(count) if not missing[v]])
    order: list[int] = []
    while ready:
        u = take()
        order.append(u)
        fresh = []
        for v in after[u]:
            missing[v] -= 1
            if not missing[v]:
                fresh.append(v)
        add(fresh)
    if len(order) < count:
        left = sorted(set(range(count)) - set(order))
        raise PlanError(
            f"order: {len(left)} of {count} nodes are on a cycle or behind one, first index "
            f"{left[0]}; wanted an acyclic graph. Fuse each strongly connected component first.",
            nodes=tuple(left),
        )
    return order


def depth_first(count: int, edges: Sequence[tuple[int, int]], keys: Sequence[float]) -> list[int]:
    """Kahn's order with a stack: follows a branch to its join before it takes the next.

    `keys`: among nodes that become ready together, the one with the smallest key is taken first.
    Raises PlanError: the edges have a cycle.
    """
    ready: list[int] = []

    def add(fresh: list[int]) -> None:
        ready.extend(sorted(fresh, key=lambda v: (-keys[v], -v)))

    return _kahn(count, edges, ready, add, ready.pop)


def breadth_first(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Kahn's order with a queue: level by level."""
    ready: deque[int] = deque()
    return _kahn(count, edges, ready, ready.extend, ready.popleft)


def by_key(count: int, edges: Sequence[tuple[int, int]], keys: Sequence[float]) -> list[int]:
    """Kahn's order with a heap: always the ready node with the smallest key."""
    ready: list[tuple[float, int]] = []

    def add(fresh: list[int]) -> None:
        for v in fresh:
            heapq.heappush(ready, (keys[v], v))

    return _kahn(count, edges, ready, add, lambda: heapq.heappop(ready)[1])


def depths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Number of edges on the longest path that ends in each node."""
    after, _ = neighbours(count, edges)
    depth = [0] * count
    for u in breadth_first(count, edges):
        for v in after[u]:
            depth[v] = max(depth[v], depth[u] + 1)
    return depth
