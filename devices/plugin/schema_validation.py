"""What ONNX's own definitions of operators say of a model's nodes: types, counts, attributes.

A node that breaks its operator's definition is refused by every device with the same sentence.
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
#: Value name -> type string; what is not known is absent or empty.
_Types = Mapping[str, str]


def schema_violations(model: Model) -> dict[str, Refusal]:
    """Return the nodes of the main graph that break their operators' definitions, and how.

    Bodies are looked into, and the model's own functions with the types that each call gives
    them. Operators that ONNX does not define are left to the devices; types that are not known
    fit everywhere.
    """
    judge = _Judge(model.header)
    specs = model.specs  # a part of a model has those of the whole
    types = {
        name: specs[name].type
        for node in model.nodes
        for name in (*node.reads, *node.writes)
        if name in specs
    }
    found = {}
    for node in model.nodes:
        if refusal := judge.node(node, model.opset_imports, types):
            found[node.name] = Refusal(
                refusal.code, f"{refusal.message}. No device runs that: correct the model"
            )
    return found


class _Judge:
    """Judges the nodes of one model, each distinct call of a function once."""

    def __init__(self, header: onnx.ModelProto) -> None:
        self._ir_version = header.ir_version
        self._functions: dict[FunctionKey, onnx.FunctionProto] = {
            (f.domain, f.name, f.overload): f for f in header.functions
        }
        self._calls: dict[tuple[object, ...], Refusal | None] = {}

    def node(self, node: Node, opsets: _Opsets, types: _Types) -> Refusal | None:
        """Return how a node breaks its operator's definition, or None."""
        if self._functions and (function := self._functions.get(function_key(node))):
            return self._call(node, function, types)
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
        shift = int(node.op_type == "Scan" and opset < 9)  # lengths of sequences come first
        if said := _body_counts(node, shift):
            return Refusal("attribute", said)
        if said := _body_types(node, shift, types):
            return Refusal("dtype", said)
        given = {name: types.get(name, "") for name in node.reads}
        (typed,) = self._inferred([proto], opsets, given).node
        for name, graph in bodies(typed):
            if inner := self._first(graph, opsets, given):
                return Refusal(inner.code, f"in {name} of {node.op_type}: {inner.message}")
        return None

    def _call(self, node: Node, function: onnx.FunctionProto, types: _Types) -> Refusal | None:
        """Judge the body of a function with the types and attributes of a call."""
        read = tuple(types.get(name, "") for name in node.inputs)
        attributes = tuple(a.SerializeToString(deterministic=True) for a in node.proto.attribute)
        key = (function_key(node), read, attributes)
        if key not in self._calls:
            self._calls[key] = None  # one that calls itself is refused by the devices
            given = dict(zip(function.input, read, strict=False))
            opsets = function_opsets(function)
            graph = self._inferred(instantiate(function, node.proto), opsets, given)
            if inner := self._first(graph, opsets, given):
                name = f"{function.domain}::{function.name}"
                self._calls[key] = Refusal(
                    inner.code, f"in the body of function {name}: {inner.message}"
                )
        return self._calls[key]

    def _first(self, graph: onnx.GraphProto, opsets: _Opsets, outer: _Types) -> Refusal | None:
        """Return the first refusal in an inferred graph that sees the values of `outer`."""
        types = dict(outer)
        for info in (*graph.input, *graph.value_info, *graph.output):
            types[info.name] = type_string(info.type)
        for tensor in graph.initializer:
            number = onnx.TensorProto.DataType.Name(tensor.data_type)
            types[tensor.name] = f"tensor({number.lower()})"
        found = (self.node(Node.from_proto(proto), opsets, types) for proto in graph.node)
        return next((refusal for refusal in found if refusal), None)

    def _inferred(
        self, nodes: Sequence[onnx.NodeProto], opsets: _Opsets, types: _Types
    ) -> onnx.GraphProto:
        """Return `nodes` as a graph, with the types that follow from those of what it reads."""
        proto = onnx.ModelProto(ir_version=self._ir_version)
        for domain, version in opsets.items():
            proto.opset_import.add(domain=domain, version=version)
        proto.functions.extend(self._called(nodes))
        proto.graph.node.extend(nodes)
        proto.graph.input.extend(
            TensorSpec(name, kind).to_proto() for name, kind in types.items() if kind
        )
        try:
            return infer_types(proto)
        except ModelError:  # types stay open: `Model.specs` or the device says what is wrong
            return proto.graph

    def _called(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.FunctionProto]:
        """Yield the functions that `nodes` call, and those that these call."""
        pending = list(nodes) if self._functions else []
        seen: set[FunctionKey] = set()
        while pending:
            for node in with_bodies(pending.pop()):
                key = function_key(Node.from_proto(node))
                if key in self._functions and key not in seen:
                    seen.add(key)
                    yield self._functions[key]
                    pending += self._functions[key].node


