"""Literals: `Constant` nodes as constants, so that a device need not run them."""

from __future__ import annotations

import numpy as np

from devices.model import Constant, Model, Node


def lift_literals(model: Model) -> Model:
    """Return the model with its `Constant` nodes as constants; sparse ones stay nodes."""
    lifted = {}
    for node in model.nodes:
        if node.is_constant and (array := literal(node)) is not None:
            lifted[node.outputs[0]] = Constant(node.outputs[0], array)
    if not lifted:
        return model
    return model.replace(
        nodes=[n for n in model.nodes if not (n.is_constant and n.outputs[0] in lifted)],
        constants=dict(model.constants) | lifted,
        specs=dict(model.specs) | {name: c.spec for name, c in lifted.items()},
    )


def literal(node: Node) -> np.ndarray | None:
    """Return the array that a `Constant` node stands for, read-only; None if it is sparse."""
    name, value = next(iter(node.attributes.items()), ("", None))
    if name == "value":
        array = np.asarray(value)
    elif name in ("value_float", "value_floats"):
        array = np.array(value, np.float32)
    elif name in ("value_int", "value_ints"):
        array = np.array(value, np.int64)
    elif name in ("value_string", "value_strings"):
        array = np.array(value, object)
    else:
        return None
    array.setflags(write=False)
    return array
