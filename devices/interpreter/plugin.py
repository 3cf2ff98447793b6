"""What devices that interpret have in common: what they run, and what they say of it."""

from __future__ import annotations

from typing import Final

from hetero.devices.interpreter.backend import ArrayBackend
from hetero.devices.interpreter.implementations import Scope, find_implementation
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.properties import Config, Property
from hetero.devices.plugin.support import Refusal

EXTENSIONS: Final = Property(
    "EXTENSIONS",
    tuple,
    (),
    True,
    "Custom operators that a model may import: Core lists those added to it.",
    shapes_result=True,
)


class InterpreterPlugin(Plugin):
    """A device that runs every operator that has a kernel, a function body or a delegate."""

    #: What its kernels compute with.
    backend: ArrayBackend

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return why no kernel, function body or delegate runs the node, or None."""
        found = find_implementation(node, Scope.of_model(model, self.backend))
        return found if isinstance(found, Refusal) else _meaningless(node, model)

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Say which nodes are delegated, and which run as the body of a function."""
        found = find_implementation(node, Scope.of_model(model, self.backend))
        if isinstance(found, Refusal) or found.kind not in ("delegate", "function"):
            return None
        return found.label


def _meaningless(node: Node, model: Model) -> Refusal | None:
    """Refuse element types that ONNX allows an operator, though they cannot be computed with."""
    if node.domain or node.op_type not in ("Col2Im", "GridSample"):
        return None
    kind = model.spec(node.inputs[0]).element_type
    if node.op_type == "Col2Im" and kind == "string":
        return Refusal("dtype", "Col2Im adds up elements, and strings have no sum")
    nearest = node.attributes.get("mode", "linear") == "nearest"
    if node.op_type == "GridSample" and kind in ("string", "bool") and not nearest:
        return Refusal("dtype", f"GridSample: {kind} has no values between two pixels")
    return None
