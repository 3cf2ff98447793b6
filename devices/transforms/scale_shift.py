"""Pass: what scales and shifts channels becomes one operator, with the activation after it.

A `BatchNormalization` at inference, any `Mul` and `Add` by constants per channel that follow, and
an activation become ``hetero::ScaleShift``, which works through a tensor once.
"""

from __future__ import annotations

import numpy as np

from devices.model.model import Model
from devices.transforms.channel_affine import batchnorm_affine, channel_affine
from devices.transforms.conv_activation import activation_after
from devices.transforms.rewriting import Rewrite, fused_node


def fuse_scale_shift(model: Model) -> Model:
    """Return the model with batch normalisations, and what follows them, merged."""
    rewrite = Rewrite(model)
    for i in range(len(model.nodes)):
        if rewrite.is_op(i, "BatchNormalization"):
            _fuse(rewrite, i)
    return rewrite.apply()


def _fuse(rewrite: Rewrite, first: int) -> None:
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
    name, params = "", tuple[float, ...]()
    activation = activation_after(rewrite, value)
    if activation is not None:
        positions, name, given = activation
        params = tuple(map(float, given))
        parts += positions
        value = nodes[positions[-1]].outputs[0]
    node = nodes[first]
    # Parameters of half-width tensors stay wider, as the operator computes.
    dtype = x.dtype if x.dtype.itemsize >= 4 else np.dtype(np.float32)
    inputs = [
        node.inputs[0],
        rewrite.add_constant(f"{node.name}/scale", scale.astype(dtype)),
        rewrite.add_constant(f"{node.name}/shift", shift.astype(dtype)),
    ]
    attributes = {"activation": name, "activation_params": params}
    covered = [nodes[p] for p in parts]
    rewrite.replace(parts, fused_node("ScaleShift", inputs, [value], covered, attributes))
