"""Conversion of ONNX `Constant` nodes into constants of the model."""

from __future__ import annotations

import numpy as np
import onnx

from hetero.devices.errors import ModelError
from hetero.devices.model.attributes import attribute_value
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.tensor_proto import dense_array

#: Attribute of `Constant` -> element type of its value.
_TYPES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": object,
    "value_strings": object,
}


def lift_constant_nodes(model: Model) -> Model:
    """Return the model with its `Constant` nodes converted into constants."""
    arrays = {
        n.outputs[0]: constant_node_value(n) for n in model.nodes if n.is_constant and n.writes
    }
    if not arrays:
        return model
    constants = {name: Constant(name, array) for name, array in arrays.items()}
    return model.replace(
        nodes=[n for n in model.nodes if not n.is_constant],
        constants=dict(model.constants) | constants,
        specs=dict(model.specs) | {name: c.spec for name, c in constants.items()},
    )


def constant_node_value(node: Node) -> np.ndarray:
    """Return the value of a `Constant` node as a read-only array.

    Raises ModelError if the value is damaged, or if the node does not have exactly one.
    """
    attribute, context = constant_node_attribute(node.proto), f"node {node.name!r} (Constant)"
    if attribute.name == "sparse_value":
        return dense_array(attribute.sparse_tensor, context)
    try:
        array = np.asarray(attribute_value(attribute), _TYPES.get(attribute.name))
    except (ValueError, TypeError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{context}: {attribute.name} is damaged: {error}.") from error
    array.setflags(write=False)
    return array


def constant_node_attribute(node: onnx.NodeProto) -> onnx.AttributeProto:
    """Return the attribute that holds the value of a `Constant`; ModelError unless it has one."""
    names = [attribute.name for attribute in node.attribute]
    if len(names) != 1 or names[0] not in (*_TYPES, "value", "sparse_value"):
        raise ModelError(
            f"node {node.name or ', '.join(node.output)!r} (Constant): expected exactly one value "
            f"attribute, got {names}. Export the model again."
        )
    attribute: onnx.AttributeProto = node.attribute[0]
    return attribute
