"""Pattern: nodes that multiply each channel by a constant and add one to it."""

from __future__ import annotations

import numpy as np

from devices.model.model import Node
from devices.transforms.rewriting import Rewrite


def channel_affine(
    rewrite: Rewrite, at: int, value: str, channels: int, rank: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return what the node multiplies each channel of `value` by and adds to it, or None.

    Both are float64, (channels). `at` is the position of a node that reads `value`, whose second
    axis has `channels` elements of its `rank` axes.
    """
    node = rewrite.model.nodes[at]
    if rewrite.is_op(at, "BatchNormalization") and node.inputs[0] == value:
        found = batchnorm_affine(rewrite, node)
        return found if found and found[0].shape == (channels,) else None
    if not rewrite.is_op(at, "Mul", "Add"):
        return None
    (other,) = (name for name in node.inputs if name != value)
    factor = rewrite.constant(other)
    if factor is None or factor.dtype.kind != "f":
        return None
    per_channel = (channels, *(1,) * (rank - 2))
    if factor.size != 1 and factor.shape not in (per_channel, (1, *per_channel)):
        return None
    if factor.ndim > rank:
        return None
    full = np.broadcast_to(factor.reshape(-1), (channels,)).astype(np.float64)
    if node.op_type == "Mul":
        return full, np.zeros(channels)
    return np.ones(channels), full


def batchnorm_affine(rewrite: Rewrite, node: Node) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a batch normalisation's factor and summand per channel, float64, or None.

    None where its parameters are not constants, or it trains.
    """
    attributes = node.attributes
    parameters = [rewrite.constant(name) for name in node.inputs[1:5]]
    if (
        attributes.get("training_mode", 0)
        or len(node.writes) > 1
        or not attributes.get("spatial", 1)
    ):
        return None
    if len(parameters) < 4 or any(p is None or p.dtype.kind != "f" for p in parameters):
        return None
    scale, shift, mean, variance = (np.asarray(p, np.float64) for p in parameters)
    if scale.ndim != 1 or not scale.shape == shift.shape == mean.shape == variance.shape:
        return None
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return factor, shift - mean * factor
