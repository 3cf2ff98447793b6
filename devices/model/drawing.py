"""Which nodes draw random numbers."""

from __future__ import annotations

from typing import Final

import onnx

from devices.model.attributes import bodies

_DRAWING: Final = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"]
)  # fmt: skip


def draws(node: onnx.NodeProto) -> bool:
    """Whether a node draws random numbers, itself or in a body."""
    trains = node.op_type == "Dropout" and any(node.input[2:])
    if not node.domain and (node.op_type in _DRAWING or trains):
        return True
    return any(draws(inner) for _, body in bodies(node) for inner in body.node)
