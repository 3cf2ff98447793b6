"""Pass: operators that ONNX Runtime's quantiser makes become what they mean.

QLinearAdd and its like, of domain ``com.microsoft``, dequantise what they are given, do what an
operator of the standard does, and quantise the result. QLinearMatMul of two values that are made
in the run does too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from onnx import helper

from devices.model.extension import named_extensions
from devices.model.model import Constant, Model, Node

_DOMAIN: Final = "com.microsoft"
#: Operator -> the standard's, and how many quantised inputs it has; 0: any number, after the
#: result's scale and zero point.
_OPERATORS: Final = {
    "QGemm": ("Gemm", 2), "QLinearAdd": ("Add", 2), "QLinearMul": ("Mul", 2),
    "QLinearAveragePool": ("AveragePool", 1), "QLinearConcat": ("Concat", 0),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", 1), "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearMatMul": ("MatMul", 2), "QLinearSigmoid": ("Sigmoid", 1),
    "QLinearSoftmax": ("Softmax", 1),
}  # fmt: skip
#: Since then Softmax is of one axis, and scales may lie along one.
_PER_AXIS: Final = 13


def standard_quantized(model: Model) -> Model:
    """Return the model with quantised operators of ONNX Runtime's as operators of the standard."""
    taken = {port.name for port in model.inputs} | set(model.constants) | set(model.producers)
    extensions, constants = named_extensions(model), dict(model.constants)
    nodes: list[Node] = []
    for node in model.nodes:
        is_own = node.domain == _DOMAIN and (_DOMAIN, node.op_type) not in extensions
        if node.op_type in _OPERATORS and (is_own or not node.domain) and _is_usual(node, model):
            nodes += _expanded(node, taken, constants)
        else:
            nodes.append(node)
    if len(nodes) == len(model.nodes):
        return model
    return model.replace(nodes=nodes, constants=constants)


def _is_usual(node: Node, model: Model) -> bool:
    """Tell whether attributes, and what a bias counts in, are such that a standard one has them."""
    attributes, opset = node.attributes, model.opset_imports.get("", 0)
    if node.op_type == "QLinearSoftmax":
        return bool((attributes.get("opset", 0) < _PER_AXIS) == (opset < _PER_AXIS))
    if node.op_type == "QLinearMatMul":
        _, x, _, w, *scales = (model.constants.get(name) for name in node.inputs[:7])
        one_each = all(s is not None and s.array.size == 1 for s in (x, scales[0], scales[2]))
        return w is None and one_each
    if node.op_type == "QGemm":
        scales = [model.constants.get(name) for name in (node.inputs[1], node.inputs[4])]
        return opset >= _PER_AXIS and None not in scales
    return not attributes.get("channels_last", 0)


def _expanded(node: Node, taken: set[str], constants: dict[str, Constant]) -> Iterator[Node]:
    op_type, count = _OPERATORS[node.op_type]
    given, to, axes = list(node.inputs), list(node.inputs[:2]), dict[int, int]()
    triples = [given[i : i + 3] for i in range(0 if count else 2, 3 * count or len(given), 3)]
    if count:
        to = given[3 * count :]
    if op_type == "Gemm":
        bias, *to = [*to, ""]
        axes = {1: 1 - node.attributes.get("transB", 0), 2: 0}
        triples += [[bias, _bias_scale(given, taken, constants)]] if bias else []
    to = [name for name in to if name]
    floats = [_free(f"{node.name}/{name}", taken) for name, *_ in triples]
    for i, (quantised, wide) in enumerate(zip(triples, floats, strict=True)):
        along = {"axis": axes[i]} if i in axes else {}
        yield _node("DequantizeLinear", quantised, wide, node, **along)
    made = _free(f"{node.name}/floats", taken) if to else node.outputs[0]
    own = {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
    yield _node(op_type, floats, made, node, **own)
    if to:
        yield _node("QuantizeLinear", [made, *to], node.outputs[0], node)


def _bias_scale(given: Sequence[str], taken: set[str], constants: dict[str, Constant]) -> str:
    """Return a constant that is what QGemm's bias counts in."""
    name = _free(f"{given[6]}/scale", taken)
    array = np.asarray(constants[given[1]].array * constants[given[4]].array)
    array.setflags(write=False)
    constants[name] = Constant(name, array)
    return name


def _node(op_type: str, inputs: Sequence[str], output: str, of: Node, **attributes: Any) -> Node:
    kept = [name for name in inputs if name]
    proto = helper.make_node(op_type, kept, [output], f"{output}/{op_type}", **attributes)
    return Node.from_proto(proto, covers=of.covers)


def _free(name: str, taken: set[str]) -> str:
    """Return the name, changed where it is taken; it is taken from then on."""
    while name in taken:
        name += "_"
    taken.add(name)
    return name
