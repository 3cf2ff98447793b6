"""Serialised models: ONNX bytes without weights, and the weights as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from hetero.devices.errors import BlobError
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.types.plan import pack_spec, unpack_spec


class ModelParts(NamedTuple):
    """The parts of a model."""

    #: The model as ONNX without initializers.
    skeleton: bytes
    weights: Mapping[str, np.ndarray]
    #: Node -> names of the original nodes that it replaces.
    covers: Mapping[str, list[str]]
    #: List of [name, type, shape or None]: known types of values inside the model.
    specs: list[list[Any]]
    #: The inputs and the outputs, as lists of [name, type, shape or None]. ONNX cannot represent
    #: ports of unknown type.
    ports: list[list[list[Any]]]


def split_model(model: Model) -> ModelParts:
    """Split a model into parts; `join_model` rebuilds an equal one."""
    names = dict.fromkeys(v for node in model.nodes for v in (*node.reads, *node.writes))
    specs = model.specs
    skeleton: bytes = model.replace(constants={}).to_proto().SerializeToString()
    return ModelParts(
        skeleton,
        {name: constant.array for name, constant in model.constants.items()},
        {n.name: list(n.covers) for n in model.nodes if n.covers != (n.name,)},
        [pack_spec(specs[name]) for name in names if name in specs],
        [[pack_spec(port) for port in ports] for ports in (model.inputs, model.outputs)],
    )


def outline(
    name: str,
    node_names: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> ModelParts:
    """Return the parts of a model that has node names and ports only."""
    nodes = [onnx.NodeProto(name=node) for node in node_names]
    skeleton: bytes = onnx.ModelProto(
        graph=onnx.GraphProto(name=name, node=nodes)
    ).SerializeToString()
    ports = [[pack_spec(spec) for spec in specs] for specs in (inputs, outputs)]
    return ModelParts(skeleton, {}, {}, [], ports)


def join_model(parts: ModelParts) -> Model:
    """Rebuild a model from its parts; weights are not copied.

    Raises BlobError: the parts are invalid.
    """
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(parts.skeleton)
        nodes = [
            Node.from_proto(node, covers=tuple(parts.covers.get(node.name, ())))
            for node in proto.graph.node
        ]
        inputs, outputs = ([unpack_spec(entry) for entry in entries] for entries in parts.ports)
        specs = {entry[0]: unpack_spec(entry) for entry in parts.specs}
        name, value_info = proto.graph.name, list(proto.graph.value_info)
        constants = {key: Constant(key, array) for key, array in parts.weights.items()}
    except (DecodeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise BlobError(f"damaged model: {error}.") from error
    for spec in (*inputs, *outputs):
        specs.setdefault(spec.name, spec)
    proto.ClearField("graph")
    return Model(
        proto,
        name=name,
        nodes=nodes,
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        value_info=value_info,
        specs=specs | {key: constant.spec for key, constant in constants.items()},
    )
