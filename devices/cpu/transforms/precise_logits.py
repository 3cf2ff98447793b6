"""Pass: a classifier made of a 1x1 convolution sums in double precision.

``Softmax(GlobalAveragePool(activation(Conv(x, W, B))))`` makes probabilities of differences between
sums. Where the sums are large and close, single precision decides by the order of summation, which
in some BLAS libraries differs from row to row of a product. There, the last convolution, a small
part of the model, gets its weights in double.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from devices.cpu.transforms.rewriting import Rewrite, fused_node, with_inputs
from devices.model import Model, Node

_PASSED_ON = ("Flatten", "GlobalAveragePool", "Relu", "Reshape", "Squeeze")


def sum_logits_precisely(model: Model) -> Model:
    """Return the model with the convolution before a last Softmax in double precision."""
    if rows_sum_alike():
        return model
    rewrite = Rewrite(model)
    outputs = {port.name for port in model.outputs}
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "Softmax") and node.outputs[0] in outputs:
            at = _convolution_before(rewrite, node.inputs[0])
            if at is not None:
                _widen(rewrite, at, model.nodes[at])
    return rewrite.apply()


@cache
def rows_sum_alike() -> bool:
    """Tell whether a matrix product gives equal rows equal sums here, by trying one."""
    weights = np.full((100, 512), 0.0123, np.float32)
    columns = np.tile(np.linspace(1e6, 1.1e6, 49, dtype=np.float32), (512, 1))
    product = weights @ columns
    return bool((product == product[0]).all())


def _convolution_before(rewrite: Rewrite, value: str) -> int | None:
    pooled = False
    while True:
        at = rewrite.producer(value)
        if at is None or rewrite.sole_reader(value) is None:
            return None
        node = rewrite.model.nodes[at]
        if node.op_type in ("Conv", "FusedConv"):
            return at if pooled else None
        if not rewrite.is_op(at, *_PASSED_ON):
            return None
        pooled |= node.op_type == "GlobalAveragePool"
        value = node.inputs[0]


def _widen(rewrite: Rewrite, at: int, conv: Node) -> None:
    weights = rewrite.constant(conv.inputs[1])
    if weights is None or weights.dtype != np.float32 or set(weights.shape[2:]) != {1}:
        return
    wide = rewrite.add_constant(f"{conv.name}/double", weights.astype(np.float64))
    inputs = [conv.inputs[0], wide, *conv.inputs[2:]]
    if conv.op_type == "FusedConv":
        rewrite.replace((at,), with_inputs(conv, inputs, conv.outputs))
        return
    attributes = {attribute.name: attribute for attribute in conv.proto.attribute}
    rewrite.replace((at,), fused_node("FusedConv", inputs, conv.outputs, [conv], attributes))
