"""Pass: scale, shift and Relu before a 1x1 convolution become a maximum; the rest goes into it.

With s > 0, ``Relu(s * x + t) = s * max(x, -t / s) + t``. The factor belongs into the weights of a
convolution that reads it, channel by channel, and ``W t`` into its bias. A kernel with padding
would see zeros where this needs t, so only 1x1 kernels without padding do.
"""

from __future__ import annotations

import numpy as np

from devices.interpreter.implementations import FUSED
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node, with_inputs

#: Least factor: smaller ones make of -t / s numbers that cancel badly.
_LEAST = 1e-4


def move_scale_into_conv(model: Model) -> Model:
    """Return the model with such factors and summands in the convolutions' weights."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if node.domain == FUSED and node.op_type == "ScaleShift":
            after = rewrite.sole_reader(node.outputs[0])
            if after is not None and rewrite.is_op(after, "Conv"):
                _move(rewrite, i, node, after, model.nodes[after])
    return rewrite.apply()


def _move(rewrite: Rewrite, i: int, affine: Node, after: int, conv: Node) -> None:
    scale, shift = (rewrite.constant(name) for name in affine.inputs[1:3])
    weights = rewrite.constant(conv.inputs[1])
    bias_name = conv.inputs[2] if len(conv.inputs) > 2 else ""
    bias = rewrite.constant(bias_name) if bias_name else None
    attributes = conv.attributes
    if scale is None or shift is None or weights is None or (bias_name and bias is None):
        return
    if scale.dtype != weights.dtype or affine.attributes.get("activation") != "Relu":
        return
    if scale.min(initial=1) < _LEAST:
        return
    padded = any(attributes.get("pads", ())) or attributes.get("auto_pad", "NOTSET") != "NOTSET"
    if padded or set(weights.shape[2:]) != {1} or attributes.get("group", 1) != 1:
        return
    per_channel = (-1, *(1,) * (weights.ndim - 2))
    least = (-shift.astype(np.float64) / scale).astype(scale.dtype).reshape(per_channel)
    added = weights.reshape(len(weights), -1).astype(np.float64) @ shift
    inputs = [
        affine.outputs[0],
        rewrite.add_constant(f"{conv.name}/weights", weights * scale.reshape(per_channel)),
        rewrite.add_constant(
            f"{conv.name}/bias", (added if bias is None else added + bias).astype(weights.dtype)
        ),
    ]
    bound = rewrite.add_constant(f"{affine.name}/least", least)
    maximum = fused_node("Max", [affine.inputs[0], bound], affine.outputs, [affine], {})
    rewrite.replace((i,), maximum)
    rewrite.replace((after,), with_inputs(conv, inputs, conv.outputs))
