"""Delegation: onnx's own evaluator runs rare operators, one node at a time, on the host."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import Any, Final

import onnx
from onnx.reference import ReferenceEvaluator

from hetero.devices.kernels import ALL, Kernel
from hetero.devices.model.model import Node

_TRAINING: Final = "ai.onnx.preview.training"
#: (domain, operator) -> the schema versions whose specification onnx.reference implements.
DELEGATED: Final[dict[tuple[str, str], frozenset[int]]] = {
    ("", "ImageDecoder"): frozenset({20}),
    ("", "RegexFullMatch"): frozenset({20}),
    ("", "StringConcat"): frozenset({20}),
    (_TRAINING, "Adagrad"): frozenset({1}),
    (_TRAINING, "Adam"): frozenset({1}),
    (_TRAINING, "Momentum"): frozenset({1}),
}
#: Optimizer -> number of its inputs for each updated tensor, of which all but the gradient are
#: outputs too.
_INPUTS_PER_TENSOR: Final = {"Adagrad": 3, "Adam": 4, "Momentum": 3}


def is_delegated(domain: str, op_type: str, opset: int) -> bool:
    """Tell whether onnx.reference implements the operator at this opset."""
    versions = DELEGATED.get((domain, op_type))
    if versions is None or not onnx.defs.has(op_type, opset, domain):
        return False
    return onnx.defs.get_schema(op_type, opset, domain).since_version in versions


def delegate(node: Node, opset: int) -> Kernel:
    """Return a kernel that runs a node without bodies, and its attributes, in onnx.reference."""
    if node.domain == _TRAINING:
        run = _optimizer(node, opset)
    else:
        run = _evaluator(node, opset, len(node.inputs), len(node.outputs))
    return Kernel(node.domain, node.op_type, opset, run, host=(ALL,))


def _evaluator(
    node: Node, opset: int, num_inputs: int, num_outputs: int
) -> Callable[..., tuple[Any, ...]]:
    """Return a function that runs a node with its first inputs in onnx.reference."""
    names = [f"input_{i}" if name else "" for i, name in enumerate(node.inputs[:num_inputs])]
    outputs = [f"output_{i}" for i in range(num_outputs)]
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

    return run


def _optimizer(node: Node, opset: int) -> Callable[..., tuple[Any, ...]]:
    """Return a function that updates each tensor on its own, in the type of the tensor.

    onnx.reference computes in the type of the step, and rounds several tensors to float32.
    """
    count = _INPUTS_PER_TENSOR[node.op_type]
    update = _evaluator(node, opset, 2 + count, count - 1)

    def run(xp: Any, rate: Any, step: Any, *states: Any) -> tuple[Any, ...]:
        tensors = states[: len(states) // count]
        results = [
            [
                value.astype(tensor.dtype)
                for value in update(xp, rate, step, *states[i :: len(tensors)])
            ]
            for i, tensor in enumerate(tensors)
        ]
        return tuple(chain.from_iterable(zip(*results, strict=True)))

    return run
