"""Priority policy: each node goes to the first device of the list that supports it.

Each device is queried about a submodel: the nodes that no earlier device supports and that are
not pinned to another device. This is the graph that the device will compile later. Nodes that
compute weights (dequantisation, for example) go to the device of their first reader that supports
them; on another device their results would cross with every request.

A device may refuse a node in a submodel that it supports in the whole model. The model is then
placed again with these refusals subtracted from the device's support.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

from hetero.affinity.affinity import NO_PINS, Affinity, assign, is_literal
from hetero.affinity.request_dependence import computed_weight_positions
from hetero.devices.errors import UnsupportedNodesError
from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Refusal, Support
from hetero.properties.compile_request import CompileRequest

#: Device -> node -> the refusal of a node by the device in its part of the model.
RefusalsByDevice = Mapping[str, Mapping[str, Refusal]]
#: Queries a device: device name, model -> support.
QueryFunction = Callable[[str, Model], Support]
#: Submodels of models by the positions of their nodes; dropped with the model.
_SUBMODELS: Final[WeakKeyDictionary[Model, dict[tuple[int, ...], Model]]] = WeakKeyDictionary()
_SUBMODELS_LOCK: Final = threading.Lock()
#: The number of nodes that an error message lists; its `unsupported` has all of them.
MAX_SHOWN_NODES: Final = 20


def query_priority(
    model: Model, devices: Sequence[str], query: QueryFunction, pins: Affinity = NO_PINS
) -> Support:
    """Query devices in order of priority, and assign each node to the first that supports it.

    `pins`: nodes that may go to one device only; that device is queried about them.
    Returns: the devices' joint support. `unsupported` has the refusal of every device that may run
        the node: of all devices, or of the device that the node is pinned to.
    """
    literals = {p for p, node in enumerate(model.nodes) if is_literal(model, node)}
    unassigned = {p for p, n in enumerate(model.nodes) if p not in literals and n.name not in pins}
    weights = computed_weight_positions(model) & unassigned
    device_of: dict[str, str] = {}
    refusals: dict[str, dict[str, Refusal]] = {}
    results: dict[str, Support] = {}
    for device in dict.fromkeys(devices):
        pinned = {model.index_of[name] for name, target in pins.items() if target == device}
        candidates = unassigned | pinned
        if not candidates:
            continue
        positions = _with_weights(model, candidates, weights)
        result = results[device] = query(device, _submodel(model, positions, literals))
        for position in positions:
            name = model.nodes[position].name
            if name in result.devices:
                device_of.setdefault(name, device)
                unassigned.discard(position)
            elif name not in device_of:
                refusals.setdefault(name, {})[device] = refusal_of(result, name, device)
    for position in (*sorted(weights, reverse=True), *literals):
        node = model.nodes[position]
        for reader in model.readers(node):
            device = device_of.get(reader.name, "")
            if device and (position in literals or node.name in results[device].devices):
                device_of[node.name] = device
                break
    return Support(
        {name: device_of[name] for name in model.node_names if name in device_of},
        {
            name: refusals[name]
            for name in model.node_names
            if name in refusals and name not in device_of
        },
        {name: refusals[name] for name in model.node_names if name in refusals},
        {
            name: results[device_of[name]].notes[name]
            for name in model.node_names
            if name in device_of and name in results[device_of[name]].notes
        },
    )


def require_supported(support: Support, model: Model, devices: Sequence[str]) -> None:
    """Raise UnsupportedNodesError, with each device's refusal, if a node has no device."""
    if not support.unsupported:
        return
    lines = []
    for name, reasons in list(support.unsupported.items())[:MAX_SHOWN_NODES]:
        node = model.nodes[model.index_of[name]]
        op = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        by_reason: dict[Refusal, list[str]] = {}
        for device, refusal in reasons.items():
            by_reason.setdefault(refusal, []).append(device)
        explanation = "; ".join(f"{', '.join(names)}: {r}" for r, names in by_reason.items())
        lines.append(f"\n  {name!r} ({op}): {explanation}")
    if (more := len(support.unsupported) - MAX_SHOWN_NODES) > 0:
        lines.append(f"\n  and {more} more; `.unsupported` has all of them")
    raise UnsupportedNodesError(
        f"model {model.name!r}: {len(support.unsupported)} of its {len(model.nodes)} nodes cannot "
        f"run on {' or '.join(devices)}:{''.join(lines)}\n"
        "Add a device that supports them to the list, or export the model without them.",
        unsupported={name: dict(reasons) for name, reasons in support.unsupported.items()},
    )


