"""Passes: products of integers and constant weights are products of floats.

1. Where activations are quantised in the run, DynamicQuantizeLinear and the MatMulInteger, Cast,
   Mul and Add after it become ``hetero::DynamicFakeQuantize`` and ``hetero::ScaledMatMul``, between
   which integers are floats; a ConvInteger and its Cast become a Conv.
2. Other MatMulInteger of constant weights become ``hetero::IntegerMatMul``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import onnx

from devices.kernels.quantize import exact_terms
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node

#: Weights from which on they are kept as integers: a quarter of the memory, for one part in thirty
#: of the time that their product takes.
_MANY: Final = 1 << 18


def fuse_dynamic_matmul(model: Model) -> Model:
    """Return the model with products of integers that one node quantises as one of floats."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "DynamicQuantizeLinear"):
            _fuse_dynamic(rewrite, i, node)
    return rewrite.apply()


def _stored(weights: np.ndarray) -> np.ndarray:
    """Return integers held in floats, or as integers if they are many."""
    if weights.size < _MANY:
        return weights
    return weights.astype(np.int8 if np.abs(weights).max() <= 127 else np.int16)


class _Product(NamedTuple):
    """A product and what follows it: positions, weights, their scale, a bias."""

    parts: tuple[int, ...]
    weights: np.ndarray
    scale: str
    bias: str


def _fuse_dynamic(rewrite: Rewrite, i: int, node: Node) -> None:
    integers, scale, zero_point = node.outputs
    nodes = rewrite.model.nodes
    readers = rewrite.readers(integers)
    found = [_scaled_product(rewrite, at, node.outputs) for at in readers]
    products = [product for product in found if product is not None]
    convolutions = [c for c in (_convolution(rewrite, at, node.outputs) for at in readers) if c]
    read = {at for product in (*products, *convolutions) for at in product.parts}
    if not readers or not read.issuperset(readers) or not all(map(rewrite.is_free, node.outputs)):
        return
    if not read.issuperset(rewrite.readers(zero_point)):
        return
    floats = rewrite.new_value(f"{integers}/floats", like=node.inputs[0])
    rewrite.replace(
        (i,), fused_node("DynamicFakeQuantize", node.inputs, [floats, scale], [node], {})
    )
    for convolution in convolutions:
        at, cast = convolution.parts
        proto = onnx.NodeProto()
        proto.CopyFrom(nodes[at].proto)
        proto.op_type = "Conv"
        name = rewrite.add_constant(f"{nodes[at].inputs[1]}/floats", convolution.weights)
        proto.input[:], proto.output[:] = [floats, name], nodes[cast].outputs
        covers = (*nodes[at].covers, *nodes[cast].covers)
        rewrite.replace(convolution.parts, Node.from_proto(proto, covers=covers))
    for product in products:
        parts = [nodes[at] for at in product.parts]
        name = rewrite.add_constant(f"{parts[0].inputs[1]}/floats", _stored(product.weights))
        inputs = [floats, name, scale, product.scale, product.bias]
        attributes = {"terms": exact_terms(product.weights)}
        rewrite.replace(
            product.parts,
            fused_node("ScaledMatMul", inputs, parts[-1].outputs, parts, attributes),
        )


def _scaled_product(rewrite: Rewrite, at: int, quantised: Sequence[str]) -> _Product | None:
    """Return the product at a position, if its left side and the zero point are `quantised`."""
    integers, scale, zero_point = quantised
    nodes = rewrite.model.nodes
    if not rewrite.is_op(at, "MatMulInteger"):
        return None
    if nodes[at].inputs[0] != integers or nodes[at].inputs[2:3] != (zero_point,):
        return None
    weights = _weights(rewrite, nodes[at])
    cast = _after(rewrite, at, "Cast")
    if weights is None or cast is None or nodes[cast].attributes.get("to") != 1:
        return None
    scaled = _after(rewrite, cast, "Mul")
    if scaled is None:
        return None
    factor = rewrite.producer(_other(nodes[scaled], nodes[cast].outputs[0]))
    if factor is None or _after(rewrite, factor, "Mul") != scaled:
        return None
    own = _other(nodes[factor], scale)
    if not rewrite.is_op(factor, "Mul") or scale not in nodes[factor].inputs:
        return None
    if not _is_row(rewrite.constant(own), weights):
        return None
    parts = (at, cast, factor, scaled)
    added = _after(rewrite, scaled, "Add")
    if added is not None:
        other = _other(nodes[added], nodes[scaled].outputs[0])
        if _is_row(rewrite.constant(other), weights):
            return _Product((*parts, added), weights, own, other)
    return _Product(parts, weights, own, "")


