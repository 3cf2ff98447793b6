"""A plugin that is a table: what computes each operator, and which element types."""

from __future__ import annotations

import difflib
import inspect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import onnx

from hetero.devices.errors import KernelError, PluginLoadError
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.support import Refusal

#: Computes a node's output (a tuple, where it has several) from its inputs, absent ones None;
#: attributes are its keyword-only parameters, under their ONNX names with their ONNX defaults.
Operator = Callable[..., Any]


class OperatorPlugin(Plugin):
    """Base of plugins that run a model node by node, each with a function of its arrays."""

    #: Operator -> what computes it.
    operators: ClassVar[Mapping[str, Operator]]
    #: The operators' domain; the standard one is the empty string.
    domain: ClassVar[str] = ""
    #: The operator set from which on the operators mean what the functions compute.
    since: ClassVar[int]
    #: What they compute in: names as in ``tensor(float)``, of every input and output.
    element_types: ClassVar[Collection[str]]

    def __init__(self) -> None:
        super().__init__()
        known = {s.name for s in onnx.defs.get_all_schemas() if s.domain == self.domain}
        for name in sorted(self.operators.keys() - known) if known else ():
            near = difflib.get_close_matches(name, sorted(known), 3, 0.5)
            raise PluginLoadError(
                f"plugin {self.name}: its table has {name!r}, which is not an operator of "
                f"{self.domain or 'ai.onnx'}; did you mean {' or '.join(near) or 'another domain'}?"
            )

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Refuse other operators, older operator sets, other attributes and element types."""
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if node.domain != self.domain or node.op_type not in self.operators:
            there = ", ".join(sorted(self.operators))
            return Refusal("no_kernel", f"{self.name} has no {operator}; it has {there}")
        opset = model.opset_imports.get(node.domain, 0)
        if opset < self.since:
            return Refusal(
                "opset", f"{self.name} runs operator sets from {self.since} on; this is {opset}"
            )
        known = _attributes(self.operators[node.op_type])
        for attribute in node.proto.attribute:
            if attribute.name not in known:
                return Refusal(
                    "attribute", f"{self.name} runs {operator} without {attribute.name!r}"
                )
        for value in (*node.reads, *node.writes):
            spec = model.spec(value)
            if not spec.type and node.domain:
                continue  # ONNX infers no types for operators that it does not define
            if spec.element_type not in self.element_types:
                types = ", ".join(sorted(self.element_types))
                return Refusal("dtype", f"{self.name} computes in {types}; {value!r} is {spec}")
        return None

    def compile(self, model: Model, config: Config) -> Program:
        """Return a program that runs the model node by node."""
        return OperatorProgram(model, self.operators, self.name)


class OperatorProgram(Program):
    """A model run node by node.

    `operators` has a function for each operator of it; `device` names what runs it in messages and
    in the runtime model.
    """

    def __init__(self, model: Model, operators: Mapping[str, Operator], device: str) -> None:
        self._model = model
        self._device = device
        self._calls = [(node, operators[node.op_type], node.attributes) for node in model.nodes]
        self._constants = {name: weight.array for name, weight in model.constants.items()}

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs, one node after the other; KernelError if a function raises."""
        given = {port.name: value for port, value in zip(self._model.inputs, inputs, strict=True)}
        values = {**self._constants, **given, "": None}
        for node, operator, attributes in self._calls:
            context.check_cancelled()
            start = time.perf_counter()
            try:
                result = operator(*(values[name] for name in node.inputs), **attributes)
            except Exception as error:
                raise KernelError(
                    f"node {node.name!r} ({node.op_type}) on {self._device}: "
                    f"{type(error).__name__}: {error}. Check what feeds the node.",
                    node=node.name,
                    op_type=node.op_type,
                ) from error
            results = result if isinstance(result, tuple) else (result,)
            values |= {n: v for n, v in zip(node.outputs, results, strict=False) if n}
            if context.profile:
                context.record(node.name, time.perf_counter() - start)
        return [values[port.name] for port in self._model.outputs]

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return every node, in order."""
        return tuple(
            ExecutedNode(node.name, node.op_type, i, self._device, node.covers)
            for i, node in enumerate(self._model.nodes)
        )


@cache
def _attributes(operator: Operator) -> frozenset[str]:
    """Return the attributes that a function takes; builtins and numpy's own take none."""
    try:
        parameters = inspect.signature(operator).parameters.values()
    except ValueError:
        return frozenset()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
