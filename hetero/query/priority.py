"""The priority policy: the first device takes all it can, later ones the rest.

A device is asked about exactly the nodes that it could get: those that no earlier device took and
nobody pinned elsewhere, as a model of their own. So it sees the graph that it will later compile.
Weights that nodes make (dequantised ones, say) go to the first of their readers that can have
them: elsewhere each request would carry them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from hetero.affinity.affinity import NO_PINS, Affinity, assign, follows
from hetero.affinity.request_dependence import weight_positions
from hetero.devices.errors import UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.properties.request import CompileRequest

#: Device -> node -> why it does not take it in the part that it would get.
Refused = Mapping[str, Mapping[str, Refusal]]
#: Asks a device: device name, model -> what it takes of it.
Ask = Callable[[str, Model], Support]
#: Parts of models, by the positions of their nodes; kept as long as the model.
_PARTS: Final[WeakKeyDictionary[Model, dict[tuple[int, ...], Model]]] = WeakKeyDictionary()
_PARTS_LOCK: Final = threading.Lock()
#: Nodes that an error message shows; all of them are in its `unsupported`.
SHOWN_NODES: Final = 20


def query_priority(
    model: Model, devices: Sequence[str], ask: Ask, pins: Affinity = NO_PINS
) -> Support:
    """Ask devices in order of priority who runs which node.

    `pins`: nodes that go to one device only; it is still asked whether it takes them.
    Returns: `unsupported` has the reason of every device that may have the node: of all of them, or
        of the one that it is pinned to.
    """
    literals = {p for p, node in enumerate(model.nodes) if follows(model, node)}
    left = {p for p, n in enumerate(model.nodes) if p not in literals and n.name not in pins}
    weights = weight_positions(model) & left
    taken: dict[str, str] = {}
    refusals: dict[str, dict[str, Refusal]] = {}
    answers: dict[str, Support] = {}
    for device in dict.fromkeys(devices):
        own = left | {model.index_of[n] for n, where in pins.items() if where == device}
        if not own:
            continue
        asked = _with_weights(model, own, weights)
        answer = answers[device] = ask(device, _part(model, asked, literals))
        for position in asked:
            name = model.nodes[position].name
            if name in answer.devices:
                taken.setdefault(name, device)
                left.discard(position)
            elif name not in taken:
                refusals.setdefault(name, {})[device] = reason(answer, name, device)
    for position in (*sorted(weights, reverse=True), *literals):
        node = model.nodes[position]
        homes = (taken[r.name] for r in model.readers(node) if r.name in taken)
        fits = (d for d in homes if position in literals or node.name in answers[d].devices)
        if (home := next(fits, None)) is not None:
            taken[node.name] = home
    return Support(
        {name: taken[name] for name in model.node_names if name in taken},
        {name: refusals[name] for name in model.node_names if name in refusals.keys() - taken},
        {name: refusals[name] for name in model.node_names if name in refusals},
        {
            name: answers[taken[name]].notes[name]
            for name in model.node_names
            if name in taken and name in answers[taken[name]].notes
        },
    )


def require_supported(support: Support, model: Model, devices: Sequence[str]) -> None:
    """Raise UnsupportedNodesError unless every node has a device, with each device's reason."""
    if not support.unsupported:
        return
    lines = []
    for name, reasons in list(support.unsupported.items())[:SHOWN_NODES]:
        node = model.nodes[model.index_of[name]]
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        by_reason: dict[Refusal, list[str]] = {}
        for device, refusal in reasons.items():
            by_reason.setdefault(refusal, []).append(device)
        said = "; ".join(f"{', '.join(who)}: {refusal}" for refusal, who in by_reason.items())
        lines.append(f"\n  {name!r} ({op}): {said}")
    if (more := len(support.unsupported) - SHOWN_NODES) > 0:
        lines.append(f"\n  and {more} more; `.unsupported` has all of them")
    raise UnsupportedNodesError(
        f"model {model.name!r}: {len(support.unsupported)} of its {len(model.nodes)} nodes cannot "
        f"run on {' or '.join(devices)}:{''.join(lines)}\n"
        "Add a device that supports them to the list, or export the model without them.",
        unsupported={name: dict(reasons) for name, reasons in support.unsupported.items()},
    )


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


def _with_weights(model: Model, positions: Iterable[int], weights: Iterable[int]) -> list[int]:
    """Return the positions, and those of the weights that feed them, in order."""
    inside = set(positions)
    for position in sorted(weights, reverse=True):
        made = model.nodes[position].writes
        if not inside.isdisjoint(r for v in made for r in model.consumers.get(v, ())):
            inside.add(position)
    return sorted(inside)


def _part(model: Model, positions: Sequence[int], literals: set[int]) -> Model:
    """Return the nodes at `positions`, and the literals that they read, as a model.

    It is the same object each time, so that a device's answer about it is found again.
    """
    if len(positions) + len(literals) == len(model.nodes):
        return model
    with _PARTS_LOCK:
        parts = _PARTS.setdefault(model, {})
        if (key := tuple(positions)) not in parts:
            parts[key] = _extracted(model, positions, literals)
        return parts[key]


def _extracted(model: Model, positions: Sequence[int], literals: set[int]) -> Model:
    inside = set(positions)
    read = {model.producers.get(value, -1) for p in positions for value in model.nodes[p].reads}
    ends = {port.name for port in model.outputs}
    outputs = [
        value
        for p in positions
        for value in model.nodes[p].writes
        if value in ends or not inside.issuperset(model.consumers.get(value, ()))
    ]
    return model.extract([*positions, *(read & literals)], outputs)


def reason(answer: Support, name: str, device: str) -> Refusal:
    """Return why a device does not take a node."""
    for refusals in (answer.unsupported.get(name), answer.refusals.get(name)):
        if refusals:
            return refusals.get(device) or next(iter(refusals.values()))
    return Refusal("policy", f"{device} gave no answer and no reason")
