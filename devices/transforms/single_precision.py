"""Pass: computes models of half precision in single precision, between their inputs and outputs.

numpy converts half-precision arrays to float32 and back in every operation, which is slow. Inner
values become at least as exact. If a node converts other types to half precision, such as a Cast,
its result is still rounded to half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper

from hetero.devices.model.attributes import bodies
from hetero.devices.model.model import Constant, Model, Node
from hetero.devices.model.unique_names import UniqueNames
from hetero.devices.transforms.rewriting import with_inputs

#: Half-precision element type -> its ONNX number.
_HALF_TYPES: Final = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
#: Operators that are much faster in single precision; models without them are not changed.
_PRODUCTS: Final = {"Attention", "Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"}
#: Operators whose result depends on the half-precision type itself.
_TYPE_DEPENDENT: Final = {"BitCast", "DequantizeLinear", "QuantizeLinear"}
#: Attributes with the element type of an output.
_TYPE_ATTRIBUTES: Final = ("dtype", "output_dtype", "to")


def promote_to_single_precision(model: Model) -> Model:
    """Return the model with inner float16 and bfloat16 values in float32."""
    halves = {name: c for name, c in model.constants.items() if c.spec.element_type in _HALF_TYPES}
    inputs = [port.name for port in model.inputs if port.element_type in _HALF_TYPES]
    if not (halves or inputs) or not _can_promote(model):
        return model
    singles = {}
    for name, constant in halves.items():
        single = constant.array.astype(np.float32)
        single.setflags(write=False)
        singles[name] = Constant(name, single)
    outputs = {port.name: model.spec(port.name).element_type for port in model.outputs}
    names = UniqueNames.of_values(model)
    computed_outputs = (
        n for n, kind in outputs.items() if kind in _HALF_TYPES and n in model.producers
    )
    inner = {name: names.make(f"{name}/single") for name in (*inputs, *computed_outputs)}
    nodes = list(_promote_nodes(model, inputs, inner, names))
    nodes += [
        _cast(inner[name], name, _HALF_TYPES[kind], model.nodes[model.producers[name]])
        for name, kind in outputs.items()
        if kind in _HALF_TYPES and name in model.producers
    ]
    return model.replace(nodes=nodes, constants=dict(model.constants) | singles)


def _can_promote(model: Model) -> bool:
    """Return whether all nodes accept float32 instead, and some are faster in it."""
    if any("float16" in spec.type and not spec.is_tensor for spec in model.specs.values()):
        return False  # the type of a sequence would change
    ports = {port.name for port in model.inputs}
    if any(p.name in model.constants or not model.spec(p.name).type for p in model.outputs):
        return False
    if ports & model.constants.keys() or model.header.functions:
        return False
    for node in model.nodes:
        to_text = node.op_type == "Cast" and node.attributes.get("to") == TensorProto.STRING
        if node.domain or node.op_type in _TYPE_DEPENDENT or to_text or any(bodies(node.proto)):
            return False
    return any(node.op_type in _PRODUCTS for node in model.nodes)


def _promote_nodes(
    model: Model, inputs: list[str], inner: dict[str, str], names: UniqueNames
) -> Iterator[Node]:
    """Yield the nodes on inner values, with casts of inputs and of half-precision outputs."""
    uncast_inputs = set(inputs)
    for node in model.nodes:
        for name in dict.fromkeys(node.inputs):
            if name in uncast_inputs:
                uncast_inputs.remove(name)
                yield _cast(name, inner[name], TensorProto.FLOAT, node)
        reads = [inner.get(name, name) for name in node.inputs]
        writes = [inner.get(name, name) for name in node.outputs]
        if _returns_half(node):
            half = names.make(f"{writes[0]}/half")
            yield with_inputs(node, reads, [half])
            yield _cast(half, writes[0], TensorProto.FLOAT, node)
        else:
            yield with_inputs(node, reads, writes)


def _returns_half(node: Node) -> bool:
    """Return whether an attribute, as opposed to the inputs, sets a half-precision output type."""
    attributes: dict[str, Any] = {a.name: a for a in node.proto.attribute}
    kinds = {attributes[name].i for name in _TYPE_ATTRIBUTES if name in attributes}
    kinds |= {a.t.data_type for a in attributes.values() if a.type == onnx.AttributeProto.TENSOR}
    return bool(kinds & {*_HALF_TYPES.values()})


def _cast(x: str, y: str, to: int, neighbor: Node) -> Node:
    """Return a Cast node that covers the same original nodes as its neighbor."""
    return Node.from_proto(
        helper.make_node("Cast", [x], [y], f"{y}/cast", to=to), covers=neighbor.covers
    )
