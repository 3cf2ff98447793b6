"""What lies between quantised products: what moves integers takes them as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from onnx import TensorProto

from devices.interpreter.implementations import FUSED
from devices.kernels.quantize import RANGE
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node, with_inputs

#: Element types that products of integers take and give.
TYPES: Final = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
#: The oldest opset whose MaxPool takes integers; the others always did.
_INTEGER_POOLS: Final = 12
#: Operators whose results are elements of their first input, or of any where it is Concat.
_MOVES: Final = (
    "Concat", "Flatten", "Gather", "Identity", "MaxPool", "Reshape", "Slice", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip


class Grid(NamedTuple):
    """What integers of a type stand for: (integer - zero) * scale."""

    dtype: str
    scale: float
    zero: int

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest multiple of the scale."""
        low, high = RANGE[self.dtype]
        return float(low - self.zero), float(high - self.zero)

    @property
    def unsigned_zero(self) -> int:
        """The zero point of the integers moved up by 128 if they are signed."""
        return self.zero - RANGE[self.dtype][0]


def _is_product(node: Node) -> bool:
    return node.domain == FUSED and node.op_type in ("QuantizedConv", "QuantizedMatMul")


def integer_moves(model: Model) -> Model:
    """Return the model with operators that move what products made between two quantisations.

    A product whose integers only Concat reads, on a grid other than Concat's result, rounds to it.
    """
    rewrite = Rewrite(model)
    pools = model.opset_imports.get("", 0) >= _INTEGER_POOLS
    moved: set[str] = set()
    for i, node in enumerate(model.nodes):
        if rewrite.is_op(i, *_MOVES) and (node.op_type != "MaxPool" or pools):
            _move(rewrite, i, node, moved)
    return rewrite.apply()


def _move(rewrite: Rewrite, i: int, node: Node, moved: set[str]) -> None:
    nodes = rewrite.model.nodes
    if len(node.outputs) != 1:
        return
    after = rewrite.sole_reader(node.outputs[0])
    if after is None or not rewrite.is_op(after, "QuantizeLinear"):
        return
    to = grid_of(rewrite, nodes[after].inputs[1:])
    count = len(node.inputs) if node.op_type == "Concat" else 1
    if to is None:
        return
    integers, changed = [], {}
    for name in node.inputs[:count]:
        back = rewrite.producer(name)
        if back is None or not rewrite.is_op(back, "DequantizeLinear"):
            return
        value = nodes[back].inputs[0]
        made = rewrite.model.producers.get(value)
        if made is None or not (value in moved or _is_product(nodes[made])):
            return
        if grid_of(rewrite, nodes[back].inputs[1:], of=value) != to:
            alone = rewrite.sole_reader(value) == back and rewrite.sole_reader(name) == i
            if value in moved or not alone or count == 1:
                return
            given = grid_of(rewrite, nodes[back].inputs[1:], of=value)
            if given is None:
                return
            changed[made] = _rounded_to(nodes[made], given, to)
        integers.append(value)
    for made, product in changed.items():
        rewrite.replace([made], product)
    parts = [node, nodes[after]]
    inputs = [*integers, *node.inputs[count:]]
    rewrite.replace([i, after], with_inputs(node, inputs, nodes[after].outputs, *parts))
    moved.add(nodes[after].outputs[0])


def _rounded_to(product: Node, given: Grid, to: Grid) -> Node:
    """Return a product of integers on one grid with a result on another."""
    low, high, *_ = product.attributes["rounding"]
    rounding = (low, high, given.scale / to.scale, *to.ends, float(to.zero))
    return _changed(product, product.outputs[0], [], to=TYPES[to.dtype], rounding=rounding)


def _changed(product: Node, output: str, more: Sequence[Node], **attributes: Any) -> Node:
    given = {a.name: a for a in product.proto.attribute} | attributes
    parts = [product, *more]
    return fused_node(product.op_type, product.inputs, [output], parts, given)


def float_results(model: Model) -> Model:
    """Return the model with products whose integers are only dequantised giving floats."""
    rewrite = Rewrite(model)
    for i, node in enumerate(model.nodes):
        if _is_product(node):
            _give_floats(rewrite, i, node)
    return rewrite.apply()


def _give_floats(rewrite: Rewrite, i: int, node: Node) -> None:
    value, nodes = node.outputs[0], rewrite.model.nodes
    backs = rewrite.readers(value)
    low, high, ratio, *_ = node.attributes["rounding"]
    if ratio or not backs or not all(rewrite.is_op(at, "DequantizeLinear") for at in backs):
        return
    grids = {grid_of(rewrite, nodes[at].inputs[1:], of=value) for at in backs}
    first, *others = backs
    if len(grids) > 1 or not all(rewrite.is_free(nodes[at].outputs[0]) for at in others):
        return
    grid = grids.pop()
    if grid is None or node.attributes["rounding"][5] != grid.zero:
        return
    rounding = (low, high, grid.scale, 0.0, 0.0, 0.0)
    output = nodes[first].outputs[0]
    for at in others:
        rewrite.remove(at)
        rewrite.rename(nodes[at].outputs[0], output)
    floats = _changed(node, output, [nodes[first]], to=TensorProto.FLOAT, rounding=rounding)
    rewrite.replace([i, first], floats)


def grid_of(rewrite: Rewrite, parameters: Sequence[str], of: str = "") -> Grid | None:
    """Return the grid of a constant scale and zero point; without one, of what type `of` is."""
    scale, zero = [*parameters, ""][:2]
    step, shift = rewrite.constant(scale), rewrite.constant(zero)
    if step is None or step.size != 1 or step.dtype != np.float32:
        return None
    if shift is None:
        kind = rewrite.model.spec(of).element_type if of else "uint8"
        return None if zero or kind not in TYPES else Grid(kind, float(step.reshape(())), 0)
    if shift.size != 1 or shift.dtype.name not in TYPES:
        return None
    return Grid(shift.dtype.name, float(step.reshape(())), int(shift.reshape(())))
