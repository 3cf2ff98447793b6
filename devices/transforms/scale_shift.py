"""Pass: a batch normalisation takes over what scales and shifts channels after it.

At inference it is a factor and a summand per channel, and so are `Mul` and `Add` by constants per
channel: together they are one that has nothing to normalise by.
"""

from __future__ import annotations

import numpy as np

from devices.model.model import Model
from devices.transforms.channel_affine import batchnorm_affine, channel_affine
from devices.transforms.rewriting import Rewrite, fused_node


def fold_scale_shift(model: Model) -> Model:
    """Return the model with products and sums after batch normalisations merged into them."""
    rewrite = Rewrite(model)
    for i in range(len(model.nodes)):
        if rewrite.is_op(i, "BatchNormalization"):
            _fold(rewrite, i)
    return rewrite.apply()


def _fold(rewrite: Rewrite, first: int) -> None:
    nodes, model = rewrite.model.nodes, rewrite.model
    found = batchnorm_affine(rewrite, nodes[first])
    x = model.spec(nodes[first].inputs[0])
    if found is None or x.shape is None or x.dtype is None or len(x.shape) < 2:
        return
    scale, shift = found
    parts, value = [first], nodes[first].outputs[0]
    while (after := rewrite.sole_reader(value)) is not None:
        more = channel_affine(rewrite, after, value, len(scale), len(x.shape))
        if more is None:
            break
        scale, shift = scale * more[0], shift * more[0] + more[1]
        parts.append(after)
        value = nodes[after].outputs[0]
    if len(parts) == 1:
        return
    # Parameters of half-width tensors stay wider, as the operator computes.
    dtype = x.dtype if x.dtype.itemsize >= 4 else np.dtype(np.float32)
    parameters = {
        "scale": scale, "shift": shift, "mean": np.zeros(len(scale)), "var": np.ones(len(scale))
    }  # fmt: skip
    inputs = [nodes[first].inputs[0]]
    for name, array in parameters.items():
        inputs.append(rewrite.add_constant(f"{nodes[first].name}/{name}", array.astype(dtype)))
    covered = [nodes[p] for p in parts]
    fused = fused_node("BatchNormalization", inputs, [value], covered, {"epsilon": 0.0})
    rewrite.replace(parts, fused)
