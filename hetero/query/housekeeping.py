"""Housekeeping nodes of OpenVINO's query: inputs (parameters), weights (constants) and outputs."""

from __future__ import annotations

from dataclasses import replace

from hetero.devices.model.model import Model
from hetero.devices.plugin.support import Support


def with_housekeeping(model: Model, support: Support) -> Support:
    """Return the support with the devices of inputs, weights and outputs, by their names.

    An input or weight has the device of its first supported reader, an output that of its producer;
    one without such a node is absent. A node's own entry takes precedence.
    """
    devices: dict[str, str] = {}
    for value in (*(port.name for port in model.inputs), *model.constants):
        readers = (model.nodes[i].name for i in model.consumers.get(value, ()))
        device = next((support[name] for name in readers if name in support), None)
        if device is not None:
            devices[value] = device
    for port in model.outputs:
        node = model.producer(port.name)
        if node is not None and node.name in support:
            devices[port.name] = support[node.name]
    return replace(support, devices={**devices, **support.devices})
