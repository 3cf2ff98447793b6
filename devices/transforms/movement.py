"""Pass: consecutive data movements become one.

1. ``Transpose(Transpose(x))`` becomes one, or none where the two cancel.
2. ``Reshape(Reshape(x))``, and any of Squeeze, Unsqueeze and Flatten before a Reshape, become one
   Reshape where the second one's target is a constant that copies no dimension.
"""

from __future__ import annotations

import onnx

from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, with_inputs

_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze", "Flatten")


def merge_movements(model: Model) -> Model:
    """Return the model without movements that the next one undoes."""
    while True:
        rewrite = Rewrite(model)
        for i, node in enumerate(model.nodes):
            before = rewrite.producer(node.inputs[0]) if node.inputs else None
            if before is None or rewrite.sole_reader(node.inputs[0]) != i:
                continue
            if rewrite.is_op(i, "Transpose") and rewrite.is_op(before, "Transpose"):
                _merge_transposes(rewrite, before, i)
            elif rewrite.is_op(i, "Reshape") and rewrite.is_op(before, *_RESHAPES):
                _merge_reshapes(rewrite, before, i)
        changed = rewrite.apply()
        if changed is model:
            return model
        model = changed


def _merge_transposes(rewrite: Rewrite, first: int, second: int) -> None:
    a, b = rewrite.model.nodes[first], rewrite.model.nodes[second]
    inner, outer = a.attributes.get("perm"), b.attributes.get("perm")
    if inner is None or outer is None or len(inner) != len(outer):
        return
    perm = [inner[axis] for axis in outer]
    if perm == sorted(perm) and rewrite.is_free(b.outputs[0]):
        rewrite.rename(b.outputs[0], a.inputs[0])
        rewrite.remove(first)
        rewrite.remove(second)
        return
    merged = with_inputs(b, a.inputs, b.outputs, a)
    merged.proto.ClearField("attribute")
    merged.proto.attribute.append(onnx.helper.make_attribute("perm", perm))
    rewrite.replace((first, second), merged)


def _merge_reshapes(rewrite: Rewrite, first: int, second: int) -> None:
    a, b = rewrite.model.nodes[first], rewrite.model.nodes[second]
    target = rewrite.constant(b.inputs[1]) if len(b.inputs) > 1 else None
    if target is None or (target == 0).any():
        return
    merged: Node = with_inputs(b, [a.inputs[0], b.inputs[1]], b.outputs, a)
    rewrite.replace((first, second), merged)
