"""Pass: `Constant` nodes become constants, where the other passes look for them."""

from __future__ import annotations

from devices.model.literals import literal_value
from devices.model.model import Model
from devices.transforms.rewriting import Rewrite


def literals_to_constants(model: Model) -> Model:
    """Return the model without `Constant` nodes."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if node.is_constant:
            rewrite.remove(i)
            rewrite.set_constant(node.outputs[0], literal_value(node))
    return rewrite.apply()
