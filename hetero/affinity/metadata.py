"""Affinities stored in a model: of its nodes in memory, and of its file's metadata.

Four forms, in descending order of precedence:

``op.get_rt_info()["affinity"]``
    A device name, as OpenVINO's HETERO reads it; in memory only.
``metadata_props["hetero.affinity"]``
    A device name.
``device_configurations``
    ONNX's multi-device record. It refers to one of the model's `configuration` entries, a list of
    device names. If all tensors of the node lie on one device of the list, the node is pinned to
    that device; otherwise its ``pipeline_stage`` is the index of the device in the list.
``metadata_props["layer_ann"]``
    ONNX Runtime's layer annotation. Its labels are free text; labels that are not device names
    are ignored.

The last two come from other tools: devices outside the device list are ignored. An ``affinity`` or
``hetero.affinity`` outside the list is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import onnx

from hetero.affinity.affinity import Affinity, is_literal, resolve_pins
from hetero.devices.model.model import Model, Node, set_metadata
from hetero.scheduler.types.device_names import match_name

#: The entry of a node's run-time information, as in OpenVINO.
RT_INFO_KEY: Final = "affinity"
AFFINITY_KEY: Final = "hetero.affinity"
DEVICE_KEY: Final = "hetero.device"
REASON_KEY: Final = "hetero.reason"
SUBGRAPH_KEY: Final = "hetero.subgraph"
LAYER_KEY: Final = "layer_ann"
#: The name of hetero's entry in ModelProto.configuration.
CONFIGURATION: Final = "hetero"
#: The first IR version with multi-device records; node metadata exists since IR version 10.
DEVICE_RECORDS_IR: Final = 11


def metadata_pins(model: Model, devices: Sequence[str]) -> Affinity:
    """Read the pins stored in a model's nodes.

    Raises AffinityError: an ``affinity`` or ``hetero.affinity`` is not one of `devices`.
    """
    runtime_pins = {
        f"name:{name}": info[RT_INFO_KEY]
        for name, info in model.node_rt_info.items()
        if info.get(RT_INFO_KEY) not in (None, "")
    }
    configurations = {str(c.name): tuple(map(str, c.device)) for c in model.header.configuration}
    own_pins: dict[str, str] = {}
    foreign_pins: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for node in model.nodes:
        metadata = node.metadata
        if device := metadata.get(AFFINITY_KEY):
            own_pins[f"name:{node.name}"] = device
        elif is_literal(model, node):
            continue
        elif (device := _device_of_record(node, configurations, devices)) is not None:
            foreign_pins[node.name] = device
            reasons[node.name] = "pin: device_configurations"
        elif (device := match_name(metadata.get(LAYER_KEY, ""), devices)) is not None:
            foreign_pins[node.name] = device
            reasons[node.name] = f"pin: metadata {LAYER_KEY}"
    pins = Affinity(foreign_pins, reasons)
    for source, patterns in (
        (f"metadata {AFFINITY_KEY}", own_pins),
        (f"rt_info {RT_INFO_KEY}", runtime_pins),
    ):
        if patterns:
            pins = resolve_pins(model, patterns, devices, source=source).with_fallback(pins)
    return pins


def _device_of_record(
    node: Node, configurations: Mapping[str, tuple[str, ...]], devices: Sequence[str]
) -> str | None:
    """Return the device of a node's ONNX device records, if it is one of `devices`."""
    for record in node.proto.device_configurations:
        names = configurations.get(record.configuration_id, ())
        indices = {index for spec in record.sharding_spec for index in spec.device}
        if not indices and record.HasField("pipeline_stage"):
            indices = {record.pipeline_stage}
        recorded_devices = [str(names[index]) for index in indices if 0 <= index < len(names)]
        if len(indices) == len(recorded_devices) == 1:
            device = match_name(recorded_devices[0], devices)
            if device is not None:
                return device
    return None


def annotate(
    model: Model, affinity: Mapping[str, str], *, stages: Mapping[str, int] | None = None
) -> Model:
    """Return the model with each node's device stored in it, in all three forms.

    `stages`: node name -> subgraph index, stored as the pipeline stage; by default the stage is
        the device's index among the devices in use.
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
