"""Workspace of operators: the memory that a kernel uses while it runs, beside its values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from hetero.devices.kernels.convolve import rows_at_once
from hetero.devices.model.model import Model, Node
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.planning.cost.estimation import value_nbytes


def workspace_nbytes(model: Model, node: Node, traits: MemoryTraits) -> int:
    """Estimate the bytes of a node's temporary arrays, from its operator and shapes.

    The estimates follow the kernels of `hetero.devices.kernels`.
    """
    if traits.overwrites_inputs or node.domain:
        return 0  # such devices compute in tiles
    estimate = _ESTIMATES.get(node.op_type)
    if estimate is None or not node.inputs or not node.writes:
        return 0
    return estimate(node, [model.spec(v) for v in node.inputs], model.spec(node.writes[0]))


def _convolution(node: Node, inputs: list[TensorSpec], output: TensorSpec) -> int:
    """Columns of input windows (im2col) for some output rows, and the padded input."""
    image, weight = inputs[0], inputs[3 if node.op_type == "QLinearConv" else 1]
    spatial, kernel = _sizes(output)[2:], _sizes(weight)[2:]
    if not spatial or not kernel:
        return 0
    is_padded = any(node.attributes.get("pads", ())) or "auto_pad" in node.attributes
    padded = value_nbytes(image) // max(1, _sizes(image)[0]) if is_padded else 0
    if math.prod(kernel) == 1 and not is_padded:
        return 0
    item_nbytes = value_nbytes(image) // max(1, math.prod(_sizes(image)))
    column_nbytes = _sizes(image)[1] * math.prod(kernel) * item_nbytes
    rows = rows_at_once(column_nbytes, spatial)
    return padded + column_nbytes * rows * math.prod(spatial[1:])


def _transposed_convolution(node: Node, inputs: list[TensorSpec], output: TensorSpec) -> int:
    """Columns of output windows, and the sum of them."""
    image, weight = inputs[:2]
    channels, kernel = _sizes(image)[1:2], _sizes(weight)[1:]
    if not channels or not kernel:
        return 0
    return value_nbytes(image) // channels[0] * math.prod(kernel) + value_nbytes(output)


def _pooling(node: Node, inputs: list[TensorSpec], output: TensorSpec) -> int:
    """The input, reduced along its first spatial axis."""
    sizes, reduced = _sizes(inputs[0]), _sizes(output)
    if len(sizes) < 4 or len(reduced) < 4:
        return 0
    return value_nbytes(inputs[0]) * reduced[2] // max(1, sizes[2])


def _elementwise(node: Node, inputs: list[TensorSpec], output: TensorSpec) -> int:
    """An intermediate result of the size of the output."""
    return value_nbytes(output)


_ESTIMATES: Final[Mapping[str, Callable[[Node, list[TensorSpec], TensorSpec], int]]] = {
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    "ConvTranspose": _transposed_convolution,
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), _pooling),
    **dict.fromkeys(("Softmax", "LogSoftmax", "LayerNormalization", "Gelu", "Erf"), _elementwise),
}


def _sizes(spec: TensorSpec) -> list[int]:
    return [d if isinstance(d, int) else 1 for d in spec.shape or ()]
