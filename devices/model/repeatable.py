"""Which nodes make the same of the same in every run."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from devices.model.drawing import draws
from devices.model.model import Model

#: Domains whose other operators are known to be functions of their inputs.
_KNOWN: Final = frozenset(["", "ai.onnx", "ai.onnx.ml", "com.microsoft"])


def is_constant(model: Model, given: Collection[str] = ()) -> bool:
    """Whether a model is known to make the same in every run; `given`: inputs that are the same."""
    return (
        all(spec.name in given for spec in model.inputs)  # first: known before the model is read
        and bool(model.nodes)
        and all(node.domain in _KNOWN and not draws(node.proto) for node in model.nodes)
    )
