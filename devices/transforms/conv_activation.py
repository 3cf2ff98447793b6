"""Pass: a convolution takes over the residual sum and the activation that follow it.

``activation(Conv(x, W, B) + z)`` becomes ``hetero::FusedConv``, whose blocks are finished while
they are in cache. The sum needs a `z` of the product's own shape; either part may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from devices.interpreter.implementations import FUSED
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node


def fuse_conv_activation(model: Model) -> Model:
    """Return the model with sums and activations after convolutions merged into them."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, "Conv"):
            _fuse(rewrite, i, node)
    return rewrite.apply()


def _fuse(rewrite: Rewrite, i: int, conv: Node) -> None:
    nodes, model = rewrite.model.nodes, rewrite.model
    if model.spec(conv.inputs[0]).element_type not in ("float", "double"):
        return
    parts, value, residual = [i], conv.outputs[0], ""
    after = rewrite.sole_reader(value)
    if _is_sum(rewrite, after) and after is not None:
        (other,) = (name for name in nodes[after].inputs if name != value)
        mine, theirs = model.spec(value), model.spec(other)
        if mine.shape is not None and mine.shape == theirs.shape and None not in mine.shape:
            parts.append(after)
            value, residual = nodes[after].outputs[0], other
    found = activation_after(rewrite, value)
    name, params = "", tuple[float, ...]()
    if found is not None:
        positions, name, given = found
        params = tuple(map(float, given))
        parts += positions
        value = nodes[positions[-1]].outputs[0]
    if len(parts) == 1:
        return
    inputs = [*conv.inputs, ""][:3] + ([residual] if residual else [])
    attributes: dict[str, Any] = {a.name: a for a in conv.proto.attribute}
    attributes |= {"activation": name, "activation_params": params}
    covered = [nodes[p] for p in parts]
    rewrite.replace(parts, fused_node("FusedConv", inputs, [value], covered, attributes))


def _is_sum(rewrite: Rewrite, at: int | None) -> bool:
    """Tell whether the node adds two tensors."""
    if at is None:
        return False
    node = rewrite.model.nodes[at]
    return rewrite.is_op(at, "Add") or (rewrite.is_op(at, "Sum") and len(node.inputs) == 2)


def activation_after(
    rewrite: Rewrite, value: str
) -> tuple[Sequence[int], str, Sequence[float]] | None:
    """Return the positions, name and parameters of the activation that alone reads `value`.

    Parameters are in the order of the operator's specification.
    """
    nodes = rewrite.model.nodes
    readers = rewrite.readers(value)
    if len(readers) == 2:
        gate, product = readers
        name = _gated(rewrite, gate)
        if (
            name
            and rewrite.is_op(product, "Mul")
            and set(nodes[product].inputs) == {value, nodes[gate].outputs[0]}
            and rewrite.sole_reader(nodes[gate].outputs[0]) == product
        ):
            return (gate, product), name, ()
        return None
    at = rewrite.sole_reader(value)
    if at is None or nodes[at].inputs[0] != value:
        return None
    attributes = nodes[at].attributes
    if nodes[at].op_type == "FakeQuantize" and nodes[at].domain == FUSED:
        return (at,), "FakeQuantize", tuple(attributes[key] for key in ("scale", "low", "high"))
    if rewrite.is_op(at, "Relu", "Sigmoid", "Tanh", "HardSwish"):
        return (at,), nodes[at].op_type, ()
    if rewrite.is_op(at, "LeakyRelu"):
        return (at,), "LeakyRelu", (attributes.get("alpha", 0.01),)
    if rewrite.is_op(at, "HardSigmoid"):
        return (
            (at,), "HardSigmoid", (attributes.get("alpha", 0.2), attributes.get("beta", 0.5)),
        )  # fmt: skip
    if rewrite.is_op(at, "Clip"):
        bounds = _clip_bounds(rewrite, nodes[at])
        return None if bounds is None else ((at,), "Clip", bounds)
    return None


def _gated(rewrite: Rewrite, gate: int) -> str:
    """Return the name of the activation that is x times this gate of x, or the empty string."""
    if rewrite.is_op(gate, "Sigmoid"):
        return "Swish"
    attributes = rewrite.model.nodes[gate].attributes
    sixth = abs(attributes.get("alpha", 0.2) - 1 / 6) < 1e-6
    is_hard = rewrite.is_op(gate, "HardSigmoid") and sixth and attributes.get("beta", 0.5) == 0.5
    return "HardSwish" if is_hard else ""


def _clip_bounds(rewrite: Rewrite, node: Node) -> tuple[float, float] | None:
    bounds = [-float("inf"), float("inf")]
    attributes = node.attributes
    for k, name in enumerate(("min", "max")):
        if name in attributes:
            bounds[k] = attributes[name]
        elif len(node.inputs) > k + 1 and node.inputs[k + 1]:
            given = rewrite.scalar(node.inputs[k + 1], beside=node.inputs[0])
            if given is None:
                return None
            bounds[k] = given
    return bounds[0], bounds[1]
