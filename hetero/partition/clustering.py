"""Cutting a directed acyclic graph into few clusters of one kind each, their quotient acyclic.

Two steps. *Waves*: the clusters are laid one after another; each takes every node of its kind that
is ready, and what that makes ready in turn, so that no edge ever leads back to an earlier cluster.
The next kind is the one after which, a few waves on, least is left to do: the fewest changes of
kind still ahead, on the fewest paths. For two kinds that gives the least possible number: they take
turns, and the one with more changes ahead begins.
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
#: Sequences of waves that are tried in thought before the next one is chosen; at least one wave
#: ahead, for any number of kinds.
MAX_OUTLOOKS: Final = 32
#: A ready node counts for the choice if its height is fewer than this below the greatest.
NEAR_HEIGHTS: Final = 6

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
    front = _Front(successors, kind, heights)
    clusters = [0] * len(kind)
    number, left = 0, len(kind)
    while left:
        wave = front.take(front.choose())
        for v in wave:
            clusters[v] = number
        left -= len(wave)
        number += 1
    return clusters


class _Front:
    """The nodes that are ready while waves are laid, and the choice of the next wave's kind."""

    def __init__(self, successors: Graph, kind: Sequence[int], heights: Sequence[int]) -> None:
        kinds = max(kind) + 1
        self.successors, self.kind, self.heights = successors, kind, heights
        self.waiting = _in_degrees(successors)
        self.ready: list[list[int]] = [[] for _ in range(kinds)]
        #: Kind -> {height: how many ready nodes have it}, and the greatest such height.
        self.levels: list[dict[int, int]] = [{} for _ in range(kinds)]
        self.top = [-1] * kinds
        self.ahead = next(d for d in range(8, 0, -1) if d == 1 or kinds**d <= MAX_OUTLOOKS)
        for v, degree in enumerate(self.waiting):
            if not degree:
                self._add(v)

    def _add(self, v: int) -> None:
        k, height = self.kind[v], self.heights[v]
        self.ready[k].append(v)
        self.levels[k][height] = self.levels[k].get(height, 0) + 1
        if height > self.top[k]:
            self.top[k] = height

    def take(self, current: int) -> list[int]:
        """Take every node of a kind that is ready, or gets ready in turn, off the graph."""
        wave, self.ready[current] = self.ready[current], []
        self.levels[current], self.top[current] = {}, -1
        for v in wave:  # grows while it is read
            for w in self.successors[v]:
                self.waiting[w] -= 1
                if not self.waiting[w]:
                    if self.kind[w] == current:
                        wave.append(w)
                    else:
                        self._add(w)
        return wave

    def choose(self) -> int:
        """Return the kind after whose wave, and the best ones that can follow, least is left."""
        lowest = max(self.top) - NEAR_HEIGHTS
        kinds = [k for k, nodes in enumerate(self.ready) if nodes and self.top[k] > lowest]
        if len(kinds) == 1:
            return kinds[0]
        nothing: list[list[int]] = [[] for _ in self.ready]
        return min(
            kinds,
            key=lambda k: (self._outlook(k, {}, nothing, 0, self.ahead), -len(self.ready[k])),
        )

    def _outlook(
        self, current: int, less: dict[int, int], fresh: list[list[int]], gone: int, ahead: int
    ) -> tuple[int, int]:
        """Return what is left after a wave of `current` and the best `ahead - 1` after that.

        Nothing is changed: `less` has the nodes that wait for fewer others than in `waiting`,
        `fresh` the nodes ready since, `gone` the kinds (bits) whose ready nodes were taken.
        """
        waiting, less = self.waiting, dict(less)
        wave = list(fresh[current]) if gone >> current & 1 else self.ready[current] + fresh[current]
        fresh = [[] if k == current else list(nodes) for k, nodes in enumerate(fresh)]
        gone |= 1 << current
        for v in wave:  # grows while it is read
            for w in self.successors[v]:
                less[w] = left = less.get(w, waiting[w]) - 1
                if not left:
                    (wave if self.kind[w] == current else fresh[self.kind[w]]).append(w)
        tops = [-1 if gone >> k & 1 else top for k, top in enumerate(self.top)]
        for k, nodes in enumerate(fresh):
            tops[k] = max([tops[k], *(self.heights[v] for v in nodes)])
        highest = max(tops)
        follow = [k for k, top in enumerate(tops) if top > max(-1, highest - NEAR_HEIGHTS)]
        if ahead > 1 and follow:
            return min(self._outlook(k, less, fresh, gone, ahead - 1) for k in follow)
        return highest, self._weight(highest, fresh, gone)

    def _weight(self, highest: int, fresh: list[list[int]], gone: int) -> int:
        """Return how many ready nodes are high, one at `highest` as much as two just below."""
        weight = 0
        for k, levels in enumerate(self.levels):
            if not gone >> k & 1:
                for i in range(NEAR_HEIGHTS):
                    weight += levels.get(highest - i, 0) << NEAR_HEIGHTS - i
            for v in fresh[k]:
                weight += 1 << NEAR_HEIGHTS >> highest - self.heights[v]
        return weight


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
