"""Element types of GPU arrays, and the refusal of nodes with others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import onnx
from onnx import TensorProto

from hetero.devices.model.attributes import bodies
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.support import Refusal

#: Names as in ``tensor(float)``. CuPy has no narrower types, no bfloat16 and no strings.
ELEMENT_TYPES: Final = (
    "bool",
    "complex128",
    "complex64",
    "double",
    "float",
    "float16",
    "int16",
    "int32",
    "int64",
    "int8",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
)
#: Types of the atomic operations behind `ufunc.at`, which its TypeError lists in CuPy 14.
#: Kernels reduce float16 in float32.
ATOMIC_TYPES: Final = ("double", "float", "float16", "int32", "int64", "uint32", "uint64")
#: Operators that combine several updates of one element.
_SCATTERS: Final = ("ScatterElements", "ScatterND")
#: Attributes whose value is the element type of a computation or an output.
_TYPE_ATTRIBUTES: Final = ("dtype", "output_datatype", "output_dtype", "softmax_precision", "to")


def type_refusal(node: Node, model: Model) -> Refusal | None:
    """Return the refusal of a node that reads, writes or computes in a type without GPU arrays."""
    specs = [model.spec(name) for name in (*node.reads, *node.writes)]
    for subject, text in (*((repr(s.name), s.type) for s in specs), *_inner_types(node.proto)):
        unsupported = [n for n in re.findall(r"\((\w+)\)", text) if n not in ELEMENT_TYPES]
        if unsupported or "map(" in text:
            return Refusal(
                "dtype",
                f"{node.op_type}: {subject} is {text}; GPU arrays have the types "
                f"{', '.join(ELEMENT_TYPES)}",
            )
    reduction = node.attributes.get("reduction", "none")
    if node.op_type in _SCATTERS and reduction != "none":
        spec = model.spec(node.inputs[0])
        if spec.element_type not in ATOMIC_TYPES:
            return Refusal(
                "dtype",
                f"{node.op_type} with reduction {reduction!r}: {spec.name!r} is {spec.type}; GPUs "
                f"reduce {', '.join(ATOMIC_TYPES)}",
            )
    return None


def _inner_types(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Yield the types in a node's attributes and bodies: the subject's name, and its type."""
    for attribute in node.attribute:
        subject = f"attribute {attribute.name!r} of {node.op_type}"
        if attribute.name in _TYPE_ATTRIBUTES and attribute.i in TensorProto.DataType.values():
            if attribute.i != TensorProto.UNDEFINED:
                yield subject, _tensor_type(attribute.i)
        elif attribute.HasField("t"):
            yield subject, _tensor_type(attribute.t.data_type)
        elif attribute.name.startswith("value_string"):
            yield subject, "tensor(string)"
    for _, graph in bodies(node):
        for tensor in graph.initializer:
            yield repr(tensor.name), _tensor_type(tensor.data_type)
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield repr(info.name), TensorSpec.from_proto(info).type
        for inner in graph.node:
            yield from _inner_types(inner)


def _tensor_type(number: int) -> str:
    return f"tensor({TensorProto.DataType.Name(number).lower()})"
