"""Pass: computes quantized models in float32, for which numpy has a fast matrix product.

It replaces a pair of QuantizeLinear and DequantizeLinear with the same parameters by
``hetero::FakeQuantize``, which rounds floats to the values that the integers represent. It also
removes a preceding Relu if the quantized range excludes negative values.
"""

from __future__ import annotations

import numpy as np

from hetero.devices.kernels.quantize import RANGE
from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite, fused_node


def fuse_fake_quantize(model: Model) -> Model:
    """Return the model with each quantize-dequantize pair fused into FakeQuantize."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "DequantizeLinear"):
            _fuse_pair(rewrite, i, node)
    return rewrite.apply()


def _fuse_pair(rewrite: Rewrite, i: int, dequantize: Node) -> None:
    quantize_position = rewrite.producer(dequantize.inputs[0])
    if quantize_position is None or not rewrite.is_op(quantize_position, "QuantizeLinear"):
        return
    nodes = rewrite.model.nodes
    quantize = nodes[quantize_position]
    grid, readers = _grid(rewrite, quantize), rewrite.readers(dequantize.inputs[0])
    if grid is None or rewrite.model.spec(quantize.inputs[0]).element_type != "float":
        return
    for reader in readers:
        is_inverse = (
            rewrite.is_op(reader, "DequantizeLinear") and _grid(rewrite, nodes[reader]) == grid
        )
        if not is_inverse or not (reader == i or rewrite.can_rename(nodes[reader].outputs[0])):
            return
    if not readers:
        return
    scale, low, high = grid
    parts, positions, x = [quantize, dequantize], [quantize_position, i], quantize.inputs[0]
    for reader in set(readers) - {i}:
        rewrite.remove(reader)
        rewrite.rename(nodes[reader].outputs[0], dequantize.outputs[0])
    relu = rewrite.producer(x)
    if low == 0 and rewrite.is_op(relu, "Relu") and rewrite.sole_reader(x) == quantize_position:
        assert relu is not None
        parts, positions, x = [nodes[relu], *parts], [relu, *positions], nodes[relu].inputs[0]
    attributes = {"scale": scale, "low": float(low), "high": float(high)}
    node = fused_node("FakeQuantize", [x], dequantize.outputs, parts, attributes)
    rewrite.replace(positions, node)


def _grid(rewrite: Rewrite, node: Node) -> tuple[float, int, int] | None:
    """Return the scale of a quantization, and its minimum and maximum as multiples of the scale.

    Returns None unless the node has one scale and one zero point for all elements.
    """
    if set(node.attributes) - {"axis", "saturate"} or len(node.inputs) < 3:
        return None
    scale, zero = (rewrite.constant(name) for name in node.inputs[1:3])
    if scale is None or zero is None or scale.size != 1 or zero.size != 1:
        return None
    if scale.dtype != np.float32 or zero.dtype.name not in RANGE:
        return None
    low, high = (end - int(zero.reshape(())) for end in RANGE[zero.dtype.name])
    return float(scale.reshape(())), low, high
