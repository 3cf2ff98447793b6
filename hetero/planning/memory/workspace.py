"""Workspace of operators: the memory that a kernel uses while it runs, beside its values."""

from __future__ import annotations

import math

from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.planning.cost.estimation import value_nbytes


def workspace_nbytes(model: Model, node: Node, traits: MemoryTraits) -> int:
    """Estimate the bytes of a node's temporary arrays, from its operator and shapes."""
    if traits.overwrites_inputs or node.domain or not node.inputs:
        return 0  # such devices compute in tiles
    output = model.spec(node.writes[0]) if node.writes else None
    if output is None:
        return 0
    if node.op_type in ("Conv", "ConvInteger", "QLinearConv"):
        weight = model.spec(node.inputs[3 if node.op_type == "QLinearConv" else 1])
        # One column for each output position: the patch of the input that it reads (im2col).
        shape = [d for d in weight.shape or () if isinstance(d, int)]
        filters = shape[0] if shape else 1
        return value_nbytes(output) // max(1, filters) * math.prod(shape[1:])
    if node.op_type in ("Softmax", "LogSoftmax", "LayerNormalization", "Gelu", "Erf"):
        return value_nbytes(output)
    return 0
