"""Pass: calls of the model's own functions give way to their nodes, so that patterns see them.

A call stays, and runs as a call, where the function imports other versions than the model, has
nodes with bodies, or holds something that the device does not run.
"""

from __future__ import annotations

from typing import Final

import onnx

from devices.cpu.implementations import Scope, find_implementation
from devices.functions import function_key, function_opsets, instantiate
from devices.model import Model, Node
from devices.support import Refusal

#: More nodes than this, all calls replaced, are not worth it.
_MOST_NODES: Final = 200_000


def inline_functions(model: Model) -> Model:
    """Return the model with calls replaced by the nodes of the functions, which cover the call."""
    scope = Scope.of_model(model)
    if not scope.functions:
        return model
    taken = set(model.node_names)
    nodes: list[Node] = []
    waiting = list(reversed(model.nodes))
    while waiting and len(nodes) + len(waiting) < _MOST_NODES:
        node = waiting.pop()
        function = scope.functions.get(function_key(node))
        if function is None or not _can_inline(node, function, scope):
            nodes.append(node)
        else:
            waiting += reversed(_expanded(node, function, taken))
    nodes += reversed(waiting)
    if len(nodes) == len(model.nodes):
        return model
    return model.replace(nodes=nodes)


def _can_inline(node: Node, function: onnx.FunctionProto, scope: Scope) -> bool:
    imports = function_opsets(function)
    same = all(scope.opsets.get(domain) == version for domain, version in imports.items())
    if not same or isinstance(find_implementation(node, scope), Refusal):
        return False
    bodies = any(a.HasField("g") or a.graphs for inner in function.node for a in inner.attribute)
    # An output that is an input of the function would need its caller's readers renamed.
    return not bodies and not set(function.input) & set(function.output)


def _expanded(call: Node, function: onnx.FunctionProto, taken: set[str]) -> list[Node]:
    names = dict.fromkeys(function.input, "")
    names |= dict(zip(function.input, call.inputs, strict=False))
    names |= {
        inner: outer for inner, outer in zip(function.output, call.outputs, strict=False) if outer
    }
    expanded = []
    for i, proto in enumerate(instantiate(function, call.proto)):
        renamed = onnx.NodeProto()
        renamed.CopyFrom(proto)
        for field in ("input", "output"):
            given = [_renamed(name, names, call) for name in getattr(proto, field)]
            renamed.ClearField(field)
            getattr(renamed, field).extend(given)
        renamed.name = f"{call.name}/{proto.name or proto.op_type}"
        while renamed.name in taken:
            renamed.name += f"_{i}"
        taken.add(renamed.name)
        expanded.append(Node.from_proto(renamed, covers=call.covers))
    return expanded


def _renamed(name: str, names: dict[str, str], call: Node) -> str:
    """Return the value's name outside: the caller's where it has one, else one of its own."""
    return names.setdefault(name, f"{call.name}/{name}") if name else ""