def place_by_priority(
    model: Model, request: CompileRequest, query: QueryFunction, refusals: RefusalsByDevice
) -> Affinity:
    """Assign each node to the first device of the list that supports it.

    Raises AffinityError: a device does not support a node that is pinned to it.
    Raises UnsupportedNodesError: no device supports a node.
    """

    def query_remaining(device: str, submodel: Model) -> Support:
        return without_refusals(query(device, submodel), device, refusals)

    support = query_priority(model, request.devices, query_remaining, request.pins)
    affinity = assign(model, support, request.pins)
    require_supported(support, model, request.devices)
    return affinity


def without_refusals(support: Support, device: str, refusals: RefusalsByDevice) -> Support:
    """Return a device's support without the nodes that it refuses in its part of the model."""
    by_node = {n: {device: refusal} for n, refusal in refusals.get(device, {}).items()}
    if not by_node:
        return support
    return replace(
        support,
        devices={n: d for n, d in support.devices.items() if n not in by_node},
        unsupported={**support.unsupported, **by_node},
        refusals={**support.refusals, **by_node},
    )


def merge_refusals(
    first: RefusalsByDevice, second: RefusalsByDevice
) -> dict[str, dict[str, Refusal]]:
    """Return the refusals of both mappings; those of the first take precedence."""
    return {
        device: {**second.get(device, {}), **first.get(device, {})}
        for device in dict.fromkeys((*first, *second))
    }


def remove_refusals(
    refusals: Mapping[str, dict[str, Refusal]], nodes: Iterable[str]
) -> dict[str, dict[str, Refusal]]:
    """Remove the refusals of nodes; return the removed ones, by device."""
    names = set(nodes)
    removed = {
        device: {name: refused.pop(name) for name in names & refused.keys()}
        for device, refused in refusals.items()
    }
    return {device: nodes for device, nodes in removed.items() if nodes}


def add_refusals(
    affinities: Iterable[Affinity], error: UnsupportedNodesError, refusals: RefusalsByDevice
) -> dict[str, dict[str, Refusal]]:
    """Return `refusals` plus those in `error`, each for the device of its node in `affinities`.

    Raises UnsupportedNodesError: `error` itself, if it adds no refusal, because planning again
        would not help.
    """
    all_refusals = {device: dict(nodes) for device, nodes in refusals.items()}
    has_new = False
    for name, reasons in error.data.get("unsupported", {}).items():
        for affinity in affinities:
            device = affinity.get(name)
            if device is not None and name not in all_refusals.get(device, {}):
                refusal = next(iter(reasons.values()), Refusal("policy", "refused in a part"))
                all_refusals.setdefault(device, {})[name] = refusal
                has_new = True
    if not has_new:
        raise error
    return all_refusals


def _with_weights(model: Model, positions: Iterable[int], weights: Iterable[int]) -> list[int]:
    """Return the positions plus those of the weights that feed them, in ascending order."""
    members = set(positions)
    for position in sorted(weights, reverse=True):
        outputs = model.nodes[position].writes
        if not members.isdisjoint(r for v in outputs for r in model.consumers.get(v, ())):
            members.add(position)
    return sorted(members)


def _submodel(model: Model, positions: Sequence[int], literals: set[int]) -> Model:
    """Return the nodes at `positions`, with the literals that they read, as a model.

    Equal arguments return the same object, so that the query cache recognises it.
    """
    if len(positions) + len(literals) == len(model.nodes):
        return model
    with _SUBMODELS_LOCK:
        submodels = _SUBMODELS.setdefault(model, {})
        if (key := tuple(positions)) not in submodels:
            submodels[key] = _extract_submodel(model, positions, literals)
        return submodels[key]


def _extract_submodel(model: Model, positions: Sequence[int], literals: set[int]) -> Model:
    members = set(positions)
    reads = (value for p in positions for value in model.nodes[p].reads)
    producers = {model.producers.get(value, -1) for value in reads}
    output_names = {port.name for port in model.outputs}
    outputs = [
        value
        for p in positions
        for value in model.nodes[p].writes
        if value in output_names or not members.issuperset(model.consumers.get(value, ()))
    ]
    return model.extract([*positions, *(producers & literals)], outputs)


def refusal_of(support: Support, name: str, device: str) -> Refusal:
    """Return the refusal of a node by a device, or a generic one if it reported none."""
    for refusals in (support.unsupported.get(name), support.refusals.get(name)):
        if refusals:
            return refusals.get(device) or next(iter(refusals.values()))
    return Refusal("policy", f"{device} returned neither support nor a refusal")
