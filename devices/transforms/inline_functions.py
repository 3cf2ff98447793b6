"""Pass: calls of the model's own functions give way to their nodes, so that patterns see them.

A call stays, and runs as a call, where the function imports other versions than the model, has
nodes with bodies, or holds something that the device does not run.
"""

from __future__ import annotations

from typing import Final

import onnx

from hetero.devices.interpreter.implementations import Scope, find_implementation
from hetero.devices.model.functions import function_key, function_opsets, instantiate
from hetero.devices.model.model import Model, Node
from hetero.devices.model.unique_names import UniqueNames
from hetero.devices.plugin.support import Refusal

#: More nodes than this, added by replacing calls, are not worth it.
_MOST_NODES: Final = 50_000


def inline_functions(model: Model) -> Model:
    """Return the model with calls replaced by the nodes of the functions, which cover the call."""
    scope = Scope.of_model(model)
    if not scope.functions:
        return model
    names = UniqueNames(model.node_names)
    values = UniqueNames.of_values(model)
    inlined = False
    nodes: list[Node] = []
    waiting = list(reversed(model.nodes))
    while waiting and len(nodes) + len(waiting) < len(model.nodes) + _MOST_NODES:
        node = waiting.pop()
        function = scope.functions.get(function_key(node))
        if function is None or not _can_inline(node, function, scope):
            nodes.append(node)
        else:
            waiting += reversed(_expanded(node, function, names, values))
            inlined = True
    return model.replace(nodes=[*nodes, *reversed(waiting)]) if inlined else model


def _can_inline(node: Node, function: onnx.FunctionProto, scope: Scope) -> bool:
    imports = function_opsets(function)
    same = all(scope.opsets.get(domain) == version for domain, version in imports.items())
    if not same or isinstance(find_implementation(node, scope), Refusal):
        return False
    bodies = any(a.HasField("g") or a.graphs for inner in function.node for a in inner.attribute)
    # Outputs that are inputs, or one another, would need their caller's readers renamed.
    own = set(function.output) - set(function.input)
    return not bodies and len(own) == len(function.output)


def _expanded(
    call: Node, function: onnx.FunctionProto, names: UniqueNames, values: UniqueNames
) -> list[Node]:
    """Return the function's nodes; what they are named and make is added to what is taken."""
    outside = dict.fromkeys(function.input, "") | {"": ""}
    outside |= dict(zip(function.input, call.inputs, strict=False))
    outside |= {
        inner: outer for inner, outer in zip(function.output, call.outputs, strict=False) if outer
    }
    expanded = []
    for proto in instantiate(function, call.proto):
        proto.name = names.make(f"{call.name}/{proto.name or proto.op_type}")
        for value in proto.output:
            if value not in outside:
                outside[value] = values.make(f"{call.name}/{value}")
        proto.input[:] = [outside[value] for value in proto.input]
        proto.output[:] = [outside[value] for value in proto.output]
        expanded.append(Node.from_proto(proto, covers=call.covers))
    return expanded
