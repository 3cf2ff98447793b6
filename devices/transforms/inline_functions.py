"""Pass: inlines calls of the model's functions, so that other passes see their nodes.

A call is not inlined if the function imports other opsets than the model, has nodes with subgraphs,
or contains operators that the device does not support.
"""

from __future__ import annotations

from typing import Final

import onnx

from hetero.devices.interpreter.implementations import Scope, find_implementation
from hetero.devices.model.functions import function_key, function_opsets, instantiate
from hetero.devices.model.model import Model, Node
from hetero.devices.model.unique_names import UniqueNames
from hetero.devices.plugin.support import Refusal

#: Maximum number of nodes that inlining adds to a model.
_MAX_NEW_NODES: Final = 50_000


def inline_functions(model: Model) -> Model:
    """Return the model with calls replaced by the functions' nodes, which cover the calls."""
    scope = Scope.of_model(model)
    if not scope.functions:
        return model
    names = UniqueNames(model.node_names)
    values = UniqueNames.of_values(model)
    is_changed = False
    nodes: list[Node] = []
    stack = list(reversed(model.nodes))
    while stack and len(nodes) + len(stack) < len(model.nodes) + _MAX_NEW_NODES:
        node = stack.pop()
        function = scope.functions.get(function_key(node))
        if function is None or not _can_inline(node, function, scope):
            nodes.append(node)
        else:
            stack += reversed(_expand(node, function, names, values))
            is_changed = True
    return model.replace(nodes=[*nodes, *reversed(stack)]) if is_changed else model


def _can_inline(node: Node, function: onnx.FunctionProto, scope: Scope) -> bool:
    imports = function_opsets(function)
    has_same_opsets = all(scope.opsets.get(domain) == v for domain, v in imports.items())
    if not has_same_opsets or isinstance(find_implementation(node, scope), Refusal):
        return False
    has_bodies = any(
        a.HasField("g") or a.graphs for inner in function.node for a in inner.attribute
    )
    # An output that is an input or another output would require renaming in the caller's readers.
    own_outputs = set(function.output) - set(function.input)
    return not has_bodies and len(own_outputs) == len(function.output)


def _expand(
    call: Node, function: onnx.FunctionProto, names: UniqueNames, values: UniqueNames
) -> list[Node]:
    """Return the function's nodes for a call, with unique names of nodes and values."""
    outer_names = dict.fromkeys(function.input, "") | {"": ""}
    outer_names |= dict(zip(function.input, call.inputs, strict=False))
    outer_names |= {
        inner: outer for inner, outer in zip(function.output, call.outputs, strict=False) if outer
    }
    nodes = []
    for proto in instantiate(function, call.proto):
        proto.name = names.make(f"{call.name}/{proto.name or proto.op_type}")
        for value in proto.output:
            if value not in outer_names:
                outer_names[value] = values.make(f"{call.name}/{value}")
        proto.input[:] = [outer_names[value] for value in proto.input]
        proto.output[:] = [outer_names[value] for value in proto.output]
        nodes.append(Node.from_proto(proto, covers=call.covers))
    return nodes
