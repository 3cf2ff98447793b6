"""Pass: quantised operators become what they mean: dequantise, compute in floats, quantise.

These are QLinearConv and QLinearMatMul of the standard, where scales are constants, and of domain
``com.microsoft`` QLinearAdd and the others that ONNX Runtime's quantiser writes. Constants are
dequantised here, so that weights are floats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from onnx import helper

from devices.kernels.quantize import RANGE
from devices.model.extension import named_extensions
from devices.model.free_names import FreeNames
from devices.model.model import Constant, Model, Node

_DOMAIN: Final = "com.microsoft"
#: Operator of the standard, or of ONNX Runtime's -> what it does in floats, and how many quantised
#: inputs it has; 0: any number, after the result's scale and zero point.
_STANDARD: Final = {"QLinearConv": ("Conv", 2), "QLinearMatMul": ("MatMul", 2)}
_OTHERS: Final = {
    "QGemm": ("Gemm", 2), "QLinearAdd": ("Add", 2), "QLinearMul": ("Mul", 2),
    "QLinearAveragePool": ("AveragePool", 1), "QLinearConcat": ("Concat", 0),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1), "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearSigmoid": ("Sigmoid", 1), "QLinearSoftmax": ("Softmax", 1),
}  # fmt: skip
#: Since then Softmax is of one axis, and scales may lie along one.
_PER_AXIS: Final = 13


def standard_quantized(model: Model) -> Model:
    """Return the model with quantised operators as floats' between two quantisations."""
    extensions, lowering = named_extensions(model), _Lowering(model)
    nodes: list[Node] = []
    for node in model.nodes:
        known = {"": _STANDARD, _DOMAIN: _OTHERS}.get(node.domain, {})
        if node.op_type not in known or (node.domain, node.op_type) in extensions:
            nodes.append(node)
        elif lowering.fits(node):
            nodes += lowering.lowered(node, *known[node.op_type])
        else:
            nodes.append(node)
    if len(nodes) == len(model.nodes):
        return model
    return model.replace(nodes=nodes, constants=lowering.constants)


class _Lowering:
    """What nodes become, and the constants that they add to a model's."""

    def __init__(self, model: Model) -> None:
        self.constants = dict(model.constants)
        self._names = FreeNames.of_values(model)
        self._opset = model.opset_imports.get("", 0)

    def fits(self, node: Node) -> bool:
        """Tell whether the standard has the node's attributes and the forms of its scales."""
        attributes, is_new = node.attributes, self._opset >= _PER_AXIS
        if node.op_type == "QLinearSoftmax":
            return bool((attributes.get("opset", 0) >= _PER_AXIS) == is_new)
        if node.op_type not in ("QLinearConv", "QLinearMatMul", "QGemm"):
            return not attributes.get("channels_last", 0)
        _, x_scale, _, *right = (self._array(name) for name in node.inputs[:6])
        bias = self._bias(node)
        to = [self._array(name) for name in node.inputs[6:] if name and name != bias]
        if any(array is None or array.size != 1 for array in (x_scale, *to)):
            return False
        w, scale, zero = right
        if scale is None or (bias and self._array(bias) is None):
            return False
        if w is None or zero is None:
            one_axis = scale.size == 1 or (node.op_type == "QGemm" and is_new)
            return one_axis and node.op_type != "QLinearConv"
        by_column = scale.size > 1 and node.op_type == "QLinearMatMul"
        return w.dtype.name in RANGE and w.ndim >= 2 and not (by_column and w.ndim > 2)

    def lowered(self, node: Node, op_type: str, count: int) -> Iterator[Node]:
        """Yield the nodes that do what a node does."""
        given, to = list(node.inputs), list(node.inputs[:2])
        bias = self._bias(node)
        if count:
            to = [name for name in given[3 * count :] if name and name != bias]
        quantised = given[: 3 * count] if count else given[2:]
        axes = {"Conv": 0, "MatMul": 1, "Gemm": 1 - node.attributes.get("transB", 0)}
        floats = []
        for i in range(0, len(quantised), 3):
            name, made = self._floats(node, quantised[i : i + 3], axes.get(op_type, 1))
            floats.append(name)
            yield from made
        if bias:
            floats.append(self._bias_floats(node, bias))
        output = self._names.make(f"{node.name}/floats") if to else node.outputs[0]
        own = {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
        yield _node(op_type, floats, output, node, node.name, **own)
        if to:
            yield _node("QuantizeLinear", [output, *to], node.outputs[0], node)

    def _array(self, name: str) -> np.ndarray | None:
        constant = self.constants.get(name)
        return None if constant is None else constant.array

    def _bias(self, node: Node) -> str:
        """Return the name of the bias; the empty string if there is none."""
        at = {"QLinearConv": 8, "QGemm": 6}.get(node.op_type, len(node.inputs))
        return node.inputs[at] if at < len(node.inputs) else ""

    def _floats(self, node: Node, triple: Sequence[str], axis: int) -> tuple[str, list[Node]]:
        """Return what integers, their scale and zero point stand for, and the node that says so."""
        name = self._names.make(f"{node.name}/{triple[0]}")
        arrays = [self._array(part) for part in triple if part]
        if any(array is None for array in arrays):
            scale = self._array(triple[1])
            along: dict[str, Any] = {"axis": axis} if scale is not None and scale.size > 1 else {}
            return name, [_node("DequantizeLinear", triple, name, node, **along)]
        integers, *rest = (array for array in arrays if array is not None)
        along_axis = [1] * integers.ndim
        along_axis[axis : axis + 1] = [-1]
        scale, *zero = (a.reshape(along_axis if a.size > 1 else ()) for a in rest)
        wide = integers.astype(np.float32)
        if zero:
            wide -= zero[0].astype(np.float32)
        return self._add(name, wide * scale), []

    def _bias_floats(self, node: Node, bias: str) -> str:
        """Return a bias that counts in the product of the scales of what is multiplied."""
        integers, x, w = (self.constants[node.inputs[i] if i else bias].array for i in (0, 1, 4))
        unit = x.reshape(()) * w.reshape(-1) * np.float32(node.attributes.get("alpha", 1))
        name = self._names.make(f"{node.name}/{bias}")
        return self._add(name, integers.astype(np.float32) * unit)

    def _add(self, name: str, array: np.ndarray) -> str:
        array.setflags(write=False)
        self.constants[name] = Constant(name, array)
        return name


def _node(
    op_type: str, inputs: Sequence[str], output: str, of: Node, name: str = "", **attributes: Any
) -> Node:
    kept = [name for name in inputs if name]
    proto = helper.make_node(op_type, kept, [output], name or f"{output}/{op_type}", **attributes)
    return Node.from_proto(proto, covers=of.covers)
