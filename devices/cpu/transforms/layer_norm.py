"""Pass: layer normalisation written out becomes one operator.

``(x - mean) / sqrt(mean((x - mean) ** 2) + epsilon) * scale + bias`` with means over the last axis;
the square as ``Pow(d, 2)`` or ``Mul(d, d)``, the subtraction once or (some exporters) twice.
"""

from __future__ import annotations

from devices.cpu.transforms.rewriting import Rewrite, fused_node
from devices.model.model import Model


def fuse_layer_norm(model: Model) -> Model:
    """Return the model with layer normalisation patterns replaced."""
    rewrite = Rewrite(model)
    for i in range(len(model.nodes)):
        if rewrite.is_op(i, "Div"):
            _fuse(rewrite, i)
    return rewrite.apply()


def _fuse(rewrite: Rewrite, div: int) -> None:
    nodes = rewrite.model.nodes
    difference, deviation = nodes[div].inputs
    root, sub = rewrite.producer(deviation), rewrite.producer(difference)
    if root is None or sub is None or not rewrite.is_op(root, "Sqrt"):
        return
    if not rewrite.is_op(sub, "Sub") or rewrite.sole_reader(deviation) != div:
        return
    x, mean_value = nodes[sub].inputs
    mean = rewrite.producer(mean_value)
    if mean is None or not _is_last_mean(rewrite, mean) or nodes[mean].inputs[0] != x:
        return
    plus = rewrite.producer(nodes[root].inputs[0])
    if plus is None or not rewrite.is_op(plus, "Add"):
        return
    left, right = nodes[plus].inputs
    variance_value, epsilon = left, rewrite.scalar(right, beside=left)
    if epsilon is None:
        variance_value, epsilon = right, rewrite.scalar(left, beside=right)
    variance = rewrite.producer(variance_value)
    if epsilon is None or variance is None or not _is_last_mean(rewrite, variance):
        return
    square = rewrite.producer(nodes[variance].inputs[0])
    if square is None:
        return
    squared = nodes[square].inputs[0]
    if rewrite.is_op(square, "Pow"):
        if rewrite.scalar(nodes[square].inputs[1], beside=squared) != 2.0:
            return
    elif not rewrite.is_op(square, "Mul") or nodes[square].inputs[1] != squared:
        return
    parts = {div, root, sub, mean, plus, variance, square}
    other = rewrite.producer(squared)
    if squared != difference:
        same = other is not None and rewrite.is_op(other, "Sub")
        if not same or other is None or nodes[other].inputs != nodes[sub].inputs:
            return
        parts.add(other)
    inputs = [x]
    value = nodes[div].outputs[0]
    width = rewrite.model.spec(x).shape
    for op_type in ("Mul", "Add"):
        after = rewrite.sole_reader(value)
        if after is None or not rewrite.is_op(after, op_type):
            return
        (name,) = (name for name in nodes[after].inputs if name != value)
        array = rewrite.constant(name)
        if array is None or array.ndim != 1 or not width or width[-1] != array.size:
            return
        inputs.append(name)
        parts.add(after)
        value = nodes[after].outputs[0]
    if not _is_closed(rewrite, parts, value):
        return
    covered = [nodes[p] for p in sorted(parts)]
    # The operator computes in float32 unless told otherwise; 11 is double.
    stash_type = 11 if rewrite.model.spec(x).element_type == "double" else 1
    attributes = {"axis": -1, "epsilon": epsilon, "stash_type": stash_type}
    rewrite.replace(parts, fused_node("LayerNormalization", inputs, [value], covered, attributes))


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


def _is_closed(rewrite: Rewrite, parts: set[int], output: str) -> bool:
    """Tell whether nothing outside reads what the parts make, but for `output`."""
    return all(
        value == output or (rewrite.readers(value) and set(rewrite.readers(value)) <= parts)
        for part in parts
        for value in rewrite.model.nodes[part].writes
    )
