"""Pass: the sum after a matrix product goes into it.

``Add(MatMul(a, b), c)`` with constant `c`, a row or a number, becomes ``hetero::FusedMatMul``.
"""

from __future__ import annotations

from devices.model.model import Model
from devices.transforms.rewriting import Rewrite, fused_node


def fuse_matmul_add(model: Model) -> Model:
    """Return the model with biases added by the products themselves."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if not rewrite.is_op(i, "MatMul"):
            continue
        after = rewrite.sole_reader(node.outputs[0])
        if not rewrite.is_op(after, "Add") or after is None:
            continue
        (bias,) = (name for name in model.nodes[after].inputs if name != node.outputs[0])
        array, weights = rewrite.constant(bias), rewrite.constant(node.inputs[1])
        # A bias of more axes than the product could make the sum larger than the product.
        if array is None or weights is None or array.ndim > 1 or weights.ndim < 2:
            continue
        if array.size not in (1, weights.shape[-1]):
            continue
        inputs, parts = [*node.inputs, bias], (node, model.nodes[after])
        rewrite.replace(
            (i, after), fused_node("FusedMatMul", inputs, model.nodes[after].outputs, parts, {})
        )
    return rewrite.apply()
