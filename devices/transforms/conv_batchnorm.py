"""Pass: a batch normalisation, a product or a sum after a convolution goes into its weights.

1. ``BatchNormalization(Conv(x, W, B))`` with constant parameters, at inference.
2. ``Mul(Conv(x, W, B), s)`` with a constant per channel, or one number.
3. ``Add(Conv(x, W, B), t)`` likewise.
"""

from __future__ import annotations

import numpy as np

from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite, with_inputs


def fold_batchnorm_into_conv(model: Model) -> Model:
    """Return the model with what follows a convolution channel by channel merged into it."""
    while True:  # several in a row merge one after another
        rewrite = Rewrite(model)
        for i, node in enumerate(model.nodes):
            if rewrite.is_op(i, "Conv"):
                _fold(rewrite, i, node)
        changed = rewrite.apply()
        if changed is model:
            return model
        model = changed


def _fold(rewrite: Rewrite, i: int, conv: Node) -> None:
    weights = rewrite.constant(conv.inputs[1])
    has_bias = len(conv.inputs) > 2 and bool(conv.inputs[2])
    bias = rewrite.constant(conv.inputs[2]) if has_bias else None
    if weights is None or weights.dtype.kind != "f" or (has_bias and bias is None):
        return
    after = rewrite.sole_reader(conv.outputs[0])
    if after is None or (bias is not None and bias.shape != weights.shape[:1]):
        return
    found = _channel_affine(rewrite, after, conv.outputs[0], weights.shape[0], weights.ndim)
    if found is None:
        return
    scale, shift = found
    merged = shift if bias is None else bias * scale + shift
    per_channel = scale.reshape(-1, *(1,) * (weights.ndim - 1))
    w = conv.inputs[1]
    if not np.array_equal(scale, np.ones_like(scale)):
        w = rewrite.add_constant(
            f"{conv.name}/weights", (weights * per_channel).astype(weights.dtype)
        )
    b = rewrite.add_constant(f"{conv.name}/bias", merged.astype(weights.dtype))
    node = rewrite.model.nodes[after]
    rewrite.replace((i, after), with_inputs(conv, [conv.inputs[0], w, b], node.outputs[:1], node))


def _channel_affine(
    rewrite: Rewrite, at: int, value: str, channels: int, rank: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what a reader of `value` multiplies each channel by and adds, in float64, or None."""
    node = rewrite.model.nodes[at]
    if rewrite.is_op(at, "BatchNormalization") and node.inputs[0] == value:
        found = _batchnorm_affine(rewrite, node)
        return found if found and found[0].shape == (channels,) else None
    if not rewrite.is_op(at, "Mul", "Add"):
        return None
    (other,) = (name for name in node.inputs if name != value)
    factor = rewrite.constant(other)
    if factor is None or factor.dtype.kind != "f":
        return None
    per_channel = (channels, *(1,) * (rank - 2))
    is_one = factor.size == 1 and factor.ndim <= rank
    if not is_one and factor.shape not in (per_channel, (1, *per_channel)):
        return None
    full = np.broadcast_to(factor.reshape(-1), (channels,)).astype(np.float64)
    return (full, np.zeros(channels)) if node.op_type == "Mul" else (np.ones(channels), full)


def _batchnorm_affine(rewrite: Rewrite, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the factor and summand per channel; None for parameters that vary, or in training."""
    attributes = node.attributes
    parameters = [rewrite.constant(name) for name in node.inputs[1:5]]
    trains = attributes.get("training_mode") or len(node.writes) > 1
    if trains or not attributes.get("spatial", 1):
        return None
    if len(parameters) < 4 or any(p is None or p.dtype.kind != "f" for p in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    if scale.ndim != 1 or not scale.shape == shift.shape == mean.shape == variance.shape:
        return None
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return factor, shift - mean * factor
