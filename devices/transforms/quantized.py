"""Passes: quantised models compute in float32, whose products have a BLAS.

QuantizeLinear and DequantizeLinear that undo each other become ``hetero::FakeQuantize``, which
rounds floats to the values that the integers stand for; a Relu before it that its range implies
goes, and so does one of floats that are rounded so already.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from devices.interpreter.implementations import FUSED
from devices.kernels.quantize import RANGE
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node


def fuse_fake_quantize(model: Model) -> Model:
    """Return the model with pairs of quantisation and its inverse as one operator on floats."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "DequantizeLinear"):
            _fuse_pair(rewrite, i, node)
    return rewrite.apply()


def _fuse_pair(rewrite: Rewrite, i: int, back: Node) -> None:
    before = rewrite.producer(back.inputs[0])
    if before is None or not rewrite.is_op(before, "QuantizeLinear"):
        return
    node, nodes = rewrite.model.nodes[before], rewrite.model.nodes
    there, backs = _grid(rewrite, node), rewrite.readers(back.inputs[0])
    if there is None or rewrite.model.spec(node.inputs[0]).element_type != "float":
        return
    for other in backs:
        is_back = rewrite.is_op(other, "DequantizeLinear") and _grid(rewrite, nodes[other]) == there
        if not is_back or not (other == i or rewrite.is_free(nodes[other].outputs[0])):
            return
    if not backs:
        return
    scale, low, high = there
    parts, positions, x = [node, back], [before, i], node.inputs[0]
    for other in set(backs) - {i}:
        rewrite.remove(other)
        rewrite.rename(nodes[other].outputs[0], back.outputs[0])
    relu = rewrite.producer(x)
    if low == 0 and rewrite.is_op(relu, "Relu") and rewrite.sole_reader(x) == before:
        assert relu is not None
        first = nodes[relu]
        parts, positions, x = [first, *parts], [relu, *positions], first.inputs[0]
    attributes = {"scale": scale, "low": float(low), "high": float(high)}
    rewrite.replace(positions, fused_node("FakeQuantize", [x], back.outputs, parts, attributes))


#: Operators whose results are elements of their first input, or of any where it is Concat.
_MOVES: Final = (
    "Concat", "Expand", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Split",
    "Squeeze", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip


def quantize_once(model: Model) -> Model:
    """Return the model without FakeQuantize of what the same one has rounded already."""
    rewrite = Rewrite(model)
    grids: dict[str, tuple[Any, ...]] = {}
    for i, node in enumerate(model.nodes):
        if node.op_type == "FakeQuantize" and node.domain == FUSED:
            grid = tuple(node.attributes[key] for key in ("scale", "low", "high"))
            if grids.get(node.inputs[0]) == grid and rewrite.is_free(node.outputs[0]):
                rewrite.remove(i)
                rewrite.rename(node.outputs[0], node.inputs[0])
            grids[node.outputs[0]] = grid
        elif rewrite.is_op(i, *_MOVES):
            given = node.inputs if node.op_type == "Concat" else node.inputs[:1]
            of_inputs = {grids.get(name) for name in given}
            if len(of_inputs) == 1 and None not in of_inputs:
                outputs = node.outputs[:1] if node.op_type == "MaxPool" else node.outputs
                grids |= dict.fromkeys(outputs, of_inputs.pop())
    return rewrite.apply()


def _grid(rewrite: Rewrite, node: Node) -> tuple[float, int, int] | None:
    """Return the scale, and the least and greatest multiple of it, of one scale for all."""
    if set(node.attributes) - {"axis", "saturate"} or len(node.inputs) < 3:
        return None
    scale, zero = (rewrite.constant(name) for name in node.inputs[1:3])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    if scale.dtype != np.float32 or zero.dtype.name not in RANGE:
        return None
    low, high = (end - int(zero.reshape(())) for end in RANGE[zero.dtype.name])
    return float(scale.reshape(())), low, high
