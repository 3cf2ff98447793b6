"""A model for one row on axis 0 made into one for any number of rows."""

from __future__ import annotations

import onnx

from hetero.devices.errors import ModelError
from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.model import Constant, Model, Node


def with_open_batch(model: Model) -> Model:
    """Return the model for any number of rows, where it is made for one.

    Whether its nodes keep them apart is for `hetero.batching.batchability` to say.
    """
    if not all(port.is_tensor and port.shape and port.shape[0] == 1 for port in model.inputs):
        return model
    try:
        return _with_open_reshapes(model).reshape(
            {port.name: ("batch", *(port.shape or ())[1:]) for port in model.inputs}
        )
    except ModelError:
        return model


def _with_open_reshapes(model: Model) -> Model:
    """Return the model with each `Reshape` to one row giving as many as come in: one, so far."""
    known = lift_constant_nodes(model).constants
    constants, nodes = dict(model.constants), list(model.nodes)
    for i, node in enumerate(nodes):
        reshapes = node.op_type == "Reshape" and len(node.inputs) > 1  # an attribute before opset 5
        shape = known.get(node.inputs[1]) if reshapes else None
        if shape is None or node.attributes.get("allowzero") or shape.array[:1].tolist() != [1]:
            continue
        if (model.spec(node.inputs[0]).shape or (None,))[0] != 1:
            continue
        opened = Constant(f"{node.inputs[1]}/{node.name}", shape.array.copy())
        opened.array[0] = 0
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        proto.input[1] = opened.name
        nodes[i] = Node.from_proto(proto, covers=node.covers)
        constants[opened.name] = opened
    return model.replace(nodes=nodes, constants=constants)
