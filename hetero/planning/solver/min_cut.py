"""The cheapest assignment to two devices by weighted cost: an s-t minimum cut, exact.

A node on the source's side is on the first device. Each tensor has two auxiliary nodes, so that a
send and a receive are paid once per tensor, whichever side the tail is on, however many heads
cross. Capacities are costs rounded down to whole numbers, so that the flow is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.planning.solver.problem import Assignment, Problem, allowed

#: The largest finite total capacity: costs are scaled to it. Capacities have 32 bits.
RESOLUTION = 2**30
#: More than any cut: an arc that must not be cut.
FOREVER = 2**30 + 1


def two_way(
    problem: Problem, first: int, second: int, price: tuple[float, float]
) -> tuple[float, Assignment] | None:
    """The assignment to two devices with the least priced sum of their loads, memory not looked at.

    `problem`: without colocation groups.
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
    arcs: list[tuple[int, int, int]] = []
    for v in range(n):
        arcs.append((source, v, int(on_second[v] * scale) if mask[v, 1] else FOREVER))
        arcs.append((v, sink, int(on_first[v] * scale) if mask[v, 0] else FOREVER))
    for h, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        out, into = n + 2 * h, n + 2 * h + 1
        arcs.append((tail, out, int(down[h] * scale)))
        arcs.append((into, tail, int(up[h] * scale)))
        for v in heads:
            arcs += ((out, v, FOREVER), (v, into, FOREVER))
    flow, reached = _source_side(sink + 1, arcs, source, sink)
    return flow / scale, tuple(first if v in reached else second for v in range(n))


def _source_side(
    count: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, set[int]]:
    """Return the maximum flow, and the nodes that the source still reaches after it."""
    # Here, because most users never plan, and scipy takes half a second to import.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    tails, heads, capacities = np.array(arcs, dtype=np.int32).T
    network = csr_array((capacities, (tails, heads)), (count, count))
    found = maximum_flow(network, source, sink)
    left = network - found.flow
    left.eliminate_zeros()
    return int(found.flow_value), set(breadth_first_order(left, source)[0].tolist())
