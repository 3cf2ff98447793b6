"""Replicas: the devices that run the same subgraphs and share their requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

from hetero.devices.errors import PropertyError
from hetero.partition.partition import PlacedPartition
from hetero.partition.replicas import ReplicaDevices
from hetero.properties.compile_request import CompileRequest
from hetero.properties.replicas_property import AUTO, PLAN, range_of
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import match_name, split_name

_PROPERTY: Final = "REPLICAS"


def with_replicas(request: CompileRequest) -> CompileRequest:
    """Return the request with the replicas of REPLICAS; only the other devices get nodes.

    Raises PropertyError: a device occurs twice or is unknown, there are too few devices, or nodes
        are pinned to a replica of another plugin's device.
    """
    members, bounds = replica_devices(request), scaling_bounds(request)
    original_of = {other: device for device, others in members.items() for other in others}
    for device, original in original_of.items():
        nodes = [node for node, pinned in request.pins.items() if pinned == device]
        if nodes and split_name(device)[0] != split_name(original)[0]:
            raise _error(
                f"{device} is a replica of {original}, but nodes are pinned to it: {nodes[:5]}. "
                "For N replicas, list N devices of each kind in turn, such as "
                "HETERO:ORT.0,ORT.1,CPU.0,CPU.1 for 2."
            )
    moved = request.with_moved_pins(original_of)
    remaining = tuple(device for device in request.devices if device not in original_of)
    if bounds:
        members = {device: others[: bounds[0] - 1] for device, others in members.items()}
    return replace(moved.for_devices(remaining), replicas=members)


def scaling_bounds(request: CompileRequest) -> tuple[int, int] | None:
    """Return the least and the largest number of replicas, if the load determines the number."""
    option = request.hetero_config[_PROPERTY]
    if option == AUTO:
        return 1, 1 + max(map(len, replica_devices(request).values()))
    return range_of(option)


def with_devices_of_kind(
    devices: Sequence[str], names: Collection[str], descriptors: Sequence[DeviceDescriptor]
) -> tuple[str, ...]:
    """Return the devices of a list; those that it names without an id with all of their kind.

    `names`: the names in the device string, such as ``ORT`` or ``ORT.1``.
    """
    families = {d.name: d.family for d in descriptors if d.error is None}
    listed: list[str] = []
    for device in devices:
        listed.append(device)
        family = families[device]
        if family in names:
            listed += [name for name, other in families.items() if other == family]
    return tuple(dict.fromkeys(listed))


def num_devices_for(replicas: object) -> int:
    """Return the number of devices that a value of REPLICAS needs at least; 0 for any."""
    if bounds := range_of(replicas):
        return bounds[1]
    return replicas if isinstance(replicas, int) else 0


def replica_devices(request: CompileRequest) -> ReplicaDevices:
    """Return the further devices that may run each device's subgraphs, by full device names."""
    option = request.hetero_config[_PROPERTY]
    devices = request.devices
    if option == PLAN:
        return {}
    if option == AUTO:
        kinds: dict[str, list[str]] = {}
        for descriptor in request.descriptors:
            kinds.setdefault(descriptor.family, []).append(descriptor.name)
        return {first: tuple(others) for first, *others in kinds.values()}
    if bounds := range_of(option):
        option = bounds[1]
    if isinstance(option, int):
        if option > len(devices):
            example = split_name(devices[0])[0]
            raise _error(
                f"expected at most {len(devices)}, one replica for each device of "
                f"{', '.join(devices)}; got {option}. List more devices, start several of a "
                f"kind (--devices {example}=2, Core(devices={{{example!r}: 2}})), or add nodes to "
                "the cluster."
            )
        firsts = range(0, len(devices), option)
        return {devices[i]: devices[i + 1 : i + option] for i in firsts}
    replicas = {
        _match_device(name, request): tuple(_match_device(other, request) for other in others)
        for name, others in option.items()
    }
    num_uses = Counter(chain.from_iterable(replicas.values()))
    for device, count in num_uses.items():
        if count > 1 or device in replicas:
            raise _error(f"{device} occurs twice; a device can be the replica of one other device.")
    return replicas


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
