"""Which nodes every request runs, and which are the same for all of them."""

from __future__ import annotations

from hetero.devices.model.model import Model


def request_positions(model: Model) -> tuple[int, ...]:
    """Return the positions of the nodes that depend on an input: those that every request runs.

    What the others make is the same for all requests; devices fold it when they compile.
    """
    return tuple(
        position
        for position, node in enumerate(model.nodes)
        if not model.moving.isdisjoint(node.writes)
    )


def weight_positions(model: Model) -> frozenset[int]:
    """Return the positions of the nodes that no request runs, and whose values others read."""
    return frozenset(range(len(model.nodes))).difference(
        request_positions(model),
        (p for p, n in enumerate(model.nodes) if not any(v in model.consumers for v in n.writes)),
    )
