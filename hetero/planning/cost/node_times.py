"""Times of a model's nodes, computed from the times of the nodes that a device executed.

A device executes fused, split and additional nodes. Their times are distributed over the original
nodes that they cover, in proportion to work, and scaled to the run time of the whole model.

An original node that is part of several executed nodes (a shape that all layers read, for example)
was folded into each. It gets no share of their times and does not fuse them with each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode
from hetero.planning.cost.estimation import DEFAULT_SPEED, count_work
from hetero.planning.cost.timing import ModelTiming


def distribute_times(model: Model, timing: ModelTiming) -> dict[str, float]:
    """Return the seconds of each node of a measured model; their sum is ``timing.run_s``.

    The result contains every node that requests run, with 0 for nodes that the device eliminated.
    """
    request_nodes = [model.nodes[p].name for p in request_dependent_positions(model)]
    index = model.index_of
    counts = _count_executions(timing.executed_nodes)
    times = dict.fromkeys(request_nodes, 0.0)
    previous: tuple[str, ...] = ()
    pending_s = 0.0
    for row in sorted(timing.executed_nodes, key=lambda r: r.execution_order):
        seconds = timing.node_times_s.get(row.name, 0.0)
        names = tuple(n for n in row.original_names if n in times)
        # A node that the device added (a layout conversion, for example) counts for a neighbour.
        names = tuple(n for n in names if counts[n] == 1) or names or previous
        if not names:
            pending_s += seconds
            continue
        _add_by_work(model, index, names, seconds + pending_s, times)
        pending_s, previous = 0.0, names
    total = sum(times.values())
    if total <= 0:
        _add_by_work(model, index, tuple(request_nodes), timing.run_s, times)
        return times
    return {name: seconds * timing.run_s / total for name, seconds in times.items()}


def _add_by_work(
    model: Model,
    index: Mapping[str, int],
    names: Sequence[str],
    seconds: float,
    times: dict[str, float],
) -> None:
    weights = [DEFAULT_SPEED(count_work(model, model.nodes[index[n]])) for n in names]
    total = sum(weights)
    for name, weight in zip(names, weights, strict=True):
        times[name] += seconds * weight / total


def _count_executions(executed_nodes: Iterable[ExecutedNode]) -> Counter[str]:
    """Count the executed nodes that each original node is part of."""
    return Counter(name for row in executed_nodes for name in set(row.original_names))


def find_fused_groups(
    model: Model, executed_nodes: Sequence[ExecutedNode]
) -> list[tuple[str, ...]]:
    """Return the groups of two or more request-dependent nodes that the device fused."""
    request_nodes = {model.nodes[p].name for p in request_dependent_positions(model)}
    counts = _count_executions(executed_nodes)
    groups: dict[tuple[str, ...], None] = {}
    for row in executed_nodes:
        names = tuple(n for n in row.original_names if n in request_nodes and counts[n] == 1)
        if len(names) > 1:
            groups[names] = None
    return list(groups)
