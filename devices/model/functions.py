"""ONNX functions: operators whose body is a graph, defined by the model or by ONNX itself."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import onnx
from onnx import AttributeProto

from hetero.devices.model.attributes import graphs_of
from hetero.devices.model.model import Node

#: Domain, name, overload.
FunctionKey = tuple[str, str, str]


def function_key(node: Node) -> FunctionKey:
    """Return the key under which a model would define the operator of a node as a function."""
    return node.proto.domain, node.op_type, node.proto.overload


def function_opsets(function: onnx.FunctionProto) -> dict[str, int]:
    """Return the operator sets that a function imports: domain -> version."""
    return {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version
        for entry in function.opset_import
    }


def standard_function(node: Node, opset: int) -> onnx.FunctionProto | None:
    """Return the function body of an operator in ONNX's specification, or None.

    Bodies that depend on the input types are not supported.
    """
    if not onnx.defs.has(node.op_type, opset, node.domain):
        return None
    # Its type stub lacks the functions.
    schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    # A schema has a body for each of several opsets; use the newest that the model may call.
    versions = [v for v in schema.function_opset_versions if v <= opset]
    if not schema.has_function or not versions:
        return None
    function = onnx.FunctionProto()
    function.ParseFromString(schema.get_function_with_opset_version(max(versions)))
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        if default.type != AttributeProto.UNDEFINED:
            copy = function.attribute_proto.add()
            copy.CopyFrom(default)
            copy.name = name
    return function


def instantiate(function: onnx.FunctionProto, call: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return a function's nodes with the attribute values of a call substituted."""
    arguments: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
    arguments |= {a.name: a for a in call.attribute}
    return [_resolve(node, arguments) for node in function.node]


def _resolve(node: onnx.NodeProto, arguments: Mapping[str, AttributeProto]) -> onnx.NodeProto:
    resolved_node = deepcopy(node)
    del resolved_node.attribute[:]
    for attribute in node.attribute:
        argument = arguments.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if argument is None:
            continue
        copy = resolved_node.attribute.add()
        copy.CopyFrom(argument)
        copy.name = attribute.name
        for graph in graphs_of(copy) if argument is attribute else ():
            nodes = [_resolve(inner, arguments) for inner in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return resolved_node
