"""Rows of the fault tables with their proofs, and the refusal of the nodes that they match."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import parser

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
class Proof:
    """A small model that shows a fault, with inputs on which the runtime is wrong."""

    #: The graph in ONNX's text format.
    graph: str
    #: Values of inputs; other inputs are random.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: Sizes of symbolic dimensions.
    sizes: Mapping[str, int] = field(default_factory=dict)
    opset: int = 17

    def model(self) -> onnx.ModelProto:
        """Return the model of the graph."""
        imports = f'"": {self.opset}, "ai.onnx.ml": 3'
        return parser.parse_model(f"<ir_version: 10, opset_import: [{imports}]> proof {self.graph}")

    def inputs(self) -> dict[str, np.ndarray]:
        """Return the model's inputs by name; random numbers have a fixed seed."""
        rng = np.random.default_rng(0)
        inputs = {}
        for port in self.model().graph.input:
            tensor = port.type.tensor_type
            dims = tensor.shape.dim
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            if port.name in self.values:
                inputs[port.name] = np.array(self.values[port.name], dtype)
            else:
                shape = [self.sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
                inputs[port.name] = (rng.standard_normal(shape) * 5).astype(dtype)
        return inputs


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
    #: A model that shows the fault on the tested version of the runtime.
    proof: Proof | None = None
    #: Name of a case of ONNX's backend suite that shows the fault, if no smaller model does.
    suite_case: str = ""


class FaultTable:
    """The known faults of a vendor's runtime, indexed by operator."""

    def __init__(self, vendor: str, faults: Sequence[Fault]) -> None:
        self.vendor = vendor
        self.faults = tuple(faults)
        self._by_operator: dict[tuple[str, str], list[Fault]] = {}
        for fault in faults:
            for operator in fault.operators.split():
                self._by_operator.setdefault((fault.domain, operator), []).append(fault)

    def refusal(self, view: NodeView) -> Refusal | None:
        """Return the refusal of a node that the runtime computes wrong; None if it is right."""
        operator = view.node.op_type
        for fault in self._by_operator.get((view.node.domain, operator), ()):
            if fault.condition(view):
                return Refusal(
                    "policy", f"{self.vendor}'s {operator} differs from ONNX's: {fault.description}"
                )
        return None
