"""Rows of the fault tables, and the refusal of the nodes that they match."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetero.devices.model.integer_ranges import Range
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import Dimension
from hetero.devices.plugin.support import Refusal


class NodeView(NamedTuple):
    """A node in its model, as the conditions of faults read it."""

    node: Node
    model: Model
    #: Proven ranges of the model's integer values.
    ranges: Mapping[str, Range] = {}
    #: Whether the user allows 32-bit arithmetic for all 64-bit integers.
    narrow: bool = False

    def input_name(self, position: int) -> str:
        """Return the name of an input; empty if the node does not have it."""
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def attribute(self, name: str, default: Any = 0) -> Any:
        """Return an attribute's value."""
        return self.node.attributes.get(name, default)

    def input_shape(self, position: int) -> tuple[Dimension, ...] | None:
        """Return an input's shape; None if its rank is unknown or the node does not have it."""
        return self.model.spec(self.input_name(position)).shape

    def input_producer(self, position: int) -> Node | None:
        """Return the node that computes an input; None for constants and inputs of the model."""
        return self.model.producer(self.input_name(position))

    def is_runtime_value(self, value: str) -> bool:
        """Return whether a value exists and is not a constant."""
        return bool(value) and value not in self.model.constants

    def element_type(self, value: str) -> str:
        """Return a value's element type."""
        return self.model.spec(value).element_type


@dataclass(frozen=True, slots=True)
class Fault:
    """A deviation of a runtime from ONNX: the operators, its description, and its condition."""

    #: Operators of `domain`, separated by spaces.
    operators: str
    #: A clause that completes "OpenVINO's Conv differs from ONNX's: ...".
    description: str
    #: Returns whether a node of these operators is affected.
    condition: Callable[[NodeView], Any] = lambda view: True
    domain: str = ""


def fault_refusal(vendor: str, faults: Iterable[Fault], view: NodeView) -> Refusal | None:
    """Return the refusal of a node that a vendor's runtime computes wrong; None if it is right."""
    operator = view.node.op_type
    for fault in faults:
        is_listed = operator in fault.operators.split() and fault.domain == view.node.domain
        if is_listed and fault.condition(view):
            return Refusal(
                "policy", f"{vendor}'s {operator} differs from ONNX's: {fault.description}"
            )
    return None
