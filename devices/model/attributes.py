"""Attributes and subgraphs of ONNX nodes: Python values, captured names, random operators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import onnx
from onnx import AttributeProto, TensorProto

from hetero.devices.errors import ModelError
from hetero.devices.model.tensor_proto import tensor_array

_RANDOM_OPERATORS: Final = frozenset(
    [
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    ]
)


def attribute_value(attribute: AttributeProto) -> Any:
    """Return an attribute as int, float, str, array, graph or TypeProto, or a tuple of those.

    Raises ModelError for a type that ONNX does not define and for a damaged tensor, and for an
    unresolved reference to an attribute of a function.
    """
    try:
        value = onnx.helper.get_attribute_value(attribute)
    except ValueError:
        value = None
    if value is None:
        raise ModelError(
            f"attribute {attribute.name!r} of type {attribute.type} has no valid value. Export the "
            "model again."
        )
    return tuple(map(_plain, value)) if isinstance(value, list) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, TensorProto):
        return tensor_array(value)
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    return value


def bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """Yield the subgraphs of a control flow node, each with its attribute's name."""
    for attribute in node.attribute:
        for graph in graphs_of(attribute):
            yield attribute.name, graph


def graphs_of(attribute: AttributeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in an attribute."""
    if attribute.HasField("g"):
        yield attribute.g
    yield from attribute.graphs


def with_bodies(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield a node and all nodes of its subgraphs."""
    yield node
    for _, graph in bodies(node):
        for inner in graph.node:
            yield from with_bodies(inner)


def body_values(node: onnx.NodeProto) -> set[str]:
    """Return the names of all values that a node's subgraphs define."""
    names: set[str] = set()
    for _, graph in bodies(node):
        names.update(port.name for port in (*graph.input, *graph.initializer))
        for inner in graph.node:
            names.update(inner.output)
            names |= body_values(inner)
    return names


def is_random(node: onnx.NodeProto) -> bool:
    """Return whether a node or one of its subgraphs draws random numbers."""
    return any(
        inner.op_type in _RANDOM_OPERATORS or (inner.op_type == "Dropout" and any(inner.input[2:]))
        for inner in with_bodies(node)
        if not inner.domain
    )


def captured_names(proto: onnx.NodeProto) -> tuple[str, ...]:
    """Return the outer values that a node's subgraphs read, in order of first use."""
    return tuple(dict.fromkeys(n for _, graph in bodies(proto) for n in _free_names(graph)))


def _free_names(graph: onnx.GraphProto) -> Iterator[str]:
    bound = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    bound |= {t.values.name for t in graph.sparse_initializer}
    for node in graph.node:
        for name in (*node.input, *captured_names(node)):
            if name and name not in bound:
                yield name
        bound.update(node.output)
    yield from (v.name for v in graph.output if v.name not in bound)
