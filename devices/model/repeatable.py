"""Which nodes make the same of the same in every run."""

from __future__ import annotations

from typing import Final

import onnx

from devices.model.attributes import bodies
from devices.model.model import Model

_DRAWING: Final = frozenset(
    ["Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
     "RandomUniformLike"]
)  # fmt: skip
#: Domains whose other operators are known to be functions of their inputs.
_KNOWN: Final = frozenset(["", "ai.onnx", "ai.onnx.ml", "com.microsoft"])


def draws(node: onnx.NodeProto) -> bool:
    """Whether a node draws random numbers, itself or in a body."""
    trains = node.op_type == "Dropout" and any(node.input[2:])
    if not node.domain and (node.op_type in _DRAWING or trains):
        return True
    return any(draws(inner) for _, body in bodies(node) for inner in body.node)


def is_constant(model: Model) -> bool:
    """Whether a model is known to make the same in every run."""
    return (
        not model.inputs  # first: of a model not read yet, inputs are known
        and bool(model.nodes)
        and all(node.domain in _KNOWN and not draws(node.proto) for node in model.nodes)
    )
