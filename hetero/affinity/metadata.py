"""Affinities inside a model: our own node metadata, ONNX Runtime's, and ONNX's device records.

A node may carry, the stronger first:

``metadata_props["hetero.affinity"]``
    A device name.
``device_configurations``
    ONNX's multi-device record. It belongs to one of the model's `configuration` entries, which
    lists device names. A node whose tensors all lie on one device of it goes there; a node
    without that but with a ``pipeline_stage`` goes to the device of that position.
``metadata_props["layer_ann"]``
    ONNX Runtime's annotation of a layer. Its labels are free, so that only those that are a
    device's name count.

The last two are others' records: devices that are not in the list are passed over there, while a
``hetero.affinity`` that cannot be met is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import onnx

from hetero.affinity.affinity import NO_PINS, Affinity, follows, resolve_pins
from hetero.devices.model.model import Model, Node, set_metadata
from hetero.scheduler.vocabulary.names import match_name

AFFINITY_KEY: Final = "hetero.affinity"
DEVICE_KEY: Final = "hetero.device"
REASON_KEY: Final = "hetero.reason"
SUBGRAPH_KEY: Final = "hetero.subgraph"
LAYER_KEY: Final = "layer_ann"
#: The name of our entry in ModelProto.configuration.
CONFIGURATION: Final = "hetero"
#: The IR version that brought multi-device records; node metadata came one earlier.
DEVICE_RECORDS_IR: Final = 11


def metadata_pins(model: Model, devices: Sequence[str]) -> Affinity:
    """Read the pins that a model's nodes carry; a ``hetero.affinity`` has to be of the list."""
    configurations = {str(c.name): tuple(map(str, c.device)) for c in model.header.configuration}
    own: dict[str, str] = {}
    foreign: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for node in model.nodes:
        metadata = node.metadata
        if device := metadata.get(AFFINITY_KEY):
            own[f"name:{node.name}"] = device
        elif follows(model, node):
            continue
        elif (device := _recorded(node, configurations, devices)) is not None:
            foreign[node.name] = device
            reasons[node.name] = "pin: device_configurations"
        elif (device := match_name(metadata.get(LAYER_KEY, ""), devices)) is not None:
            foreign[node.name] = device
            reasons[node.name] = f"pin: metadata {LAYER_KEY}"
    named = resolve_pins(model, own, devices, source=f"metadata {AFFINITY_KEY}") if own else NO_PINS
    return named.over(Affinity(foreign, reasons))


def _recorded(
    node: Node, configurations: Mapping[str, tuple[str, ...]], devices: Sequence[str]
) -> str | None:
    """Return the device that ONNX's records put the node on, if they name one of `devices`."""
    for record in node.proto.device_configurations:
        names = configurations.get(record.configuration_id, ())
        places = {index for spec in record.sharding_spec for index in spec.device}
        if not places and record.HasField("pipeline_stage"):
            places = {record.pipeline_stage}
        found = [str(names[index]) for index in places if 0 <= index < len(names)]
        if len(places) == len(found) == 1:
            device = match_name(found[0], devices)
            if device is not None:
                return device
    return None


def annotate(
    model: Model, affinity: Mapping[str, str], *, stages: Mapping[str, int] | None = None
) -> Model:
    """Return the model with each node's device written into it, in all forms that are read.

    `stages`: node name -> its subgraph's index, which is its pipeline stage; without it stages
        are the devices' positions.
    """
    reasons = affinity.reasons if isinstance(affinity, Affinity) else {}
    names = list(dict.fromkeys(affinity[n.name] for n in model.nodes if n.name in affinity))
    header = onnx.ModelProto()
    header.CopyFrom(model.header)
    header.ir_version = max(header.ir_version, DEVICE_RECORDS_IR)
    others = [c for c in header.configuration if c.name != CONFIGURATION]
    del header.configuration[:]
    header.configuration.extend(others)
    header.configuration.add(name=CONFIGURATION, num_devices=len(names), device=names)
    nodes = []
    for node in model.nodes:
        device = affinity.get(node.name)
        if device is None:
            nodes.append(node)
            continue
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        entries = {AFFINITY_KEY: device, DEVICE_KEY: device, LAYER_KEY: device}
        if reason := reasons.get(node.name):
            entries[REASON_KEY] = reason
        index = names.index(device)
        stage = index
        if stages is not None and node.name in stages:
            stage = stages[node.name]
            entries[SUBGRAPH_KEY] = str(stage)
        set_metadata(proto, entries)
        _set_record(proto, index, stage)
        nodes.append(Node.from_proto(proto, covers=node.covers))
    return model.replace(header=header, nodes=nodes)


def _set_record(proto: onnx.NodeProto, index: int, stage: int) -> None:
    others = [r for r in proto.device_configurations if r.configuration_id != CONFIGURATION]
    del proto.device_configurations[:]
    proto.device_configurations.extend(others)
    record = proto.device_configurations.add(configuration_id=CONFIGURATION, pipeline_stage=stage)
    for value in dict.fromkeys(proto.output):
        if value:
            record.sharding_spec.add(tensor_name=value, device=[index])
