"""Declared shapes of outputs and inner values are hints: types are inferred without them.

Exporters write them for one run, or not at all (`[]`); ONNX Runtime too takes no notice of those
that differ. Element types stay.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from copy import deepcopy

import onnx

from devices.model.attributes import bodies


def without_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return a copy of a declaration that leaves the shape of a tensor open."""
    copy = deepcopy(info)
    _open(copy)
    return copy


def forget_hints(
    graph: onnx.GraphProto, made: Container[str], certain: Iterable[onnx.ValueInfoProto]
) -> None:
    """Clear, in place, the shapes that are only declared.

    `made`: values that a node makes; outputs that are none of these, or listed twice, are left out.
    `certain`: values whose shapes hold.
    """
    known = {info.name: info for info in certain}
    outputs = {port.name: port for port in graph.output if port.name in made}
    del graph.output[:]
    graph.output.extend(known.get(name) or without_shape(port) for name, port in outputs.items())
    _open_bodies(graph.node)


def _open_bodies(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        for _, graph in bodies(node):
            # The first two inputs may be a Loop's count and condition, which are scalars.
            for info in (*graph.input[2:], *graph.output, *graph.value_info):
                _open(info)
            _open_bodies(graph.node)


def _open(info: onnx.ValueInfoProto) -> None:
    if info.type.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")
