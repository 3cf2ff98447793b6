"""Base class of plugins that are a table of operators and Python functions."""

from __future__ import annotations

import difflib
import inspect
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Final

import onnx

from hetero.devices.errors import ArgumentError, KernelError, PluginLoadError
from hetero.devices.model.element_type import ELEMENT_TYPES, Type
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.program import ExecutedNode, Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from hetero.devices.plugin.support import Refusal

#: Computes a node's output (or a tuple of outputs) from its inputs; absent inputs are None.
#: Attributes are keyword-only parameters, with their ONNX names and defaults.
Operator = Callable[..., Any]


#: Types of indices, axes, shapes and sizes.
_INDEX_TYPES: Final = frozenset({"tensor(int64)", "tensor(int32)"})


@dataclass(frozen=True, slots=True)
class OperatorFunction:
    """A function in the table of an `OperatorPlugin` with its own opset and element types.

    Attributes
    ----------
    function : callable
        Computes the operator.
    since : int or None
        The first opset that defines the operator as the function computes it; None for the
        plugin's `since`.
    element_types : collection of str or None
        Supported element types of the data inputs and outputs; None for the plugin's.
    """

    function: Operator
    since: int | None = None
    element_types: Collection[str] | None = None


class OperatorPlugin(Plugin):
    """Base class of plugins that run a model node by node, with a Python function per operator.

    A function receives the node's inputs as positional arguments, None for absent ones, and the
    node's attributes as keyword-only arguments. A node with an attribute that is no keyword-only
    parameter of its function is refused.
    """

    #: Operator -> its function; or an `OperatorFunction`, or several of them with increasing
    #: `since`, of which the last one runs that is not newer than the model's opset.
    operators: ClassVar[Mapping[str, Operator | OperatorFunction | Sequence[OperatorFunction]]]
    #: The operators' domain; the standard domain is the empty string.
    domain: ClassVar[str] = ""
    #: The first opset that defines the operators as the functions compute them.
    since: ClassVar[int]
    #: Supported element types of the data inputs and outputs, by ONNX's, numpy's or OpenVINO's
    #: names, such as ``float``, ``float32`` or ``f32``. Inputs
    #: and outputs whose definition allows one type only, such as a shape, or integers only, such as
    #: indices, are always supported.
    element_types: ClassVar[Collection[str]]

    def __init__(self) -> None:
        super().__init__()
        for op_type in self.operators:
            self._check_functions(op_type)
        unknown_names = [n for n in sorted(self.operators) if not onnx.defs.has(n, self.domain)]
        if not unknown_names:
            return
        schemas = {s.name for s in onnx.defs.get_all_schemas() if s.domain == self.domain}
        for name in unknown_names if schemas else ():
            matches = difflib.get_close_matches(name, sorted(schemas), 3, 0.5)
            raise PluginLoadError(
                f"plugin {self.name}: expected operators of {self.domain or 'ai.onnx'} in its "
                f"table, got {name!r}; did you mean {' or '.join(matches) or 'another domain'}?"
            )

    def refuse(self, node: Node, model: Model, config: Config) -> Refusal | None:
        """Refuse nodes with an operator, opset, attribute or element type outside the table."""
        operator = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        if node.domain != self.domain or node.op_type not in self.operators:
            return Refusal(
                "no_kernel",
                f"{self.name} does not support {operator}; its operators are "
                f"{', '.join(sorted(self.operators))}",
            )
        opset = model.opset_imports.get(node.domain, 0)
        function = self._function(node.op_type, opset)
        if function is None:
            first = min(f.since or 0 for f in self._functions(node.op_type))
            return Refusal(
                "opset",
                f"{self.name} supports {operator} of opset {first} and newer, not opset {opset}",
            )
        parameters = _attributes(function.function)
        for attribute in node.proto.attribute:
            if attribute.name not in parameters:
                return Refusal(
                    "attribute",
                    f"{self.name} does not support attribute {attribute.name!r} of {operator}: its "
                    "function has no keyword-only parameter of that name (`lambda x, *, "
                    f"{attribute.name}=...: ...`)",
                )
        element_types = function.element_types or ()
        for value in _data_values(node, opset):
            spec = model.spec(value)
            if not spec.type and node.domain:
                continue  # ONNX infers no types for operators that it does not define
            if spec.element_type not in element_types:
                types = ", ".join(sorted(element_types))
                return Refusal("dtype", f"{self.name} supports {types}; {value!r} is {spec}")
        return None

    def _check_functions(self, op_type: str) -> None:
        """Check that each function of an operator has an opset and known element types."""
        where = f"plugin {self.name}, operator {op_type}"
        example = 'since = 7, element_types = ("float",)'
        try:
            functions = self._functions(op_type)
        except ArgumentError as error:
            raise PluginLoadError(f"{where}: element_types: {error}") from error
        for function in functions:
            if function.since is None or not function.element_types:
                missing = "since" if function.since is None else "element_types"
                raise PluginLoadError(
                    f"{where}: expected `since` and `element_types` in the class, got no "
                    f"`{missing}`; add them, such as {example}."
                )

    def _functions(self, op_type: str) -> tuple[OperatorFunction, ...]:
        """Return an operator's functions in order of `since`, with the plugin's defaults."""
        entry = self.operators[op_type]
        default_types: Collection[str] = getattr(self, "element_types", ())
        entries = entry if isinstance(entry, Sequence) else (entry,)
        functions = (e if isinstance(e, OperatorFunction) else OperatorFunction(e) for e in entries)
        return tuple(
            sorted(
                (
                    replace(
                        f,
                        since=getattr(self, "since", None) if f.since is None else f.since,
                        element_types=[
                            name if name in ELEMENT_TYPES else Type(name).value
                            for name in f.element_types or default_types
                        ],
                    )
                    for f in functions
                ),
                key=lambda f: f.since or 0,
            )
        )

    def _function(self, op_type: str, opset: int) -> OperatorFunction | None:
        """Return the newest function of an operator for an opset, or None."""
        functions = [f for f in self._functions(op_type) if (f.since or 0) <= opset]
        return functions[-1] if functions else None

    def compile(self, model: Model, config: Config) -> Program:
        """Return a program that runs the model node by node."""
        opset = model.opset_imports.get(self.domain, 0)
        functions = {
            op_type: function.function
            for op_type in self.operators
            if (function := self._function(op_type, opset)) is not None
        }
        return OperatorProgram(model, functions, self.name)


