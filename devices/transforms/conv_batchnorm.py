"""Pass: a batch normalisation, a product or a sum after a convolution goes into its weights.

1. ``BatchNormalization(Conv(x, W, B))`` with constant parameters, at inference.
2. ``Mul(Conv(x, W, B), s)`` with a constant per channel, or one number.
3. ``Add(Conv(x, W, B), t)`` likewise.
"""

from __future__ import annotations

import numpy as np

from devices.model.model import Model, Node
from devices.transforms.channel_affine import channel_affine
from devices.transforms.rewriting import Rewrite, with_inputs


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
    found = channel_affine(rewrite, after, conv.outputs[0], weights.shape[0], weights.ndim)
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
