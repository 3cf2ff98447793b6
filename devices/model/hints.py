"""Declared shapes of outputs and inner values are hints: types are inferred without them.

Exporters write them for one run, or not at all (`[]`); ONNX Runtime too takes no notice of those
that differ. Element types stay.
"""

from __future__ import annotations

from collections.abc import Iterable

import onnx

from devices.model.attributes import bodies


def without_shape(info: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return a copy of a declaration that leaves the shape of a tensor open."""
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(info)
    _open(copy)
    return copy


def open_bodies(nodes: Iterable[onnx.NodeProto]) -> None:
    """Clear, in place, the shapes that bodies of control flow declare for their values.

    A body's first two inputs may be a `Loop`'s count and condition, which are scalars.
    """
    for node in nodes:
        for _, graph in bodies(node):
            for info in (*graph.input[2:], *graph.output, *graph.value_info):
                _open(info)
            open_bodies(graph.node)


def _open(info: onnx.ValueInfoProto) -> None:
    if info.type.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")
