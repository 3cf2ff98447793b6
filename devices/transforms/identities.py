"""Passes: nodes that no output depends on go, and so do those that only hand on their input.

The latter are:

1. `Identity` of a tensor.
2. `Dropout` at inference whose mask nobody reads.
3. Each only where the output is not a graph output and no body captures it, for then the name must
   stay.
"""

from __future__ import annotations

from hetero.devices.model.model import Model, Node
from hetero.devices.transforms.rewriting import Rewrite


def eliminate_identities(model: Model) -> Model:
    """Return the model with readers of an identity reading its input."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if node.domain or node.op_type not in ("Identity", "Dropout"):
            continue
        if node.op_type == "Dropout" and not _is_inference(node, model):
            continue
        if rewrite.is_free(node.outputs[0]):
            rewrite.rename(node.outputs[0], node.inputs[0])
            rewrite.remove(i)
    return rewrite.apply()


def _is_inference(node: Node, model: Model) -> bool:
    outputs = {port.name for port in model.outputs}
    if any(mask in outputs or model.consumers.get(mask) for mask in node.writes[1:]):
        return False
    if len(node.inputs) < 3 or not node.inputs[2]:
        return True
    training = model.constants.get(node.inputs[2])
    return training is not None and not training.array.any()


def remove_dead_nodes(model: Model) -> Model:
    """Return the model with only what its outputs need."""
    needed = {port.name for port in model.outputs}
    nodes = []
    for node in reversed(model.nodes):
        if any(value in needed for value in node.writes):
            needed.update(node.reads)
            nodes.append(node)
    constants = {name: c for name, c in model.constants.items() if name in needed}
    if len(nodes) == len(model.nodes) and len(constants) == len(model.constants):
        return model
    return model.replace(nodes=nodes[::-1], constants=constants, specs=model.specs)
