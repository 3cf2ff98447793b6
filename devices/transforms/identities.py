"""Passes: removal of dead nodes, and of nodes that return their input.

The latter are `Identity`, and `Dropout` in inference mode with an unread mask. They stay if their
output is a graph output or captured by a subgraph, because such values cannot be renamed.
"""

from __future__ import annotations

from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite


def eliminate_identities(model: Model) -> Model:
    """Return the model without nodes that return their input."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if node.domain or node.op_type not in ("Identity", "Dropout"):
            continue
        if node.op_type == "Dropout" and not _is_inference(node, model):
            continue
        if rewrite.can_rename(node.outputs[0]):
            rewrite.rename(node.outputs[0], node.inputs[0])
            rewrite.remove(i)
    return rewrite.apply()


def _is_inference(node: Node, model: Model) -> bool:
    outputs = {port.name for port in model.outputs}
    if any(mask in outputs or model.consumers.get(mask) for mask in node.writes[1:]):
        return False
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    training_mode = model.constants.get(node.inputs[2])
    return training_mode is not None and not training_mode.array.any()


def remove_dead_nodes(model: Model) -> Model:
    """Return the model without the nodes and constants that its outputs do not depend on."""
    live_values = {port.name for port in model.outputs}
    nodes = []
    for node in reversed(model.nodes):
        if any(value in live_values for value in node.writes):
            live_values.update(node.reads)
            nodes.append(node)
    constants = {name: c for name, c in model.constants.items() if name in live_values}
    if len(nodes) == len(model.nodes) and len(constants) == len(model.constants):
        return model
    return model.replace(nodes=nodes[::-1], constants=constants, specs=model.specs)
