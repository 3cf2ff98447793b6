"""Pass: what is in half precision is computed in single, from the inputs to the outputs.

numpy computes with halves one by one, and converts them to floats and back for each product. The
values between are as exact or more; where a node makes halves of other types, by a cast for
instance, they are rounded as it says.
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

#: Element type -> its number.
_HALVES: Final = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
#: The pass pays for models with one of these, and the others keep every rounding.
_PRODUCTS: Final = {"Attention", "Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN"}
#: Operators that see how halves are stored, or divide in their type.
_EXACT: Final = {"BitCast", "DequantizeLinear", "QuantizeLinear"}
#: Attributes that say what type the outputs have.
_TYPES: Final = ("dtype", "output_dtype", "to")


def promote_to_single_precision(model: Model) -> Model:
    """Return the model with float32 for float16 and bfloat16 inside."""
    halves = {name: c for name, c in model.constants.items() if c.spec.element_type in _HALVES}
    inputs = [port.name for port in model.inputs if port.element_type in _HALVES]
    if not (halves or inputs) or not _is_open(model):
        return model
    singles = {}
    for name, constant in halves.items():
        single = constant.array.astype(np.float32)
        single.setflags(write=False)
        singles[name] = Constant(name, single)
    outputs = {port.name: model.spec(port.name).element_type for port in model.outputs}
    names = UniqueNames.of_values(model)
    made = (n for n, kind in outputs.items() if kind in _HALVES and n in model.producers)
    inner = {name: names.make(f"{name}/single") for name in (*inputs, *made)}
    nodes = list(_converted(model, inputs, inner, names))
    nodes += [
        _cast(inner[name], name, _HALVES[kind], model.nodes[model.producers[name]])
        for name, kind in outputs.items()
        if kind in _HALVES and name in model.producers
    ]
    return model.replace(nodes=nodes, constants=dict(model.constants) | singles)


def _is_open(model: Model) -> bool:
    """Tell whether every node may be given floats for halves, and one is worth it."""
    if any("float16" in spec.type and not spec.is_tensor for spec in model.specs.values()):
        return False  # a sequence of halves would become one of floats
    ports = {port.name for port in model.inputs}
    if any(p.name in model.constants or not model.spec(p.name).type for p in model.outputs):
        return False
    if ports & model.constants.keys() or model.header.functions:
        return False
    for node in model.nodes:
        to_text = node.op_type == "Cast" and node.attributes.get("to") == TensorProto.STRING
        if node.domain or node.op_type in _EXACT or to_text or any(bodies(node.proto)):
            return False
    return any(node.op_type in _PRODUCTS for node in model.nodes)


def _converted(
    model: Model, inputs: list[str], inner: dict[str, str], names: UniqueNames
) -> Iterator[Node]:
    """Yield the nodes on other names, with casts after the inputs and after what makes halves."""
    waiting = set(inputs)
    for node in model.nodes:
        for name in dict.fromkeys(node.inputs):
            if name in waiting:
                waiting.remove(name)
                yield _cast(name, inner[name], TensorProto.FLOAT, node)
        reads = [inner.get(name, name) for name in node.inputs]
        writes = [inner.get(name, name) for name in node.outputs]
        if _makes_halves(node):
            half = names.make(f"{writes[0]}/half")
            yield with_inputs(node, reads, [half])
            yield _cast(half, writes[0], TensorProto.FLOAT, node)
        else:
            yield with_inputs(node, reads, writes)


def _makes_halves(node: Node) -> bool:
    """Tell whether an attribute, not the inputs, makes the output of half precision."""
    attributes: dict[str, Any] = {a.name: a for a in node.proto.attribute}
    kinds = {attributes[name].i for name in _TYPES if name in attributes}
    kinds |= {a.t.data_type for a in attributes.values() if a.type == onnx.AttributeProto.TENSOR}
    return bool(kinds & {*_HALVES.values()})


def _cast(x: str, y: str, to: int, beside: Node) -> Node:
    """Return a cast that stands for nothing but the node `beside` it."""
    return Node.from_proto(
        helper.make_node("Cast", [x], [y], f"{y}/cast", to=to), covers=beside.covers
    )
