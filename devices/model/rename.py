"""Renaming values of a graph, in the bodies of control flow as well."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import onnx

from devices.model.attributes import bodies
from devices.model.model import Node


def renamed(node: Node, names: Mapping[str, str]) -> Node:
    """Return the node reading and making values under other names: {old: new}."""
    if not any(name in names for name in (*node.reads, *node.outputs)):
        return node
    proto = deepcopy(node.proto)
    _rename(proto, names)
    return Node.from_proto(proto, covers=node.covers)


def _rename(proto: onnx.NodeProto, names: Mapping[str, str]) -> None:
    proto.input[:] = [names.get(name, name) for name in proto.input]
    proto.output[:] = [names.get(name, name) for name in proto.output]
    for _, graph in bodies(proto):
        own = {value.name for value in graph.input} | {t.name for t in graph.initializer}
        own |= {name for node in graph.node for name in node.output}
        outer = {old: new for old, new in names.items() if old not in own}
        for node in graph.node:
            _rename(node, outer)
        for output in graph.output:
            output.name = outer.get(output.name, output.name)
