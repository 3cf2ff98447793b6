"""Pass: equal filters of a convolution give equal channels, to the last bit.

A product of matrices need not round equal rows alike: BLAS libraries may sum the rows of a block in
different orders, for some shapes and processors. A network whose last filters are equal (as those
with generated weights, which ONNX's suite has) then prefers one of its classes over the others by
rounding alone. Convolutions get a list of their equal filters, where no other product stands
between them and an output: a sum over channels does not care for their last bits.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from onnx import helper

from devices.kernels.convolve import first_alike
from devices.model.model import Model, Node
from devices.transforms.rewriting import Rewrite, fused_node

#: Operators whose outputs are sums over channels.
_PRODUCTS: Final = {"Conv", "ConvTranspose", "FusedConv", "FusedMatMul", "Gemm", "MatMul"}

#: FusedConv's inputs before `alike`: x, w, b, z.
_INPUTS: Final = 4


def even_filters(model: Model) -> Model:
    """Return the model with convolutions that treat equal filters equally."""
    rewrite = Rewrite(model)
    seen = {port.name for port in model.outputs}
    for i, node in reversed([*enumerate(model.nodes)]):
        if seen.isdisjoint(node.writes):
            continue
        if node.op_type not in _PRODUCTS:
            seen.update(node.reads)
        elif node.op_type == "FusedConv" or rewrite.is_op(i, "Conv"):
            _mark(rewrite, i, node)
    return rewrite.apply()


def _mark(rewrite: Rewrite, i: int, conv: Node) -> None:
    attributes = {attribute.name: attribute for attribute in conv.proto.attribute}
    if "group" in attributes and attributes["group"].i != 1:
        return
    inputs = [*conv.inputs, *("",) * (_INPUTS - len(conv.inputs))]
    weights = rewrite.constant(conv.inputs[1])
    if weights is None:  # made elsewhere: to be looked at in each run
        attributes["even"] = helper.make_attribute("even", 1)
    else:
        alike = first_alike(np, weights)
        if alike is None:
            return
        inputs.append(rewrite.add_constant(f"{conv.name}/alike", alike))
    rewrite.replace((i,), fused_node("FusedConv", inputs, conv.outputs, [conv], attributes))
