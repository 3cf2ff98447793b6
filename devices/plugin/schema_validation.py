"""Validation of nodes against ONNX's operator schemas: types, input counts and attributes.

Every device refuses a node that violates the schema of its operator, with the same message.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import onnx
from onnx.defs import OpSchema

from hetero.devices.errors import ModelError
from hetero.devices.model.attributes import bodies, with_bodies
from hetero.devices.model.functions import FunctionKey, function_key, function_opsets, instantiate
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec, type_string
from hetero.devices.model.type_inference import infer_types
from hetero.devices.plugin.support import Refusal

_Option = OpSchema.FormalParameterOption
_Opsets = Mapping[str, int]
#: Value name -> type string; unknown types are absent or empty.
_Types = Mapping[str, str]


def schema_violations(model: Model) -> dict[str, Refusal]:
    """Return the nodes of the main graph that violate their operator's schema, with refusals.

    Subgraphs are validated too, and the model's functions with the types of each call. Operators
    that ONNX does not define are valid, and unknown types match every type.
    """
    validator = _Validator(model.header)
    specs = model.specs  # a submodel has the types of the complete model
    types = {
        name: specs[name].type
        for node in model.nodes
        for name in (*node.reads, *node.writes)
        if name in specs
    }
    refusals = {}
    for node in model.nodes:
        if refusal := validator.check_node(node, model.opset_imports, types):
            refusals[node.name] = Refusal(
                refusal.code, f"{refusal.message}. The model is invalid on every device: correct it"
            )
    return refusals


class _Validator:
    """Validates the nodes of one model; equal calls of a function are validated once."""

    def __init__(self, header: onnx.ModelProto) -> None:
        self._ir_version = header.ir_version
        self._functions: dict[FunctionKey, onnx.FunctionProto] = {
            (f.domain, f.name, f.overload): f for f in header.functions
        }
        self._calls: dict[tuple[object, ...], Refusal | None] = {}

    def check_node(self, node: Node, opsets: _Opsets, types: _Types) -> Refusal | None:
        """Return the schema violation of a node, or None."""
        if self._functions and (function := self._functions.get(function_key(node))):
            return self._check_call(node, function, types)
        opset = opsets.get(node.domain)
        if opset is None:
            return None
        proto = node.proto
        inputs, outputs = (
            tuple([types.get(name, "") if name else None for name in names])
            for names in (node.inputs, node.outputs)
        )
        attributes = tuple([(a.name, a.type) for a in proto.attribute])
        refusal = check_operator(node.domain, node.op_type, opset, inputs, outputs, attributes)
        if refusal or not any(True for _ in bodies(proto)):
            return refusal
        shift = int(node.op_type == "Scan" and opset < 9)  # the first input has sequence lengths
        if problem := _body_port_counts(node, shift):
            return Refusal("attribute", problem)
        if problem := _body_input_types(node, shift, types):
            return Refusal("dtype", problem)
        outer = {name: types.get(name, "") for name in node.reads}
        (typed_node,) = self._infer([proto], opsets, outer).node
        for name, graph in bodies(typed_node):
            if inner := self._check_graph(graph, opsets, outer):
                return Refusal(inner.code, f"in {name} of {node.op_type}: {inner.message}")
        return None

    def _check_call(
        self, node: Node, function: onnx.FunctionProto, types: _Types
    ) -> Refusal | None:
        """Check the body of a function with the types and attributes of a call."""
        input_types = tuple(types.get(name, "") for name in node.inputs)
        attributes = tuple(a.SerializeToString(deterministic=True) for a in node.proto.attribute)
        key = (function_key(node), input_types, attributes)
        if key not in self._calls:
            self._calls[key] = None  # ends a recursion; devices refuse recursive functions
            outer = dict(zip(function.input, input_types, strict=False))
            opsets = function_opsets(function)
            graph = self._infer(instantiate(function, node.proto), opsets, outer)
            if inner := self._check_graph(graph, opsets, outer):
                name = f"{function.domain}::{function.name}"
                self._calls[key] = Refusal(
                    inner.code, f"in the body of function {name}: {inner.message}"
                )
        return self._calls[key]

    def _check_graph(
        self, graph: onnx.GraphProto, opsets: _Opsets, outer: _Types
    ) -> Refusal | None:
        """Return the first violation in a typed graph; `outer` are the types of outer values."""
        types = dict(outer)
        for info in (*graph.input, *graph.value_info, *graph.output):
            types[info.name] = type_string(info.type)
        for tensor in graph.initializer:
            number = onnx.TensorProto.DataType.Name(tensor.data_type)
            types[tensor.name] = f"tensor({number.lower()})"
        results = (self.check_node(Node.from_proto(proto), opsets, types) for proto in graph.node)
        return next((refusal for refusal in results if refusal), None)

    def _infer(
        self, nodes: Sequence[onnx.NodeProto], opsets: _Opsets, types: _Types
    ) -> onnx.GraphProto:
        """Return `nodes` as a graph with inferred types; `types` are those of its inputs."""
        proto = onnx.ModelProto(ir_version=self._ir_version)
        for domain, version in opsets.items():
            proto.opset_import.add(domain=domain, version=version)
        proto.functions.extend(self._reachable_functions(nodes))
        proto.graph.node.extend(nodes)
        proto.graph.input.extend(
            TensorSpec(name, kind).to_proto() for name, kind in types.items() if kind
        )
        try:
            return infer_types(proto)
        except ModelError:  # without types; `Model.specs` or the device reports the error
            return proto.graph

    def _reachable_functions(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.FunctionProto]:
        """Yield the functions that `nodes` call, directly or indirectly."""
        stack = list(nodes) if self._functions else []
        seen: set[FunctionKey] = set()
        while stack:
            for node in with_bodies(stack.pop()):
                key = function_key(Node.from_proto(node))
                if key in self._functions and key not in seen:
                    seen.add(key)
                    yield self._functions[key]
                    stack += self._functions[key].node


@lru_cache(maxsize=20_000)
def check_operator(
    domain: str,
    op_type: str,
    opset: int,
    inputs: tuple[str | None, ...],
    outputs: tuple[str | None, ...],
    attributes: tuple[tuple[str, int], ...],
) -> Refusal | None:
    """Return the violation of an operator's schema, or None if there is no violation or schema.

    `inputs` and `outputs` are type strings, empty if unknown, None for absent values. `attributes`
    are names and types (`AttributeProto.type`).
    """
    if not onnx.defs.has(op_type, opset, domain):
        return None
    schema = onnx.defs.get_schema(op_type, opset, domain)
    operator = f"{domain}::{op_type}" if domain else op_type
    where = f"{operator}-{schema.since_version}"
    # GroupNormalization-18 is deprecated in favour of 21, but still valid at opset 18.
    if schema.deprecated and onnx.defs.get_schema(op_type, domain).deprecated:
        return Refusal(
            "opset",
            f"{operator} was removed in opset {schema.since_version}; the model imports opset "
            f"{opset}",
        )
    problem = _attributes(schema, attributes) or _port_counts(schema, inputs, outputs)
    if problem:
        return Refusal("attribute", f"{where}: {problem}")
    problem = _port_types(schema, inputs, outputs)
    return Refusal("dtype", f"{where}: {problem}") if problem else None


def _attributes(schema: OpSchema, attributes: tuple[tuple[str, int], ...]) -> str | None:
    for name, kind in attributes:
        definition = schema.attributes.get(name)
        if definition is None:
            valid = ", ".join(sorted(schema.attributes)) or "none"
            return f"unknown attribute {name!r}; ONNX defines {valid}"
        expected: Any = definition.type  # the type stub lacks the members of enums
        if expected.value != kind:
            actual_type = onnx.AttributeProto.AttributeType.Name(kind)
            return f"expected attribute {name!r} of type {expected.name}, got {actual_type}"
    names = {name for name, _ in attributes}
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in names:
            return f"the required attribute {name!r} is missing"
    return None


def _port_counts(
    schema: OpSchema, inputs: tuple[str | None, ...], outputs: tuple[str | None, ...]
) -> str | None:
    for noun, ports, minimum, maximum in (
        ("inputs", inputs, schema.min_input, schema.max_input),
        ("outputs", outputs, schema.min_output, schema.max_output),
    ):
        if not minimum <= len(ports) <= maximum:
            limits = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
            return f"expected {limits} {noun}, got {len(ports)}"
    for parameter, kind in zip(schema.inputs, inputs, strict=False):
        if kind is None and parameter.option == _Option.Single:
            return f"the required input {parameter.name!r} is missing"
    return None


def _body_port_counts(node: Node, shift: int) -> str | None:
    """Describe a subgraph with the wrong number of inputs or outputs, or return None."""
    num_inputs, num_outputs = len(node.inputs), len(node.outputs)
    counts = {
        "If": (0, num_outputs),
        # The body reads the iteration count and the condition, and returns the condition.
        "Loop": (num_inputs, num_outputs + 1),
        "Scan": (num_inputs - shift, num_outputs),
    }
    inputs, outputs = counts.get(node.op_type, (0, 0))
    for name, graph in bodies(node.proto) if node.op_type in counts else ():
        defaults = {tensor.name for tensor in graph.initializer}
        num_required = sum(port.name not in defaults for port in graph.input)
        if not num_required <= inputs <= len(graph.input) or len(graph.output) < outputs:
            return (
                f"{node.op_type}: expected {name} with {inputs} inputs and {outputs} outputs, got "
                f"{len(graph.input)} and {len(graph.output)}"
            )
    return None


def _body_input_types(node: Node, shift: int, types: _Types) -> str | None:
    """Describe an input of a subgraph that is declared with another type than the node's input."""
    for name, graph in bodies(node.proto) if node.op_type in ("Loop", "Scan") else ():
        for port, value in zip(graph.input, node.inputs[shift:], strict=False):
            declared_type, actual_type = type_string(port.type), types.get(value, "")
            if declared_type and actual_type and declared_type != actual_type:
                return (
                    f"{node.op_type}: {name} declares input {port.name!r} as {declared_type}, but "
                    f"gets {actual_type}"
                )
    return None


def _port_types(
    schema: OpSchema, inputs: tuple[str | None, ...], outputs: tuple[str | None, ...]
) -> str | None:
    bindings: dict[str, tuple[str, str]] = {}
    for noun, parameters, kinds in (
        ("input", schema.inputs, inputs),
        ("output", schema.outputs, outputs),
    ):
        for i, kind in enumerate(kinds):
            parameter = parameters[min(i, len(parameters) - 1)]
            if not kind or "undefined" in kind or "()" in kind:
                continue
            port = f"{noun} {parameter.name!r}"
            if kind not in parameter.types:
                return f"expected {port} of {', '.join(sorted(parameter.types))}, got {kind}"
            if parameter.is_homogeneous:
                first, other = bindings.setdefault(parameter.type_str, (kind, port))
                if first != kind:
                    return f"expected {other} and {port} of one type, got {first} and {kind}"
    # The schema does not express that the tensor must have the sequence's element type.
    if schema.name == "SequenceInsert" and all(inputs[:2]) and inputs[0] != f"seq({inputs[1]})":
        return f"expected a tensor of the sequence's type, got {inputs[1]} and {inputs[0]}"
    return None
