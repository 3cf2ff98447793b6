"""Names for the unnamed outputs of control-flow nodes.

ONNX Runtime 1.32 crashes in a Loop with an unnamed output, and refuses If and Scan with one.
"""

from __future__ import annotations

from typing import Final

import onnx

from hetero.devices.model.attributes import body_values, with_bodies
from hetero.devices.model.model import Model, Node
from hetero.devices.model.unique_names import UniqueNames

_CONTROL_FLOW: Final = frozenset({"If", "Loop", "Scan"})


def name_control_flow_outputs(model: Model) -> Model:
    """Return a model in which all outputs of control-flow nodes have names, also in bodies."""
    incomplete = {node.name for node in model.nodes if _has_unnamed_outputs(node.proto)}
    if not incomplete:
        return model
    names = UniqueNames(
        [
            *(port.name for port in (*model.inputs, *model.optional_inputs)),
            *model.constants,
            *model.producers,
            *(name for node in model.nodes for name in body_values(node.proto)),
        ]
    )
    return model.replace(
        nodes=[_complete(node, names) if node.name in incomplete else node for node in model.nodes]
    )


def _has_unnamed_outputs(node: onnx.NodeProto) -> bool:
    return any(inner.op_type in _CONTROL_FLOW and "" in inner.output for inner in with_bodies(node))


def _complete(node: Node, names: UniqueNames) -> Node:
    """Return a copy of a node with names for the unnamed outputs."""
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    for inner in with_bodies(proto):
        if inner.op_type in _CONTROL_FLOW:
            outputs = [name or names.make("unused_output") for name in inner.output]
            del inner.output[:]
            inner.output.extend(outputs)
    return Node.from_proto(proto, covers=node.covers)
