"""Merged decoders of optimum: one `If` with two branches, rewritten as a graph to split."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero.devices.model.model import Model, Node
from hetero.devices.model.unique_names import UniqueNames
from hetero.devices.model.variables import variables_of


def unmerge(model: Model, is_next: str, sources: Collection[str]) -> Model:
    """Return the branch for later steps as the model, which also accepts empty KV caches.

    Nodes of the other branch compute the encoder's keys and values in the first step. A model of
    another form is returned unchanged.

    `is_next`: input that selects the branch.
    `sources`: inputs that hold the encoder's outputs.
    """
    choice = model.nodes[0]
    pairs = [v for v in variables_of(model) if "encoder" in v.name]
    outputs_by_input = {v.input.name: v.output.name for v in pairs}
    if not outputs_by_input or len(model.nodes) > 1 or [*choice.inputs] != [is_next]:
        return model
    bodies = {attribute.name: attribute.g for attribute in choice.proto.attribute}
    first, later = bodies["else_branch"], bodies["then_branch"]
    if first.initializer or later.initializer:
        return model
    if [port.name for port in later.output] != [*choice.outputs]:
        return model
    free = UniqueNames.of_values(model)
    for node in later.node:
        for name in node.output:
            free.make(name)
    nodes: list[onnx.NodeProto] = []
    for port, output in pairs:
        makers = _copy_producers(first, output.name, {*model.constants, *sources})
        if makers is None:
            return model
        own = {name: free.make(name) for node in makers for name in node.output}
        for node in makers:
            node.input[:] = [own.get(name, name) for name in node.input]
            node.output[:] = [own[name] for name in node.output]
        cached = helper.make_node("Identity", [port.name], [free.make(output.name)])
        branches = {}
        for branch, inner in (("then_branch", [cached]), ("else_branch", makers)):
            result = onnx.ValueInfoProto(name=inner[-1].output[0], type=port.to_proto().type)
            branches[branch] = helper.make_graph(inner, result.name, [], [result])
        nodes.append(helper.make_node("If", [is_next], [output.name], **branches))
    for node in later.node:
        if not {*outputs_by_input.values()} & {*node.output}:  # replaced by the nodes above
            nodes.append(onnx.NodeProto())
            nodes[-1].CopyFrom(node)
            nodes[-1].input[:] = [outputs_by_input.get(name, name) for name in node.input]
    names = UniqueNames(())
    for node in nodes:
        node.name = names.make(node.name or node.output[0])
    return model.replace(nodes=[*map(Node.from_proto, nodes)])


def _copy_producers(
    body: onnx.GraphProto, value: str, sources: Collection[str]
) -> list[onnx.NodeProto] | None:
    """Return copies of the nodes that compute a value from sources; None if it has other inputs.

    Sizes that `Reshape` reads from other values are replaced by those of its own input.
    """
    makers = {name: node for node in body.node for name in node.output}
    nodes: list[onnx.NodeProto] = []
    visited, waiting = set(sources), [value]
    while waiting:
        if (name := waiting.pop()) in visited:
            continue
        visited.add(name)
        if name not in makers or makers[name].op_type == "Shape":
            return None
        node = onnx.NodeProto()
        node.CopyFrom(makers[name])
        nodes.append(node)
        sizes = makers.get(node.input[1]) if node.op_type == "Reshape" else None
        if sizes is not None and sizes.op_type == "Concat":
            shape = np.asarray([_constant_size(makers, part) for part in sizes.input], np.int64)
            node.input[1] = f"{name}/shape"
            visited.add(node.input[1])
            constant = numpy_helper.from_array(shape)
            nodes.append(helper.make_node("Constant", [], [node.input[1]], value=constant))
        waiting += node.input
    order = {name: position for position, node in enumerate(body.node) for name in node.output}
    return sorted(nodes, key=lambda node: order.get(node.output[0], -1))


def _constant_size(makers: dict[str, onnx.NodeProto], name: str) -> int:
    """Return a constant size, or 0 (the size of the reshaped input) if it is not constant."""
    node = makers.get(name)
    if node is not None and node.op_type == "Unsqueeze":
        node = makers.get(node.input[0])
    if node is None or node.op_type != "Constant":
        return 0
    return int(numpy_helper.to_array(node.attribute[0].t).item())
