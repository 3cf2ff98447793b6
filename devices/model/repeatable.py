"""Which nodes make the same of the same in every run."""

from __future__ import annotations

from collections.abc import Collection
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


def is_constant(model: Model, given: Collection[str] = ()) -> bool:
    """Whether a model is known to make the same in every run; `given`: inputs that are the same."""
    return (
        all(spec.name in given for spec in model.inputs)  # first: known before the model is read
        and bool(model.nodes)
        and all(node.domain in _KNOWN and not draws(node.proto) for node in model.nodes)
    )
