"""Placing a model by priority, and doing without what a device refuses after all.

A device may refuse in a part what it takes in the whole. Then the model is placed again without
that: the refusals found so far are taken from what the device said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from hetero.affinity.affinity import Affinity, assign
from hetero.devices.errors import UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.properties.request import CompileRequest
from hetero.query.priority import query_priority, require_supported

#: Device -> node -> why it does not take it in the part that it would get.
Refused = Mapping[str, Mapping[str, Refusal]]


def place_by_priority(
    model: Model, request: CompileRequest, ask: Callable[[str, Model], Support], refused: Refused
) -> Affinity:
    """Give each node to the first device of the list that takes it."""

    def answer(device: str, part: Model) -> Support:
        return without(ask(device, part), device, refused)

    support = query_priority(model, request.devices, answer, request.pins)
    placed = assign(model, support, request.pins)
    require_supported(support, model, request.devices)
    return placed


def without(support: Support, device: str, refused: Refused) -> Support:
    """Return a device's answer without the nodes that it refuses in a part."""
    gone = {n: {device: why} for n, why in refused.get(device, {}).items()}
    if not gone:
        return support
    return replace(
        support,
        devices={n: d for n, d in support.devices.items() if n not in gone},
        unsupported={**support.unsupported, **gone},
        refusals={**support.refusals, **gone},
    )


def refusals(
    affinities: Iterable[Affinity], error: UnsupportedNodesError, known: Refused
) -> dict[str, dict[str, Refusal]]:
    """Return `known` and what a deployment by `affinities` was refused besides.

    Raises UnsupportedNodesError: `error` itself, where it says nothing new.
    """
    found = {device: dict(nodes) for device, nodes in known.items()}
    new = False
    for name, reasons in error.data.get("unsupported", {}).items():
        for affinity in affinities:
            device = affinity.get(name)
            if device is not None and name not in found.get(device, {}):
                why = next(iter(reasons.values()), Refusal("policy", "refused in a part"))
                found.setdefault(device, {})[name] = why
                new = True
    if not new:
        raise error
    return found
