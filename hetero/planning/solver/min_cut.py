"""Minimum cut: the exact cheapest assignment of nodes to two devices.

The nodes on the source's side are on the first device. Each tensor has two auxiliary nodes, so
that it pays one send and one receive, regardless of its direction and its number of readers.
Capacities are costs rounded down to integers, so the flow is a lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hetero.planning.solver.problem import Assignment, Problem, allowed_devices

#: Sum of all finite capacities, to which costs are scaled. Capacities have 32 bits.
RESOLUTION = 2**30
#: Capacity above that of any cut, for an arc that must not be cut.
UNCUTTABLE = 2**30 + 1


def minimum_cut(
    problem: Problem, first: int, second: int, prices: tuple[float, float]
) -> tuple[float, Assignment] | None:
    """Return the assignment to two devices with the minimum weighted sum of their loads.

    The assignment may exceed the devices' memory.

    `problem`: without colocation groups.
    `prices`: weight of each device's load, not negative.
    Returns: a lower bound on the minimum, exact apart from rounding, and an optimal assignment;
        None if neither device supports a node.
    """
    allowed = allowed_devices(problem)[:, [first, second]]
    if not allowed.any(axis=1).all():
        return None
    first_price, second_price = prices
    on_first = first_price * np.where(allowed[:, 0], problem.times[:, first], 0.0)
    on_second = second_price * np.where(allowed[:, 1], problem.times[:, second], 0.0)
    # The cost of each tensor from the first device to the second, and in the other direction.
    forward = first_price * problem.send[:, first] + second_price * problem.receive[:, second]
    backward = second_price * problem.send[:, second] + first_price * problem.receive[:, first]
    total = float(on_first.sum() + on_second.sum() + forward.sum() + backward.sum())
    if total <= 0.0:
        return 0.0, tuple(first if ok else second for ok in allowed[:, 0].tolist())
    scale = RESOLUTION / total
    n, m = problem.node_count, len(problem.heads)
    source, sink = n + 2 * m, n + 2 * m + 1
    arcs: list[tuple[int, int, int]] = []
    for node in range(n):
        arcs.append(
            (source, node, int(on_second[node] * scale) if allowed[node, 1] else UNCUTTABLE)
        )
        arcs.append((node, sink, int(on_first[node] * scale) if allowed[node, 0] else UNCUTTABLE))
    for tensor, (tail, heads) in enumerate(zip(problem.tails.tolist(), problem.heads, strict=True)):
        outbound, inbound = n + 2 * tensor, n + 2 * tensor + 1
        arcs.append((tail, outbound, int(forward[tensor] * scale)))
        arcs.append((inbound, tail, int(backward[tensor] * scale)))
        for node in heads:
            arcs += ((outbound, node, UNCUTTABLE), (node, inbound, UNCUTTABLE))
    flow, source_side = _max_flow(sink + 1, arcs, source, sink)
    return flow / scale, tuple(first if node in source_side else second for node in range(n))


def _max_flow(
    count: int, arcs: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, set[int]]:
    """Return the maximum flow, and the nodes on the source's side of the minimum cut."""
    # Imported here because scipy takes half a second to import, and most users never plan.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    tails, heads, capacities = np.array(arcs, dtype=np.int32).T
    network = csr_array((capacities, (tails, heads)), (count, count))
    result = maximum_flow(network, source, sink)
    residual = network - result.flow
    residual.eliminate_zeros()
    return int(result.flow_value), set(breadth_first_order(residual, source)[0].tolist())
