"""ONNX attributes as Python values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
from onnx import AttributeProto

from devices.errors import ModelError
from devices.model.tensor_proto import tensor_array

#: Turns the body of a control flow node into what the caller runs.
BodyReader = Callable[[onnx.GraphProto], Any]


def attribute_value(attribute: AttributeProto, read_body: BodyReader = lambda graph: graph) -> Any:
    """Return an attribute as int, float, str, tuple, array, TypeProto or what `read_body` makes.

    A reference to a function's own attribute is the caller's to resolve; `read_body` is applied to
    each graph. ModelError for a type that ONNX does not define, or a damaged tensor.
    """
    kind = attribute.type
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.STRING:
        return _text(attribute.s)
    if kind == AttributeProto.TENSOR:
        return tensor_array(attribute.t)
    if kind == AttributeProto.GRAPH:
        return read_body(attribute.g)
    if kind == AttributeProto.FLOATS:
        return tuple(attribute.floats)
    if kind == AttributeProto.INTS:
        return tuple(attribute.ints)
    if kind == AttributeProto.STRINGS:
        return tuple(_text(s) for s in attribute.strings)
    if kind == AttributeProto.TENSORS:
        return tuple(tensor_array(t) for t in attribute.tensors)
    if kind == AttributeProto.GRAPHS:
        return tuple(read_body(g) for g in attribute.graphs)
    if kind == AttributeProto.TYPE_PROTO:
        return attribute.tp
    if kind == AttributeProto.TYPE_PROTOS:
        return tuple(attribute.type_protos)
    if kind == AttributeProto.SPARSE_TENSOR:
        return attribute.sparse_tensor
    raise ModelError(
        f"attribute {attribute.name!r} has type {kind}, which ONNX does not define. Export the "
        "model again."
    )


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the graphs of a control flow node, each with its attribute's name."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.name, attribute.g
        for graph in attribute.graphs:
            yield attribute.name, graph


def with_bodies(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node and all nodes of its bodies."""
    yield node
    for _, graph in bodies(node):
        for inner in graph.node:
            yield from with_bodies(inner)


def captured_names(proto: onnx.NodeProto) -> Iterator[str]:
    """Yield the outer values that a node's bodies read, each once, in order of first use."""
    seen: set[str] = set()
    for _, graph in bodies(proto):
        for name in _free_names(graph):
            if name not in seen:
                seen.add(name)
                yield name


def _free_names(graph: onnx.GraphProto) -> Iterator[str]:
    bound = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    bound |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        for name in (*node.input, *captured_names(node)):
            if name and name not in bound:
                yield name
        bound.update(node.output)
    yield from (v.name for v in graph.output if v.name not in bound)


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
