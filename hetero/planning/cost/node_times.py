"""From what a device ran to what the model's nodes take.

A device runs fused, split and added nodes. Their times are spread over the original nodes that they
cover, by work, and scaled so that together they make the time of the whole.

A node that went into several executed ones (a shape that all layers read, say) was folded into
each: it has no part in their times, and ties none of them together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hetero.affinity.request_dependence import request_dependent_positions
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode
from hetero.planning.cost.estimation import ASSUMED_SPEED, node_work
from hetero.planning.cost.timing import Timing


def spread(model: Model, timing: Timing) -> dict[str, float]:
    """Return seconds by node of a measured model, ``timing.run_s`` in all.

    Every node that requests run is there; with 0 where the device left nothing of it.
    """
    alive = [model.nodes[p].name for p in request_dependent_positions(model)]
    index = model.index_of
    uses = _uses(timing.executed)
    times = dict.fromkeys(alive, 0.0)
    last: tuple[str, ...] = ()
    unplaced = 0.0
    for row in sorted(timing.executed, key=lambda r: r.execution_order):
        seconds = timing.node_times_s.get(row.name, 0.0)
        names = tuple(n for n in row.original_names if n in times)
        # What a device adds (a change of layout, say) serves the node before or after it.
        names = tuple(n for n in names if uses[n] == 1) or names or last
        if not names:
            unplaced += seconds
            continue
        _share(model, index, names, seconds + unplaced, times)
        unplaced, last = 0.0, names
    total = sum(times.values())
    if total <= 0:
        _share(model, index, tuple(alive), timing.run_s, times)
        return times
    return {name: seconds * timing.run_s / total for name, seconds in times.items()}


def _share(
    model: Model,
    index: Mapping[str, int],
    names: Sequence[str],
    seconds: float,
    times: dict[str, float],
) -> None:
    weights = [ASSUMED_SPEED(node_work(model, model.nodes[index[n]])) for n in names]
    total = sum(weights)
    for name, weight in zip(names, weights, strict=True):
        times[name] += seconds * weight / total


def _uses(executed: Iterable[ExecutedNode]) -> Counter[str]:
    """Count in how many executed nodes each of the model's is."""
    return Counter(name for row in executed for name in set(row.original_names))


def fused_groups(model: Model, executed: Sequence[ExecutedNode]) -> list[tuple[str, ...]]:
    """Return the sets of two or more nodes that requests run and that the device runs as one."""
    alive = {model.nodes[p].name for p in request_dependent_positions(model)}
    uses = _uses(executed)
    groups: dict[tuple[str, ...], None] = {}
    for row in executed:
        names = tuple(n for n in row.original_names if n in alive and uses[n] == 1)
        if len(names) > 1:
            groups[names] = None
    return list(groups)
