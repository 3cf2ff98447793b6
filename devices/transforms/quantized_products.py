"""Passes: products of quantised tensors and constant weights stay products of integers.

They want `fast_integers`. QLinearConv and QLinearMatMul, a Conv, MatMul or Gemm between
DequantizeLinear and QuantizeLinear, and ConvInteger and MatMulInteger with what scales them, become
``hetero::QuantizedConv`` and ``hetero::QuantizedMatMul``; what only moves integers takes them as
they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple

import numpy as np
from onnx import TensorProto

from devices.cpu.fast.quantized import columns, pack, prepare_filters
from devices.cpu.integers import fast_integers
from devices.model.model import Model, Node
from devices.transforms.channel_affine import channel_affine
from devices.transforms.conv_activation import activation_after
from devices.transforms.dead_nodes import remove_dead_nodes
from devices.transforms.integer_products import scaled_product
from devices.transforms.quantized_moves import (
    TYPES,
    Grid,
    float_results,
    grid_of,
    integer_moves,
)
from devices.transforms.rewriting import Rewrite, fused_node

_QUANTISED: Final = (
    "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul",
)  # fmt: skip


class _Weights(NamedTuple):
    """Integers less their zero point, and a scale for each along an axis or for all."""

    integers: np.ndarray
    scale: np.ndarray


def keep_integers(model: Model) -> Model:
    """Return the model with quantised products of constant weights as products of integers."""
    if not any(node.op_type in _QUANTISED for node in model.nodes) or fast_integers() is None:
        return model
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "Conv", "MatMul", "Gemm"):
            _fuse_between(rewrite, i, node)
        elif rewrite.is_op(i, "QLinearConv", "QLinearMatMul"):
            _fuse_linear(rewrite, i, node)
        elif rewrite.is_op(i, "DynamicQuantizeLinear"):
            _fuse_dynamic(rewrite, i, node)
    found = remove_dead_nodes(rewrite.apply())
    return float_results(remove_dead_nodes(integer_moves(found)))


def _fuse_linear(rewrite: Rewrite, i: int, node: Node) -> None:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *bias = node.inputs
    at, to = grid_of(rewrite, (x_scale, x_zero)), grid_of(rewrite, (y_scale, y_zero))
    is_conv = node.op_type == "QLinearConv"
    weights = _weights(rewrite, (w, w_scale, w_zero), 0 if is_conv else 1)
    if at is None or to is None or weights is None:
        return
    added = np.zeros(1)
    if bias:
        given = rewrite.constant(bias[0])
        if given is None:
            return
        added = given * (at.scale * weights.scale)
    _replace(rewrite, [i], node, _known(rewrite, x, at), weights, added, to, to.ends)


def _fuse_between(rewrite: Rewrite, i: int, node: Node) -> None:
    """Replace a product of what DequantizeLinear makes, and the QuantizeLinear after it."""
    attributes = node.attributes
    if node.op_type == "Gemm" and (
        attributes.get("alpha", 1.0) != 1 or attributes.get("beta", 1.0) != 1
        or attributes.get("transA", 0)
    ):  # fmt: skip
        return
    is_rows = node.op_type == "Conv" or bool(attributes.get("transB", 0))
    left, right = (rewrite.producer(name) for name in node.inputs[:2])
    nodes = rewrite.model.nodes
    if left is None or right is None:
        return
    if not all(rewrite.is_op(at, "DequantizeLinear") for at in (left, right)):
        return
    at = grid_of(rewrite, nodes[left].inputs[1:], of=nodes[left].inputs[0])
    axis = nodes[right].attributes.get("axis", 1)
    weights = _weights(rewrite, nodes[right].inputs, 0 if is_rows else 1, axis)
    if at is None or weights is None:
        return
    if node.op_type == "Gemm" and is_rows:
        weights = _Weights(weights.integers.T, weights.scale)
    bias = (
        _bias(rewrite, node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else np.zeros(1)
    )
    count = weights.integers.shape[0 if node.op_type == "Conv" else -1]
    if bias is None or bias.size not in (1, count) or bias.shape[-1:] not in ((), (1,), (count,)):
        return
    then = _tail(rewrite, node.outputs[0], count if node.op_type == "Conv" else 0)
    after = rewrite.sole_reader(then.value)
    to = None
    if after is not None and rewrite.is_op(after, "QuantizeLinear"):
        to = grid_of(rewrite, nodes[after].inputs[1:])
    parts, (low, high) = [i, *then.parts], then.limits
    if to is not None and after is not None:
        parts.append(after)
        low, high = max(low / to.scale, to.ends[0]), min(high / to.scale, to.ends[1])
    weights, bias = then.applied(weights, bias.reshape(-1))
    _replace(
        rewrite,
        parts,
        node,
        _known(rewrite, nodes[left].inputs[0], at),
        weights,
        bias,
        to,
        (low, high),
    )


def _fuse_dynamic(rewrite: Rewrite, i: int, node: Node) -> None:
    """Replace products of what DynamicQuantizeLinear makes."""
    nodes = rewrite.model.nodes
    for at in rewrite.readers(node.outputs[0]):
        product = scaled_product(rewrite, at, node.outputs, nodes[at].op_type)
        if nodes[at].op_type not in ("MatMulInteger", "ConvInteger") or product is None:
            continue
        given = (rewrite.constant(name) for name in (product.scale, product.bias))
        scale, bias = (np.zeros(1) if a is None else a.reshape(-1).astype(float) for a in given)
        integers = product.weights.astype(np.int32)
        filters = integers.shape[0] if nodes[at].op_type == "ConvInteger" else 0
        then = _tail(rewrite, nodes[product.parts[-1]].outputs[0], filters)
        weights, bias = then.applied(_Weights(integers, scale), bias)
        parts = [*product.parts, *then.parts]
        _replace(rewrite, parts, nodes[at], node.outputs, weights, bias, None, then.limits)


def _known(rewrite: Rewrite, value: str, at: Grid) -> list[str]:
    """Return integers and what says where they stand, moved up by 128 if they are signed."""
    scale = rewrite.add_constant(f"{value}/scale", np.array(at.scale, np.float32))
    return [
        value,
        scale,
        rewrite.add_constant(f"{value}/zero", np.array(at.unsigned_zero, np.uint8)),
    ]


class _Tail(NamedTuple):
    """What follows a product: positions, the last value, factors, what is added, limits."""

    parts: list[int]
    value: str
    gain: np.ndarray
    shift: np.ndarray
    limits: tuple[float, float]

    def applied(self, weights: _Weights, bias: np.ndarray) -> tuple[_Weights, np.ndarray]:
        """Return weights and bias of the product that the factors and sums are part of."""
        scale = weights.scale * self.gain
        return weights._replace(scale=scale), bias * self.gain + self.shift


def _tail(rewrite: Rewrite, value: str, filters: int) -> _Tail:
    """Return the normalisation of as many channels and the limits that alone read a value."""
    nodes, parts = rewrite.model.nodes, list[int]()
    gain, shift, limits = np.ones(1), np.zeros(1), (-inf, inf)
    after = rewrite.sole_reader(value) if filters else None
    if after is not None:
        found = channel_affine(rewrite, after, value, filters, 4)
        if found is not None:
            (gain, shift), value = found, nodes[after].outputs[0]
            parts.append(after)
    activation = activation_after(rewrite, value)
    if activation is not None and activation[1] in ("Relu", "Clip"):
        positions, name, bounds = activation
        limits = (0.0, inf) if name == "Relu" else (float(bounds[0]), float(bounds[1]))
        parts += positions
        value = nodes[positions[-1]].outputs[0]
    return _Tail(parts, value, gain, shift, limits)


def _replace(
    rewrite: Rewrite, parts: Sequence[int], node: Node, left: Sequence[str], weights: _Weights,
    bias: np.ndarray, to: Grid | None, limits: tuple[float, float],
) -> None:  # fmt: skip
    """Replace the product and what follows it; `left` are integers, their scale and zero point."""
    integers, unit = weights.integers, 1.0 if to is None else to.scale
    attributes: dict[str, Any]
    if "Conv" in node.op_type:
        if integers.ndim != 4:
            return
        attributes = {a.name: a for a in node.proto.attribute if a.name != "kernel_shape"}
        group = node.attributes.get("group", 1)
        m, c = integers.shape[:2]
        dilations = node.attributes.get("dilations", (1, 1))
        if group < 1 or m % group or (c == 1 and m > group > 1) or len(dilations) != 2:
            return
        attributes |= {"kernel_shape": integers.shape[2:], "shape": (c * group, m)}
        name, packed = "QuantizedConv", prepare_filters(integers, group, dilations)
        sums = integers.reshape(m, -1).sum(1)
    else:
        if integers.ndim != 2:
            return
        m, group = integers.shape[1], 1
        name, packed = "QuantizedMatMul", pack(integers[None, None])
        attributes = {"shape": integers.shape}
        sums = integers.sum(0)
    alone = packed.ndim == 2
    per_column = (
        -sums.astype(np.int32),
        np.broadcast_to(weights.scale / unit, m).astype(np.float32),
        np.broadcast_to(bias / unit, m).astype(np.float32),
    )
    value = rewrite.model.nodes[parts[-1]].outputs[0]
    inputs = [*left, rewrite.add_constant(f"{value}/weights", packed)]
    for kind, array in zip(("start", "scale", "bias"), per_column, strict=True):
        inputs.append(
            rewrite.add_constant(f"{value}/{kind}", columns(array, 1 if alone else group))
        )
    attributes["to"] = TensorProto.FLOAT if to is None else TYPES[to.dtype]
    attributes["rounding"] = (*limits, 0.0, 0.0, 0.0, 0.0 if to is None else float(to.zero))
    covered = [rewrite.model.nodes[part] for part in parts]
    rewrite.replace(parts, fused_node(name, inputs, [value], covered, attributes))


def _weights(
    rewrite: Rewrite, given: Sequence[str], axis: int, declared: int | None = None
) -> _Weights | None:
    """Return constant weights whose scales are one or lie along an axis, which is `declared`."""
    w, scale, zero = [*given, ""][:3]
    integers, steps, shift = map(rewrite.constant, (w, scale, zero))
    if integers is None or steps is None or (zero and shift is None):
        return None
    if integers.dtype.name not in TYPES or steps.dtype != np.float32 or steps.ndim > 1:
        return None
    wide = integers.astype(np.int32)
    if steps.size > 1 and (axis if declared is None else declared) % wide.ndim != axis:
        return None
    if steps.size not in (1, wide.shape[axis]):
        return None
    if shift is not None:
        along = [1] * wide.ndim
        along[axis] = -1
        wide = wide - shift.reshape(along if shift.size > 1 else ()).astype(np.int32)
    return _Weights(wide, steps.reshape(-1).astype(np.float64))


def _bias(rewrite: Rewrite, name: str) -> np.ndarray | None:
    """Return a bias that is a constant, or that DequantizeLinear makes of one."""
    array, back = rewrite.constant(name), rewrite.producer(name)
    if array is not None:
        return array.astype(np.float64) if array.dtype == np.float32 else None
    if back is None or not rewrite.is_op(back, "DequantizeLinear"):
        return None
    given = [rewrite.constant(name) for name in rewrite.model.nodes[back].inputs]
    if any(array is None for array in given) or given[0].ndim != 1:  # type: ignore[union-attr]  # the first operand asks
        return None
    integers, scale, *zero = (array.astype(np.float64) for array in given if array is not None)
    return (integers - (zero[0] if zero else 0)) * scale