class OperatorProgram(Program):
    """Program that calls a Python function for each node.

    `operators` has a function for each operator of the model; `device` is the device's name in
    messages and in the runtime model.
    """

    def __init__(self, model: Model, operators: Mapping[str, Operator], device: str) -> None:
        self._model = model
        self._device = device
        self._calls = [(node, operators[node.op_type], node.attributes) for node in model.nodes]
        self._constants = {name: weight.array for name, weight in model.constants.items()}

    def run(self, inputs: Sequence[Value], context: RunContext) -> Sequence[Value]:
        """Compute the outputs node by node; KernelError if a function raises."""
        feeds = {port.name: value for port, value in zip(self._model.inputs, inputs, strict=True)}
        values = {**self._constants, **feeds, "": None}
        for node, operator, attributes in self._calls:
            context.check_cancelled()
            start = time.perf_counter()
            try:
                result = operator(*(values[name] for name in node.inputs), **attributes)
            except Exception as error:
                raise KernelError(
                    f"node {node.name!r} ({node.op_type}) on {self._device}: "
                    f"{type(error).__name__}: {error}. Check the node's inputs.",
                    node=node.name,
                    op_type=node.op_type,
                ) from error
            results = result if isinstance(result, tuple) else (result,)
            values |= {n: v for n, v in zip(node.outputs, results, strict=False) if n}
            if context.profile:
                context.record(node.name, time.perf_counter() - start)
        return [values[port.name] for port in self._model.outputs]

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return all nodes, in execution order."""
        return tuple(
            ExecutedNode(node.name, node.op_type, i, self._device, node.covers)
            for i, node in enumerate(self._model.nodes)
        )


def _data_values(node: Node, opset: int) -> list[str]:
    """Return the inputs and outputs of a node that may have several element types.

    Without a definition of the operator these are all of them.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
    except onnx.defs.SchemaError:
        return [*node.reads, *node.writes]
    types = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    values = []
    for names, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for i, name in enumerate(names):
            kind = formals[min(i, len(formals) - 1)].type_str if formals else ""
            allowed = types.get(kind, {kind})
            if name and len(allowed) > 1 and not allowed <= _INDEX_TYPES:
                values.append(name)
    return [*dict.fromkeys([*values, *node.captures])]


@cache
def _attributes(operator: Operator) -> frozenset[str]:
    """Return the names of a function's keyword-only parameters; none for builtins and ufuncs."""
    try:
        parameters = inspect.signature(operator).parameters.values()
    except ValueError:
        return frozenset()
    return frozenset(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
