"""Layered drawing of an acyclic graph: layers, crossings, positions, columns, routes.

Layers come from longest paths, with sources pulled down to their readers; orders from barycentre
sweeps; positions from a least-squares fit of each layer to its neighbours that keeps the order
(isotonic regression). A drawing that would be a thin tower is folded into columns.
Source of the scheme: K. Sugiyama, S. Tagawa, M. Toda, "Methods for Visual Understanding of
Hierarchical System Structures", IEEE Transactions on Systems, Man, and Cybernetics 11(2), 1981.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

#: Space between neighbours in a layer, between layers, and between columns, in pixels.
GAP_X: Final = 18.0
GAP_Y: Final = 30.0
GUTTER: Final = 44.0
#: Width kept free for an edge that passes a layer.
LANE: Final = 8.0
#: Edges over more layers than this are drawn straight, without lanes of their own.
LONGEST: Final = 40
#: Sweeps over the layers, for orders and for positions.
SWEEPS: Final = 6
#: Width to height that columns aim at.
ASPECT: Final = 1.7
#: Lower drawings than this are not folded, and a column's height may differ by this share.
FOLD_OVER: Final = 640.0
SLACK: Final = 0.15


@dataclass(frozen=True, slots=True)
class Drawing:
    """Where everything is, in pixels from the upper left corner."""

    width: float
    height: float
    #: Upper left corner of each box.
    places: tuple[tuple[float, float], ...]
    #: For each edge the points that it goes through, from the bottom of its source to the top of
    #: its target.
    routes: tuple[tuple[tuple[float, float], ...], ...]


def draw(
    sizes: Sequence[tuple[float, float]],
    edges: Sequence[tuple[int, int]],
    *,
    first: Iterable[int] = (),
    last: Iterable[int] = (),
    gap: float = GAP_Y,
    gutter: float = GUTTER,
) -> Drawing:
    """Lay out an acyclic graph.

    `edges`: source and target, as positions in `sizes`.
    `first`, `last`: boxes to put into the first and the last layer.
    `gap`, `gutter`: pixels between layers, and between columns.
    """
    if not sizes:
        return Drawing(0.0, 0.0, (), ())
    layer = _layers(len(sizes), edges, frozenset(first), frozenset(last))
    widths = [w for w, _ in sizes]
    chains, layer = _lanes(edges, layer, widths)
    links = [pair for chain in chains for pair in pairwise(chain)]
    links = [(a, b) for a, b in links if layer[b] - layer[a] == 1]
    rows = _order(layer, links)
    centre = _positions(rows, widths, links)
    heights = [max((sizes[b][1] for b in row if b < len(sizes)), default=0.0) for row in rows]
    return _fold(sizes, rows, layer, centre, widths, heights, chains, gap, gutter)


def _layers(
    count: int, edges: Sequence[tuple[int, int]], first: frozenset[int], last: frozenset[int]
) -> list[int]:
    after: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for a, b in edges:
        after[a].append(b)
        waiting[b] += 1
    layer = [0] * count
    ready = [b for b in range(count) if not waiting[b]]
    order = []
    while ready:
        a = ready.pop()
        order.append(a)
        for b in after[a]:
            layer[b] = max(layer[b], layer[a] + 1)
            waiting[b] -= 1
            if not waiting[b]:
                ready.append(b)
    has_source = {b for _, b in edges}
    for a in reversed(order):
        if after[a] and a not in has_source and a not in first:
            layer[a] = min(layer[b] for b in after[a]) - 1
    depth = max(layer)
    for a in last:
        layer[a] = depth
    return layer


def _lanes(
    edges: Sequence[tuple[int, int]], layer: list[int], widths: list[float]
) -> tuple[list[list[int]], list[int]]:
    """Give each long edge a place in every layer that it passes."""
    layer = list(layer)
    chains = []
    for a, b in edges:
        chain = [a]
        if layer[b] - layer[a] <= LONGEST:
            for between in range(layer[a] + 1, layer[b]):
                chain.append(len(layer))
                layer.append(between)
                widths.append(LANE)
        chains.append([*chain, b])
    return chains, layer


def _neighbours(count: int, links: Sequence[tuple[int, int]]) -> tuple[list[list[int]], ...]:
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for a, b in links:
        below[a].append(b)
        above[b].append(a)
    return above, below


def _order(layer: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in range(max(layer) + 1)]
    for box, index in enumerate(layer):
        rows[index].append(box)
    above, below = _neighbours(len(layer), links)
    place = [0.0] * len(layer)
    for row in rows:
        for i, box in enumerate(row):
            place[box] = float(i)
    for sweep in range(SWEEPS):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else rows[::-1]:
            for box in row:
                if near[box]:
                    place[box] = sum(place[n] for n in near[box]) / len(near[box])
            row.sort(key=lambda box: (place[box], box))
            for i, box in enumerate(row):
                place[box] = float(i)
    return rows


def _positions(
    rows: Sequence[Sequence[int]], widths: Sequence[float], links: Sequence[tuple[int, int]]
) -> list[float]:
    """Return each box's centre: near its neighbours', order and distances kept."""
    above, below = _neighbours(len(widths), links)
    centre = [0.0] * len(widths)
    offsets: list[list[float]] = []
    for row in rows:
        at, row_offsets = 0.0, []
        for i, box in enumerate(row):
            if i:
                at += (widths[row[i - 1]] + widths[box]) / 2 + GAP_X
            row_offsets.append(at)
        for box, offset in zip(row, row_offsets, strict=True):
            centre[box] = offset - at / 2
        offsets.append(row_offsets)
    for sweep in range(2 * SWEEPS):
        for index in range(len(rows)) if sweep % 2 == 0 else range(len(rows) - 1, -1, -1):
            row = rows[index]
            wanted, weights = [], []
            for box in row:
                near = above[box] + below[box]
                wanted.append(sum(centre[n] for n in near) / len(near) if near else centre[box])
                # Straight lanes read best, so that they are the last to give way.
                weights.append(4.0 if widths[box] == LANE else 1.0)
            targets = [w - o for w, o in zip(wanted, offsets[index], strict=True)]
            for box, value, offset in zip(
                row, _isotonic(targets, weights), offsets[index], strict=True
            ):
                centre[box] = value + offset
    return centre


def _isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return the non-decreasing sequence nearest to `values` (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            mean, mass, count = pools.pop()
            total = mass + pool[1]
            pool = ((mean * mass + pool[0] * pool[1]) / total, total, count + pool[2])
        pools.append(pool)
    return [mean for mean, _, count in pools for _ in range(count)]


def _fold(
    sizes: Sequence[tuple[float, float]],
    rows: Sequence[Sequence[int]],
    layer: Sequence[int],
    centre: Sequence[float],
    widths: Sequence[float],
    heights: Sequence[float],
    chains: Sequence[Sequence[int]],
    gap: float,
    gutter: float,
) -> Drawing:
    """Stack the layers into columns, and route edges through the gutters between those."""
    column = _columns(rows, centre, widths, heights, layer, chains, gap, gutter)
    count = column[-1] + 1
    left = [math.inf] * count
    right = [-math.inf] * count
    for index, row in enumerate(rows):
        for box in row:
            left[column[index]] = min(left[column[index]], centre[box] - widths[box] / 2)
            right[column[index]] = max(right[column[index]], centre[box] + widths[box] / 2)
    starts, at = [], 0.0
    for c in range(count):
        starts.append(at)
        at += right[c] - left[c] + gutter
    width = at - gutter
    tops, bottoms, y = [], [0.0] * count, 0.0
    for index, height in enumerate(heights):
        if index and column[index] != column[index - 1]:
            y = 0.0
        tops.append(y)
        bottoms[column[index]] = y + height
        y += height + gap
    x = [
        centre[box] - left[column[layer[box]]] + starts[column[layer[box]]]
        for box in range(len(layer))
    ]
    places = tuple(
        (
            x[box] - sizes[box][0] / 2,
            tops[layer[box]] + (heights[layer[box]] - sizes[box][1]) / 2,
        )
        for box in range(len(sizes))
    )

    def ends(box: int) -> tuple[float, float]:
        if box < len(sizes):
            return places[box][1], places[box][1] + sizes[box][1]
        return tops[layer[box]], tops[layer[box]] + heights[layer[box]]

    routes = []
    for chain in chains:
        points = [(x[chain[0]], ends(chain[0])[1])]
        for a, b in pairwise(chain):
            from_column, to_column = column[layer[a]], column[layer[b]]
            if from_column != to_column:
                middle = starts[to_column] - gutter / 2
                points += [(x[a], bottoms[from_column] + gap / 2)]
                points += [(middle, bottoms[from_column] + gap / 2), (middle, -gap / 2)]
                points += [(x[b], -gap / 2)]
            top, bottom = ends(b)
            points.append((x[b], top))
            if b != chain[-1]:
                points.append((x[b], bottom))
        routes.append(tuple(points))
    return Drawing(width, max(bottoms), places, tuple(routes))


def _columns(
    rows: Sequence[Sequence[int]],
    centre: Sequence[float],
    widths: Sequence[float],
    heights: Sequence[float],
    layer: Sequence[int],
    chains: Sequence[Sequence[int]],
    gap: float,
    gutter: float,
) -> list[int]:
    """Return each layer's column: as many as bring the drawing near to `ASPECT`."""
    tall = sum(heights) + gap * (len(heights) - 1)
    spans = [
        (min(centre[b] - widths[b] / 2 for b in row), max(centre[b] + widths[b] / 2 for b in row))
        for row in rows
    ]
    wide = max(b - a for a, b in spans) + gutter
    count = max(1, round(math.sqrt(ASPECT * tall / wide)))
    if count == 1 or tall < FOLD_OVER or len(rows) < 2 * count:
        return [0] * len(rows)
    crossing = [0] * len(rows)  # edges between this layer and the next
    for chain in chains:
        for a, b in pairwise(chain):
            for index in range(layer[a], layer[b]):
                crossing[index] += 1
    column, start, left = [0] * len(rows), 0, tall + gap
    for current in range(count):
        goal = left / (count - current)
        used, best = 0.0, (True, math.inf, math.inf, len(rows) - 1, left)
        for index in range(start, len(rows) if current < count - 1 else start):
            used += heights[index] + gap
            # A column may end a little early or late where fewer edges have to change over.
            off = abs(used - goal)
            wide_off = off > SLACK * goal
            best = min(best, (wide_off, 0 if wide_off else crossing[index], off, index, used))
            if used > (1 + SLACK) * goal:
                break
        column[start : best[3] + 1] = [current] * (best[3] + 1 - start)
        start, left = best[3] + 1, left - best[4]
        if start >= len(rows):
            break
    return column
