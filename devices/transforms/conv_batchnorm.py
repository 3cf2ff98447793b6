"""Pass: folds a batch normalization, product or sum into the weights of the preceding convolution.

It matches these patterns:

1. ``BatchNormalization(Conv(x, W, B))`` with constant parameters, in inference mode.
2. ``Mul(Conv(x, W, B), s)`` with one constant per channel, or one for all.
3. ``Add(Conv(x, W, B), t)`` with one constant per channel, or one for all.
"""

from __future__ import annotations

import numpy as np

from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite, with_inputs


def fold_batchnorm_into_conv(model: Model) -> Model:
    """Return the model with per-channel scales and shifts folded into convolutions."""
    while True:  # repeated for several foldable nodes in a row
        rewrite = Rewrite(model)
        for i, node in enumerate(model.nodes):
            if rewrite.is_op(i, "Conv"):
                _fold(rewrite, i, node)
        new_model = rewrite.apply()
        if new_model is model:
            return model
        model = new_model


def _fold(rewrite: Rewrite, i: int, conv: Node) -> None:
    weights = rewrite.constant(conv.inputs[1])
    has_bias = len(conv.inputs) > 2 and bool(conv.inputs[2])
    bias = rewrite.constant(conv.inputs[2]) if has_bias else None
    if weights is None or weights.dtype.kind != "f" or (has_bias and bias is None):
        return
    reader = rewrite.sole_reader(conv.outputs[0])
    if reader is None or (bias is not None and bias.shape != weights.shape[:1]):
        return
    affine = _channel_affine(rewrite, reader, conv.outputs[0], weights.shape[0], weights.ndim)
    if affine is None:
        return
    scale, shift = affine
    new_bias = shift if bias is None else bias * scale + shift
    per_channel = scale.reshape(-1, *(1,) * (weights.ndim - 1))
    w = conv.inputs[1]
    if not np.array_equal(scale, np.ones_like(scale)):
        w = rewrite.add_constant(
            f"{conv.name}/weights", (weights * per_channel).astype(weights.dtype)
        )
    b = rewrite.add_constant(f"{conv.name}/bias", new_bias.astype(weights.dtype))
    node = rewrite.model.nodes[reader]
    rewrite.replace((i, reader), with_inputs(conv, [conv.inputs[0], w, b], node.outputs[:1], node))


def _channel_affine(
    rewrite: Rewrite, position: int, value: str, channels: int, rank: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and shift per channel, in float64, of a node that reads `value`, or None."""
    node = rewrite.model.nodes[position]
    if rewrite.is_op(position, "BatchNormalization") and node.inputs[0] == value:
        affine = _batchnorm_affine(rewrite, node)
        return affine if affine and affine[0].shape == (channels,) else None
    if not rewrite.is_op(position, "Mul", "Add"):
        return None
    (other,) = (name for name in node.inputs if name != value)
    operand = rewrite.constant(other)
    if operand is None or operand.dtype.kind != "f":
        return None
    channel_shape = (channels, *(1,) * (rank - 2))
    is_scalar = operand.size == 1 and operand.ndim <= rank
    if not is_scalar and operand.shape not in (channel_shape, (1, *channel_shape)):
        return None
    per_channel = np.broadcast_to(operand.reshape(-1), (channels,)).astype(np.float64)
    if node.op_type == "Mul":
        return per_channel, np.zeros(channels)
    return np.ones(channels), per_channel


def _batchnorm_affine(rewrite: Rewrite, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return scale and shift per channel; None in training mode or without constant parameters."""
    attributes = node.attributes
    parameters = [rewrite.constant(name) for name in node.inputs[1:5]]
    is_training = attributes.get("training_mode") or len(node.writes) > 1
    if is_training or not attributes.get("spatial", 1):
        return None
    if len(parameters) < 4 or any(p is None or p.dtype.kind != "f" for p in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    if scale.ndim != 1 or not scale.shape == shift.shape == mean.shape == variance.shape:
        return None
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return factor, shift - mean * factor
