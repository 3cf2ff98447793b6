"""Pass: nodes and constants that no output depends on go."""

from __future__ import annotations

from devices.model.model import Model


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
