"""Pass: quantised models compute in float32, whose products have a BLAS.

QuantizeLinear and DequantizeLinear that undo each other become ``hetero::FakeQuantize``, which
rounds floats to the values that the integers stand for; a Relu before it that its range implies
goes.
"""

from __future__ import annotations

import numpy as np

from hetero.devices.kernels.quantize import RANGE
from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite, fused_node


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
