"""Stage replicas: several devices that run the same subgraphs and share their requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Final

from hetero.devices.errors import PropertyError
from hetero.partition.partition import PlacedPartition
from hetero.properties.compile_request import CompileRequest
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import match_name, split_name

_PROPERTY: Final = "STAGE_REPLICAS"

#: Device -> the devices that run its subgraphs as well.
ReplicaDevices = Mapping[str, tuple[str, ...]]


def replica_devices(request: CompileRequest) -> ReplicaDevices:
    """Return the replicas of STAGE_REPLICAS, by full device names.

    Raises PropertyError: a device occurs twice, is unknown, or nodes are pinned to it.
    """
    replicas = {
        _match_device(name, request): tuple(_match_device(other, request) for other in others)
        for name, others in request.hetero_config[_PROPERTY].items()
    }
    all_replicas = [device for devices in replicas.values() for device in devices]
    for device in all_replicas:
        if all_replicas.count(device) > 1 or device in replicas:
            raise _error(f"{device} occurs twice; a device can be the replica of one other device.")
        if nodes := [node for node, pinned in request.pins.items() if pinned == device]:
            raise _error(f"{device} is a replica, but nodes are pinned to it: {nodes[:5]}.")
    return replicas


def without_replica_devices(request: CompileRequest) -> CompileRequest:
    """Return a request for the devices that are not replicas of others."""
    replicas = {device for devices in replica_devices(request).values() for device in devices}
    return request.for_devices(tuple(d for d in request.devices if d not in replicas))


def replicate(placement: PlacedPartition, replicas: ReplicaDevices) -> list[PlacedPartition]:
    """Return a placement on each combination of its devices' replicas, with equal shares."""
    devices = [device for device in placement.plan.devices if device in replicas]
    combinations = list(product(*((device, *replicas[device]) for device in devices)))
    return [
        replace(
            placement.on_devices(dict(zip(devices, combination, strict=True)), "in place of"),
            share=placement.share / len(combinations),
        )
        for combination in combinations
    ]


def move_from_lost_devices(
    placement: PlacedPartition, lost_devices: Collection[str], remaining: Sequence[DeviceDescriptor]
) -> PlacedPartition | None:
    """Move the subgraphs of lost devices to remaining devices of the same plugin.

    Of several, the device with the fewest nodes gets them.

    Returns: None if a plugin has no remaining device, or not enough memory.
    """
    num_nodes, replacements = Counter(placement.affinity.values()), dict[str, str]()
    for device in placement.plan.devices:
        if device in lost_devices:
            plugin, _ = split_name(device)
            candidates = [d.name for d in remaining if d.plugin == plugin]
            if not candidates:
                return None
            replacements[device] = min(candidates, key=num_nodes.__getitem__)
            num_nodes[replacements[device]] += num_nodes[device]
    new_placement = placement.on_devices(replacements, "in place of")
    nbytes = Counter[str]()
    for subgraph in new_placement.partition.subgraphs:
        nbytes[subgraph.device] += subgraph.model.weight_nbytes
    fits = (d.memory_nbytes is None or nbytes[d.name] <= d.memory_nbytes for d in remaining)
    return new_placement if all(fits) else None


def _match_device(name: str, request: CompileRequest) -> str:
    device = match_name(name, request.devices)
    if device is None:
        devices = ", ".join(request.devices)
        raise _error(f"expected one of the model's devices {devices}; got {name!r}.")
    return device


def _error(problem: str) -> PropertyError:
    return PropertyError(f"{_PROPERTY}: {problem}", property=_PROPERTY)