@lru_cache(maxsize=20_000)
def check_operator(
    domain: str,
    op_type: str,
    opset: int,
    inputs: tuple[str | None, ...],
    outputs: tuple[str | None, ...],
    attributes: tuple[tuple[str, int], ...],
) -> Refusal | None:
    """Return how a node breaks its operator's definition, if ONNX defines it.

    `inputs`, `outputs`: types as ONNX writes them, empty where not known; None for an absent one.
    `attributes`: names and kinds (`AttributeProto.type`).
    """
    if not onnx.defs.has(op_type, opset, domain):
        return None
    schema = onnx.defs.get_schema(op_type, opset, domain)
    operator = f"{domain}::{op_type}" if domain else op_type
    definition = f"ONNX defines {operator}-{schema.since_version}"
    # GroupNormalization-18 is deprecated in favour of 21, but still valid at operator set 18.
    if schema.deprecated and onnx.defs.get_schema(op_type, domain).deprecated:
        return Refusal(
            "opset",
            f"{operator} was removed in operator set {schema.since_version}; the model imports "
            f"{opset}",
        )
    said = _attributes(schema, attributes) or _counts(schema, inputs, outputs)
    if said:
        return Refusal("attribute", f"{definition} {said}")
    said = _types(schema, inputs, outputs)
    return Refusal("dtype", f"{definition} {said}") if said else None


def _attributes(schema: OpSchema, given: tuple[tuple[str, int], ...]) -> str | None:
    for name, kind in given:
        wanted = schema.attributes.get(name)
        if wanted is None:
            known = ", ".join(sorted(schema.attributes)) or "none"
            return f"without attribute {name!r}; it has {known}"
        expected: Any = wanted.type  # the type stub lacks what every enum has
        if expected.value != kind:
            got = onnx.AttributeProto.AttributeType.Name(kind)
            return f"with {name!r} of kind {expected.name}; the node's is {got}"
    names = {name for name, _ in given}
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in names:
            return f"with a required attribute {name!r}, which the node does not have"
    return None


def _counts(
    schema: OpSchema, inputs: tuple[str | None, ...], outputs: tuple[str | None, ...]
) -> str | None:
    for what, given, least, most in (
        ("inputs", inputs, schema.min_input, schema.max_input),
        ("outputs", outputs, schema.min_output, schema.max_output),
    ):
        if not least <= len(given) <= most:
            limits = f"{least}" if least == most else f"{least} to {most}"
            return f"with {limits} {what}; the node has {len(given)}"
    for parameter, kind in zip(schema.inputs, inputs, strict=False):
        if kind is None and parameter.option == _Option.Single:
            return f"with an input {parameter.name!r} that must be given; the node leaves it out"
    return None


def _body_counts(node: Node, shift: int) -> str | None:
    """Return which body has not the inputs and outputs that its node wants of it."""
    read, made = len(node.inputs), len(node.outputs)
    counts = {
        "If": (0, made),
        "Loop": (read, made + 1),  # the count and condition go in, the condition comes out
        "Scan": (read - shift, made),
    }
    inputs, outputs = counts.get(node.op_type, (0, 0))
    for name, graph in bodies(node.proto) if node.op_type in counts else ():
        defaults = {tensor.name for tensor in graph.initializer}
        required = sum(port.name not in defaults for port in graph.input)
        if not required <= inputs <= len(graph.input) or len(graph.output) < outputs:
            return (
                f"{node.op_type} wants a {name} of {inputs} inputs and {outputs} outputs; it has "
                f"{len(graph.input)} and {len(graph.output)}"
            )
    return None


def _body_types(node: Node, shift: int, types: _Types) -> str | None:
    """Return which input of a body is not declared as what its node hands to it."""
    for name, graph in bodies(node.proto) if node.op_type in ("Loop", "Scan") else ():
        for port, value in zip(graph.input, node.inputs[shift:], strict=False):
            declared, given = type_string(port.type), types.get(value, "")
            if declared and given and declared != given:
                return (
                    f"{node.op_type} hands {given} to input {port.name!r} of its {name}, which "
                    f"declares it as {declared}"
                )
    return None


def _types(
    schema: OpSchema, inputs: tuple[str | None, ...], outputs: tuple[str | None, ...]
) -> str | None:
    bound: dict[str, tuple[str, str]] = {}
    for what, parameters, given in (
        ("input", schema.inputs, inputs),
        ("output", schema.outputs, outputs),
    ):
        for i, kind in enumerate(given):
            parameter = parameters[min(i, len(parameters) - 1)]
            if not kind or "undefined" in kind or "()" in kind:
                continue
            where = f"{what} {parameter.name!r}"
            if kind not in parameter.types:
                return f"with {where} of {', '.join(sorted(parameter.types))}; it is {kind}"
            if parameter.is_homogeneous:
                first, other = bound.setdefault(parameter.type_str, (kind, where))
                if first != kind:
                    return f"with {other} and {where} of one type; they are {first} and {kind}"
    # Only the text of the definition says that the tensor has the sequence's type.
    if schema.name == "SequenceInsert" and all(inputs[:2]) and inputs[0] != f"seq({inputs[1]})":
        return f"with a tensor of the sequence's type; they are {inputs[1]} and {inputs[0]}"
    return None
