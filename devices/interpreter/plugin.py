"""Common base of the plugins whose devices interpret models: queries and their notes."""

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
    "Custom operators that a model may import; Core sets it to those that were added to it.",
    shapes_result=True,
)


class InterpreterPlugin(Plugin):
    """A device that runs every operator that has a kernel, a function body or a delegate."""

    backend: ArrayBackend

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Return a refusal if no kernel, function body or delegate runs the node."""
        implementation = find_implementation(node, Scope.of_model(model, self.backend))
        if isinstance(implementation, Refusal):
            return implementation
        return _refuse_element_type(node, model)

    def note(self, node: Node, model: Model, config: Config) -> str | None:
        """Name the implementation of a node that is delegated or runs as a function's body."""
        implementation = find_implementation(node, Scope.of_model(model, self.backend))
        if isinstance(implementation, Refusal):
            return None
        return implementation.label if implementation.kind in ("delegate", "function") else None


def _refuse_element_type(node: Node, model: Model) -> Refusal | None:
    """Refuse element types that an operator's schema allows but its definition cannot compute."""
    if node.domain or node.op_type not in ("Col2Im", "GridSample"):
        return None
    kind = model.spec(node.inputs[0]).element_type
    if node.op_type == "Col2Im" and kind == "string":
        return Refusal("dtype", "Col2Im adds elements, and strings have no sum")
    nearest = node.attributes.get("mode", "linear") == "nearest"
    if node.op_type == "GridSample" and kind in ("string", "bool") and not nearest:
        return Refusal("dtype", f"GridSample interpolates, and {kind} has no values in between")
    return None
