"""Cutting a directed acyclic graph into few clusters of one kind each, their quotient acyclic.

Two steps. *Waves*: the clusters are laid one after another; each takes every node of its kind that
is ready, and what that makes ready in turn, so that no edge ever leads back to an earlier cluster.
The next kind is the one with most to do after it: the most changes of kind still ahead. For two
kinds that gives the least possible number: they take turns, and the one with more changes ahead
begins.
*Quotient merge*: two clusters of one kind become one where no path between them leaves them.

For more than two kinds the least number is NP-hard (typed fusion); `path_lower_bound` says how far
a result can be from it. Time is linear in nodes and edges times the number of kinds, plus the
merge, which looks at a bounded window of clusters at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

#: Clusters that the quotient merge looks at together. A path between two clusters only visits
#: clusters laid between them, so that windows can be merged one by one.
MERGE_WINDOW: Final = 2048

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
    heights = _heights(successors, kind)
    found = _waves(successors, kind, heights)
    if max(found) > max(*heights, len(set(kind)) - 1):  # more than the lower bound
        found = _merge(successors, kind, found)
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
        current = max(kinds, key=lambda k: (top[k], len(ready[k])))
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


def _merge(successors: Graph, kind: Sequence[int], clusters: Sequence[int]) -> list[int]:
    """Join clusters of one kind while the quotient stays acyclic; ids again in running order."""
    count = max(clusters) + 1
    kinds = [0] * count
    for v, number in enumerate(clusters):
        kinds[number] = kind[v]
    after: list[set[int]] = [set() for _ in range(count)]
    for v, targets in enumerate(successors):
        own = clusters[v]
        for w in targets:
            if clusters[w] != own:
                after[own].add(clusters[w])
    renamed = [0] * count
    used = 0
    for low in range(0, count, MERGE_WINDOW):
        high = min(low + MERGE_WINDOW, count)
        local = [sorted(w - low for w in after[v] if w < high) for v in range(low, high)]
        for number in (merged := _merge_window(local, kinds[low:high])):
            renamed[low] = used + number
            low += 1
        used += max(merged) + 1
    return [renamed[number] for number in clusters]


def _merge_window(after: list[list[int]], kinds: Sequence[int]) -> list[int]:
    """Join clusters of one window, given and returned with ids in running order.

    Sets of clusters are the bits of integers. `a` and `b` may be joined unless one reaches the
    other over a third cluster: a cycle would close through that one.
    """
    count = len(after)
    direct = [sum(1 << w for w in targets) for targets in after]
    reach = [0] * count  # over one edge or more
    around = [0] * count  # over two edges or more
    for v in reversed(range(count)):
        for w in after[v]:
            around[v] |= reach[w]
        reach[v] = direct[v] | around[v]
    same: dict[int, int] = {}  # kind -> its clusters that have not been joined to another
    for v, k in enumerate(kinds):
        same[k] = same.get(k, 0) | 1 << v
    target = list(range(count))
    for a in range(count):
        if target[a] != a:
            continue
        while (
            b := next(
                (
                    b
                    for b in _bits(same[kinds[a]] & ~around[a] & -(2 << a))
                    if not around[b] >> a & 1
                ),
                -1,
            )
        ) >= 0:
            target[b] = a
            same[kinds[a]] &= ~(1 << b)
            pair = 1 << a | 1 << b
            direct[a] = (direct[a] | direct[b]) & ~pair
            reach[a] = (reach[a] | reach[b]) & ~pair
            before = [v for v in range(count) if v != a and target[v] == v and reach[v] & pair]
            for v in before:
                if direct[v] & pair:
                    direct[v] = direct[v] & ~pair | 1 << a
                reach[v] = reach[v] & ~pair | reach[a] | 1 << a
            for v in (a, *before):
                around[v] = 0
                for w in _bits(direct[v]):
                    around[v] |= reach[w]
    return _renumber(after, target)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _renumber(after: list[list[int]], target: list[int]) -> list[int]:
    """Number joined clusters in running order."""
    kept = sorted(set(target))
    index = {v: i for i, v in enumerate(kept)}
    quotient: list[set[int]] = [set() for _ in kept]
    for v, targets in enumerate(after):
        own = index[target[v]]
        quotient[own].update(index[target[w]] for w in targets if index[target[w]] != own)
    place = {v: i for i, v in enumerate(_order([sorted(targets) for targets in quotient]))}
    return [place[index[v]] for v in target]
