"""Pass: layer normalisation written out becomes one operator.

``(x - mean) / sqrt(mean((x - mean) ** 2) + epsilon) * scale + bias`` with means over the last axis;
the square as ``Pow(d, 2)`` or ``Mul(d, d)``, the subtraction once or (some exporters) twice.
"""

from __future__ import annotations

from typing import Final

from devices.model.model import Model
from devices.transforms.patterns import Either, find, has
from devices.transforms.rewriting import Rewrite, fused_node

_DIFFERENCE: Final = ("Sub", "x", ("ReduceMean", "x"))
_SQUARE: Final = Either((("Pow", _DIFFERENCE, 2.0), ("Mul", _DIFFERENCE, _DIFFERENCE)))
_DEVIATION: Final = ("Sqrt", ("Add", ("ReduceMean", _SQUARE), "epsilon"))
_PATTERN: Final = ("Add", ("Mul", ("Div", _DIFFERENCE, _DEVIATION), "scale"), "bias")


def fuse_layer_norm(model: Model) -> Model:
    """Return the model with layer normalisation patterns replaced."""
    rewrite = Rewrite(model)
    for i in range(len(model.nodes) if has(model, "Sqrt") else 0):
        if rewrite.is_op(i, "Add"):
            _fuse(rewrite, i)
    return rewrite.apply()


def _fuse(rewrite: Rewrite, last: int) -> None:
    match = find(rewrite, last, _PATTERN)
    if match is None:
        return
    nodes = rewrite.model.nodes
    parts = sorted(match.parts)
    x = match.values["x"]
    spec = rewrite.model.spec(x)
    epsilon = rewrite.scalar(match.values["epsilon"], beside=x)
    means = [p for p in parts if nodes[p].op_type == "ReduceMean"]
    if epsilon is None or not all(_is_last_mean(rewrite, mean) for mean in means):
        return
    inputs = [x, match.values["scale"], match.values["bias"]]
    for array in map(rewrite.constant, inputs[1:]):
        if array is None or not spec.shape or array.shape != spec.shape[-1:]:
            return
    # The operator computes in float32 unless told otherwise; 11 is double.
    attributes = {
        "axis": -1, "epsilon": epsilon, "stash_type": 11 if spec.element_type == "double" else 1,
    }  # fmt: skip
    covered = [nodes[p] for p in parts]
    fused = fused_node("LayerNormalization", inputs, nodes[last].outputs, covered, attributes)
    rewrite.replace(parts, fused)


def _is_last_mean(rewrite: Rewrite, at: int) -> bool:
    """Tell whether the node is a mean over the last axis that keeps the axis."""
    if not rewrite.is_op(at, "ReduceMean"):
        return False
    node = rewrite.model.nodes[at]
    attributes = node.attributes
    axes = attributes.get("axes")
    if axes is None and len(node.inputs) > 1:
        given = rewrite.constant(node.inputs[1])
        axes = None if given is None else tuple(given.tolist())
    shape = rewrite.model.spec(node.inputs[0]).shape
    last = ((-1,), (len(shape) - 1,)) if shape else ((-1,),)
    return attributes.get("keepdims", 1) == 1 and axes in last
