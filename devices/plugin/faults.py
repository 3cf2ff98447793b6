"""Where a vendor's runtime departs from ONNX's definitions though it takes a node: rows of a table.

What a row names is refused, so that another device gives the right answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from hetero.devices.model.integer_ranges import Range
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import Dimension
from hetero.devices.plugin.support import Refusal


class Use(NamedTuple):
    """A node where it stands, and what is proven of the model's integers."""

    node: Node
    model: Model
    ranges: Mapping[str, Range] = {}
    #: Whether integers may be computed in 32 bits whatever they are.
    narrow: bool = False

    def given(self, position: int) -> str:
        """Return the name of an input, empty where it is left out."""
        return self.node.inputs[position] if position < len(self.node.inputs) else ""

    def get(self, attribute: str, default: Any = 0) -> Any:
        """Return an attribute's value."""
        return self.node.attributes.get(attribute, default)

    def shape(self, position: int) -> tuple[Dimension, ...] | None:
        """Return an input's shape; None where it is left out, or its rank is open."""
        return self.model.spec(self.given(position)).shape

    def maker(self, position: int) -> Node | None:
        """Return the node that makes an input."""
        return self.model.maker(self.given(position))

    def is_computed(self, value: str) -> bool:
        """Whether a value is there and no constant."""
        return bool(value) and value not in self.model.constants

    def element_type(self, value: str) -> str:
        """Return a value's element type."""
        return self.model.spec(value).element_type


@dataclass(frozen=True, slots=True)
class Fault:
    """One departure: operators of a domain, separated by blanks, and what is wrong, for people."""

    operators: str
    how: str
    #: Whether a node of theirs has it.
    when: Callable[[Use], Any] = lambda use: True
    domain: str = ""


def departure(vendor: str, faults: Iterable[Fault], use: Use) -> Refusal | None:
    """Return how a vendor's runtime would compute a node wrong, by its table, or None."""
    operator = use.node.op_type
    for fault in faults:
        known = operator in fault.operators.split() and fault.domain == use.node.domain
        if known and fault.when(use):
            return Refusal("policy", f"{vendor}'s {operator} differs from ONNX's: {fault.how}")
    return None