def _convolution(rewrite: Rewrite, at: int, quantised: Sequence[str]) -> _Product | None:
    """Return a convolution and its Cast to float, if its left side and zero are `quantised`."""
    node, (integers, _, zero_point) = rewrite.model.nodes[at], quantised
    cast = _after(rewrite, at, "Cast")
    if not rewrite.is_op(at, "ConvInteger") or cast is None:
        return None
    weights = _weights(rewrite, node)
    reads = node.inputs[0] == integers and node.inputs[2:3] == (zero_point,)
    if weights is None or not reads or rewrite.model.nodes[cast].attributes.get("to") != 1:
        return None
    return _Product((at, cast), weights, "", "")


def _after(rewrite: Rewrite, at: int, op_type: str) -> int | None:
    """Return the position of an operator that alone reads what the node at a position makes."""
    after = rewrite.sole_reader(rewrite.model.nodes[at].outputs[0])
    return after if rewrite.is_op(after, op_type) else None


def _other(node: Node, value: str) -> str:
    """Return the operand beside `value`; the empty string if it is both."""
    return next((name for name in node.inputs if name != value), "")


def _is_row(array: np.ndarray | None, weights: np.ndarray) -> bool:
    """Tell whether an array is of float32, one for each column of the weights or for all."""
    if array is None or array.dtype != np.float32:
        return False
    return array.ndim <= 1 and array.size in (1, weights.shape[-1])


def _weights(rewrite: Rewrite, node: Node) -> np.ndarray | None:
    """Return the constant right side of a product, less its zero point, as floats."""
    _, b, _, b_zero = [*node.inputs, "", ""][:4]
    weights, zero = rewrite.constant(b), rewrite.constant(b_zero)
    if weights is None or weights.ndim < 2 or (b_zero and zero is None):
        return None
    floats = weights.astype(np.float32)
    if zero is not None:
        per_filter = node.op_type == "ConvInteger" and zero.size > 1
        floats -= zero.reshape((-1,) + (1,) * (floats.ndim - 1) if per_filter else zero.shape)
    return floats


def fuse_integer_matmul(model: Model) -> Model:
    """Return the model with integer products of constant weights, and their casts, as floats'."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "MatMulInteger"):
            _fuse_integers(rewrite, i, node)
    return rewrite.apply()


def _fuse_integers(rewrite: Rewrite, i: int, node: Node) -> None:
    floats = _weights(rewrite, node)
    if floats is None:
        return
    parts: Sequence[Node] = [node]
    positions, to_float = [i], 0
    after = rewrite.sole_reader(node.outputs[0])
    terms = exact_terms(floats)
    if after is not None and rewrite.is_op(after, "Cast") and terms >= floats.shape[-2]:
        cast = rewrite.model.nodes[after]
        if cast.attributes.get("to") == 1:  # what follows wants floats
            parts, positions, to_float = [node, cast], [i, after], 1
    a, b, a_zero = [*node.inputs, ""][:3]
    inputs = [a, rewrite.add_constant(f"{b}/floats", floats), a_zero]
    attributes = {"terms": terms, "to_float": to_float}
    outputs = parts[-1].outputs
    rewrite.replace(positions, fused_node("IntegerMatMul", inputs, outputs, parts, attributes))
