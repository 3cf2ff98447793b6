"""Functions: operators defined by a graph, in the model itself or in the specification."""

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
    """Return the key of the model's own function that the node would call."""
    return node.proto.domain, node.op_type, node.proto.overload


def function_opsets(function: onnx.FunctionProto) -> dict[str, int]:
    """Return domain -> version of what a function imports."""
    return {
        "" if entry.domain == "ai.onnx" else entry.domain: entry.version
        for entry in function.opset_import
    }


def standard_function(node: Node, opset: int) -> onnx.FunctionProto | None:
    """Return the body that the specification gives an operator, where it gives one.

    Bodies that depend on the input types are not among them.
    """
    if not onnx.defs.has(node.op_type, opset, node.domain):
        return None
    # Its type stub lacks the functions.
    schema: Any = onnx.defs.get_schema(node.op_type, opset, node.domain)
    # A body is written for one opset or several; the newest not above the model's is meant.
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
    """Return a function's nodes with the call's attributes put where the body refers to them."""
    given: dict[str, AttributeProto] = {a.name: a for a in function.attribute_proto}
    given |= {a.name: a for a in call.attribute}
    return [_resolve(node, given) for node in function.node]


def _resolve(node: onnx.NodeProto, given: Mapping[str, AttributeProto]) -> onnx.NodeProto:
    resolved = deepcopy(node)
    del resolved.attribute[:]
    for attribute in node.attribute:
        found = given.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute
        if found is None:
            continue
        copy = resolved.attribute.add()
        copy.CopyFrom(found)
        copy.name = attribute.name
        for graph in graphs_of(copy) if found is attribute else ():
            nodes = [_resolve(inner, given) for inner in graph.node]
            del graph.node[:]
            graph.node.extend(nodes)
    return resolved
