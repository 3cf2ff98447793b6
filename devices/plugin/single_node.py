"""A model of one node, for backends that are asked about nodes one at a time."""

from __future__ import annotations

from collections.abc import Callable

import onnx

from devices.model.attributes import with_bodies
from devices.model.model import Constant, Model, Node
from devices.model.tensor_spec import TensorSpec


def single_node_model(
    node: Node,
    model: Model,
    is_shown: Callable[[Constant], bool],
    port: Callable[[TensorSpec], TensorSpec],
) -> onnx.ModelProto:
    """Return a model of one node, its values renamed so that equal nodes give equal bytes.

    Parameters
    ----------
    node, model : Node, Model
        The node, and the model that it is of.
    is_shown : callable
        Whether a constant that the node reads is in the new model; the others are inputs of it.
    port : callable
        What is shown of an input's type and shape.
    """
    proto = onnx.ModelProto(ir_version=model.header.ir_version)
    proto.opset_import.extend(model.header.opset_import)
    functions = {(f.domain, f.name) for f in model.header.functions}
    if functions and any((n.domain, n.op_type) in functions for n in with_bodies(node.proto)):
        proto.functions.extend(model.header.functions)
    graph = proto.graph
    graph.name = "node"
    only = graph.node.add()
    only.CopyFrom(node.proto)
    only.name = "node"
    only.doc_string = ""
    del only.metadata_props[:]
    # Bodies read captured values by name, so a node with captures keeps its names.
    names = {value: value for value in (*node.reads, *node.writes)}
    if not node.captures:
        names = {value: f"v{i}" for i, value in enumerate(names)}
        del only.input[:], only.output[:]
        only.input.extend(names.get(value, "") for value in node.inputs)
        only.output.extend(names.get(value, "") for value in node.outputs)
    for value in node.reads:
        constant = model.constants.get(value)
        if constant is not None and is_shown(constant):
            tensor = constant.to_proto()
            tensor.name = names[value]
            graph.initializer.append(tensor)
        else:
            shown = port(model.spec(value))
            graph.input.append(TensorSpec(names[value], shown.type, shown.shape).to_proto())
    graph.output.extend(
        TensorSpec(names[value], model.spec(value).type).to_proto()
        for value in node.writes
        if model.spec(value).type
    )
    return proto
