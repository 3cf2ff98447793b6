"""Positions of the nodes that depend on a request, and of those that constants alone determine."""

from __future__ import annotations

from hetero.devices.model.model import Model


def request_dependent_positions(model: Model) -> tuple[int, ...]:
    """Return the positions of the nodes that depend on an input or draw random numbers.

    Every request runs these nodes. The results of the others are the same for all requests;
    devices fold them when they compile (constant folding).
    """
    return tuple(
        position
        for position, node in enumerate(model.nodes)
        if not model.request_dependent.isdisjoint(node.writes)
    )


def computed_weight_positions(model: Model) -> frozenset[int]:
    """Return the positions of the nodes that compute weights: foldable, and read by other nodes."""
    return frozenset(range(len(model.nodes))).difference(
        request_dependent_positions(model),
        (p for p, n in enumerate(model.nodes) if not any(v in model.consumers for v in n.writes)),
    )
