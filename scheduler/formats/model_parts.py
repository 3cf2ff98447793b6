"""A model taken apart for travel: ONNX bytes without weights, and the weights as arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from hetero.devices.errors import BlobError
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.scheduler.vocabulary.plan import pack_spec, unpack_spec


class ModelParts(NamedTuple):
    """A model's parts."""

    #: The model as ONNX without initializers.
    skeleton: bytes
    weights: Mapping[str, np.ndarray]
    #: Nodes that stand for others, and for which.
    covers: Mapping[str, list[str]]
    #: List of [name, type, shape or None]: types of the values in the model, where they are known.
    specs: list[list[Any]]
    #: List of list of [name, type, shape or None]: inputs and outputs; ONNX cannot write a port of
    #: unknown type.
    ports: list[list[list[Any]]]


def split_model(model: Model) -> ModelParts:
    """Take a model apart; `join_model` makes an equal one."""
    names = dict.fromkeys(v for node in model.nodes for v in (*node.reads, *node.writes))
    known = model.specs
    skeleton: bytes = model.replace(constants={}).to_proto().SerializeToString()
    return ModelParts(
        skeleton,
        {name: constant.array for name, constant in model.constants.items()},
        {n.name: list(n.covers) for n in model.nodes if n.covers != (n.name,)},
        [pack_spec(known[name]) for name in names if name in known],
        [[pack_spec(spec) for spec in specs] for specs in (model.inputs, model.outputs)],
    )


def outline(
    name: str,
    node_names: Sequence[str],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> ModelParts:
    """Return the parts of a model of which only names and ports are given."""
    nodes = [onnx.NodeProto(name=node) for node in node_names]
    skeleton: bytes = onnx.ModelProto(
        graph=onnx.GraphProto(name=name, node=nodes)
    ).SerializeToString()
    ports = [[pack_spec(spec) for spec in specs] for specs in (inputs, outputs)]
    return ModelParts(skeleton, {}, {}, [], ports)


def join_model(parts: ModelParts) -> Model:
    """Make a model from its parts; the weights are used as they are, not copied.

    Raises BlobError if they are no parts of a model.
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
