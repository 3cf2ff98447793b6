"""Which element types a GPU's arrays have."""

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

#: Names as in ``tensor(float)``; narrower ones, bfloat16 and strings are the host's alone.
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
#: Attributes that name an element type to compute in or to give.
_NAMING: Final = ("dtype", "output_datatype", "output_dtype", "softmax_precision", "to")


def untyped(node: Node, model: Model) -> Refusal | None:
    """Return why a GPU has no arrays for what a node reads, writes or computes in, or None."""
    specs = [model.spec(name) for name in (*node.reads, *node.writes)]
    for what, text in (*((repr(s.name), s.type) for s in specs), *_inside(node.proto)):
        strange = [n for n in re.findall(r"\((\w+)\)", text) if n not in ELEMENT_TYPES]
        if strange or "map(" in text:
            return Refusal(
                "dtype",
                f"{node.op_type}: {what} is {text}, and a GPU's arrays are of "
                f"{', '.join(ELEMENT_TYPES)}",
            )
    return None


def _inside(node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Yield what a node's attributes and bodies say of element types: whose, and which."""
    for attribute in node.attribute:
        what = f"attribute {attribute.name!r} of {node.op_type}"
        if attribute.name in _NAMING and attribute.i in TensorProto.DataType.values():
            if attribute.i != TensorProto.UNDEFINED:
                yield what, _tensor_of(attribute.i)
        elif attribute.HasField("t"):
            yield what, _tensor_of(attribute.t.data_type)
        elif attribute.name.startswith("value_string"):
            yield what, "tensor(string)"
    for _, graph in bodies(node):
        for tensor in graph.initializer:
            yield repr(tensor.name), _tensor_of(tensor.data_type)
        for info in (*graph.input, *graph.output, *graph.value_info):
            yield repr(info.name), TensorSpec.from_proto(info).type
        for inner in graph.node:
            yield from _inside(inner)


def _tensor_of(number: int) -> str:
    return f"tensor({TensorProto.DataType.Name(number).lower()})"
