"""Delegation: onnx's own evaluator runs rare operators, one node at a time, on the host."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Final

import onnx
from onnx.reference import ReferenceEvaluator

from hetero.devices.kernels import ALL, Kernel
from hetero.devices.model.model import Node

#: (domain, operator) -> the schema versions whose specification onnx.reference implements.
DELEGATED: Final[dict[tuple[str, str], frozenset[int]]] = {
    ("", "ImageDecoder"): frozenset({20}),
    ("", "RegexFullMatch"): frozenset({20}),
    ("", "StringConcat"): frozenset({20}),
    ("ai.onnx.preview.training", "Adagrad"): frozenset({1}),
    ("ai.onnx.preview.training", "Adam"): frozenset({1}),
    ("ai.onnx.preview.training", "Momentum"): frozenset({1}),
}


def is_delegated(domain: str, op_type: str, opset: int) -> bool:
    """Tell whether onnx.reference implements the operator at this opset."""
    versions = DELEGATED.get((domain, op_type))
    if versions is None or not onnx.defs.has(op_type, opset, domain):
        return False
    return onnx.defs.get_schema(op_type, opset, domain).since_version in versions


def delegate(node: Node, opset: int) -> Kernel:
    """Return a kernel that runs a node without bodies, and its attributes, in onnx.reference."""
    names = [f"input_{i}" if name else "" for i, name in enumerate(node.inputs)]
    outputs = [f"output_{i}" for i in range(len(node.outputs))]
    proto = deepcopy(node.proto)
    proto.input[:] = names
    proto.output[:] = outputs
    untyped = onnx.helper.make_empty_tensor_value_info
    graph = onnx.helper.make_graph(
        [proto], "delegated", [untyped(name) for name in names if name], [*map(untyped, outputs)]
    )
    imports = [onnx.helper.make_opsetid(node.domain, opset)]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports))

    def run(xp: Any, *inputs: Any) -> tuple[Any, ...]:
        feeds = {n: v for n, v in zip(names, inputs, strict=False) if n and v is not None}
        return tuple(evaluator.run(None, feeds))

    return Kernel(node.domain, node.op_type, opset, run, host=(ALL,))
