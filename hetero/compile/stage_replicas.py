"""Replicas of stages: the ways of a cut model through devices that stand in for others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from hetero.devices.errors import PropertyError
from hetero.partition.partition import PlacedPartition
from hetero.properties.compile_request import CompileRequest
from hetero.scheduler.vocabulary.names import match_name, split_name
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

_NAME: Final = "STAGE_REPLICAS"

#: Device -> those that have its subgraphs as well.
StandIns = Mapping[str, tuple[str, ...]]


def stand_ins(request: CompileRequest) -> StandIns:
    """Return what STAGE_REPLICAS says, devices by their names, each once and without pins."""
    found = {
        _device(name, request): tuple(_device(other, request) for other in others)
        for name, others in request.hetero_config[_NAME].items()
    }
    others = [other for mine in found.values() for other in mine]
    for other in others:
        if others.count(other) > 1 or other in found:
            raise _error(f"{other} is there more than once; a device stands in for one other.")
        if pinned := [node for node, device in request.pins.items() if device == other]:
            raise _error(f"{other} stands in for another; nodes are pinned to it: {pinned[:5]}.")
    return found


def without_stand_ins(request: CompileRequest) -> CompileRequest:
    """Return a request for the devices that get subgraphs of their own."""
    others = {device for mine in stand_ins(request).values() for device in mine}
    return request.for_devices(tuple(device for device in request.devices if device not in others))


def ways(cut: PlacedPartition, others: StandIns) -> list[PlacedPartition]:
    """Return a cut on each choice of its devices and their stand-ins, with equal shares."""
    used = [device for device in cut.plan.devices if device in others]
    choices = list(product(*((device, *others[device]) for device in used)))
    return [
        replace(
            cut.on_devices(dict(zip(used, chosen, strict=True)), "in place of"),
            share=cut.share / len(choices),
        )
        for chosen in choices
    ]


def moved(
    cut: PlacedPartition, gone: Collection[str], left: Sequence[DeviceDescriptor]
) -> PlacedPartition | None:
    """Return a cut with others of the same plugin in place of devices that are gone.

    Of those the one with the fewest nodes takes a device's subgraphs; None where there is none, or
    not enough memory.
    """
    nodes, placed = Counter(cut.affinity.values()), dict[str, str]()
    for device in cut.plan.devices:
        if device in gone:
            plugin, _ = split_name(device)
            alike = [row.name for row in left if row.plugin == plugin]
            if not alike:
                return None
            placed[device] = min(alike, key=nodes.__getitem__)
            nodes[placed[device]] += nodes[device]
    found = cut.on_devices(placed, "in place of")
    nbytes = Counter[str]()
    for subgraph in found.partition.subgraphs:
        nbytes[subgraph.device] += subgraph.model.weight_nbytes
    fits = (r.memory_nbytes is None or nbytes[r.name] <= r.memory_nbytes for r in left)
    return found if all(fits) else None


def _device(name: str, request: CompileRequest) -> str:
    found = match_name(name, request.devices)
    if found is None:
        listed = ", ".join(request.devices)
        raise _error(f"{name!r} is not one of the model's devices: {listed}.")
    return found


def _error(words: str) -> PropertyError:
    return PropertyError(f"{_NAME}: {words}", property=_NAME)
