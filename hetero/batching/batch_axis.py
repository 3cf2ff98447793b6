"""Opening of the batch axis: a model for batch size 1 becomes a model for any batch size."""

from __future__ import annotations

import onnx

from hetero.devices.errors import ModelError
from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.model import Constant, Model, Node


def with_open_batch_axis(model: Model) -> Model:
    """Return the model with an open axis 0, if its inputs have batch size 1.

    Returns the model itself if that fails. `hetero.batching.batchability` checks whether its nodes
    keep the rows of a batch independent.
    """
    if not all(port.is_tensor and port.shape and port.shape[0] == 1 for port in model.inputs):
        return model
    try:
        return _with_open_reshape_targets(model).reshape(
            {port.name: ("batch", *(port.shape or ())[1:]) for port in model.inputs}
        )
    except ModelError:
        return model


def _with_open_reshape_targets(model: Model) -> Model:
    """Return the model with a 0 as the batch size in the target of each `Reshape` to one row.

    A 0 stands for the size of the input, which is 1 so far.
    """
    constants_by_name = lift_constant_nodes(model).constants
    constants, nodes = dict(model.constants), list(model.nodes)
    for i, node in enumerate(nodes):
        is_reshape = (
            node.op_type == "Reshape" and len(node.inputs) > 1
        )  # an attribute before opset 5
        shape = constants_by_name.get(node.inputs[1]) if is_reshape else None
        if shape is None or node.attributes.get("allowzero") or shape.array[:1].tolist() != [1]:
            continue
        if (model.spec(node.inputs[0]).shape or (None,))[0] != 1:
            continue
        open_shape = Constant(f"{node.inputs[1]}/{node.name}", shape.array.copy())
        open_shape.array[0] = 0
        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        proto.input[1] = open_shape.name
        nodes[i] = Node.from_proto(proto, covers=node.covers)
        constants[open_shape.name] = open_shape
    return model.replace(nodes=nodes, constants=constants)
