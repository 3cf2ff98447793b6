"""Integer arithmetic of OpenVINO: types and ranges that each operator computes exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import numpy as np

from hetero.devices.model.integer_ranges import Range, by_operator
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.support import Refusal

INT32: Final = np.iinfo(np.int32)
#: The largest magnitude up to which a float holds every integer, and rounds no larger one to it.
EXACT_FLOAT: Final = 2**24 - 1
#: Element types that OpenVINO computes in.
FLOATS: Final = frozenset({"float", "float16"})
#: Integer types that OpenVINO converts to 32 bits.
NARROWED: Final = frozenset({"int64", "uint64", "uint32"})
#: Integer types that OpenVINO does not convert.
_NATIVE_TYPES: Final = frozenset({"bool", "int8", "int16", "int32", "uint8", "uint16"})
_SUPPORTED_TYPES: Final = NARROWED | _NATIVE_TYPES
_NO_TYPES: Final = frozenset[str]()


def is_within(value: str, ranges: Mapping[str, Range], limit: int) -> bool:
    """Return whether a value's magnitude is proven to be at most `limit`."""
    return value in ranges and -limit <= ranges[value][0] and ranges[value][1] <= limit


def _is_never_exact(node: Node, ranges: Mapping[str, Range]) -> bool:
    return False


def _all_fit_floats(node: Node, ranges: Mapping[str, Range]) -> bool:
    """Return whether floats hold all integers that a node reads and writes."""
    return all(
        is_within(v, ranges, EXACT_FLOAT) for v in (*node.inputs, *node.outputs) if v in ranges
    )


def _one_fits_floats(node: Node, ranges: Mapping[str, Range]) -> bool:
    """Return whether floats hold one side of a comparison: no larger integer rounds to it."""
    return any(is_within(value, ranges, EXACT_FLOAT) for value in node.inputs)


class _Exactness(NamedTuple):
    """The integers that an operator computes exactly."""

    #: Types that are exact for every value.
    types: frozenset[str]
    #: Returns whether a node is exact for the other types.
    condition: Callable[[Node, Mapping[str, Range]], bool] = _is_never_exact


#: Operators -> the integers that they compute exactly; other operators compute none.
_EXACTNESS: Final = by_operator(
    {
        # These move or compare elements.
        "Cast Compress Concat ConstantOfShape DepthToSpace Expand EyeLike Flatten Gather "
        "GatherElements GatherND Identity Max Min NonZero Not And Or Xor OneHot Pad Reshape "
        "ReverseSequence Scatter ScatterElements ScatterND Shape Size Slice SpaceToDepth Split "
        "Squeeze Tile Transpose Unsqueeze Where": _Exactness(_SUPPORTED_TYPES),
        # These compute in 32 bits.
        "Abs Add CumSum Mul Neg Range Sign Sub": _Exactness(NARROWED | {"int32"}),
        "GRU LSTM RNN": _Exactness(frozenset({"int32"})),
        "ArgMax ArgMin QuantizeLinear DequantizeLinear ConvInteger MatMulInteger QLinearConv "
        "QLinearMatMul": _Exactness(frozenset({"int8", "uint8", "int32"})),
        "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot": _Exactness(_NATIVE_TYPES - {"bool"}),
        "BitShift": _Exactness(frozenset({"uint8", "uint16"})),
        "IsNaN IsInf Attention Dropout": _Exactness(frozenset({"bool"})),
        # These compute in floats.
        "Clip Div Mod ReduceProd ReduceSum Trilu": _Exactness(_NO_TYPES, _all_fit_floats),
        "Equal Greater GreaterOrEqual Less LessOrEqual": _Exactness(
            frozenset({"bool"}), _one_fits_floats
        ),
    }
)
#: Inputs that are indices, axes or sizes, which are small in any type, or whose shape alone counts.
#: The axes of ReduceMax and ReduceMin are left out: OpenVINO turns the infinities of masked rows
#: into the largest float, and ONNX's function for Attention in opset 23 then returns NaN.
_INDEX_INPUTS: Final = by_operator(
    {
        "ConstantOfShape Shape Size": {0},
        "OneHot": {0, 1},
        "CenterCropPad CumSum Expand Gather GatherElements GatherND Reshape Scatter "
        "ScatterElements ScatterND Split Squeeze Tile Trilu Unsqueeze ReverseSequence ReduceSum "
        "ReduceMean ReduceL1 ReduceL2 ReduceProd ReduceLogSum ReduceLogSumExp ReduceSumSquare "
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss AffineGrid": {1},
        "Col2Im": {1, 2},
        "Pad": {1, 3},
        "Slice": {1, 2, 3, 4},
        "RoiAlign": {2},
        "Resize RotaryEmbedding": {3},
    }
)
#: Outputs that are indices or sizes.
_INDEX_OUTPUTS: Final = by_operator(
    {
        "ArgMax ArgMin NonZero Shape Size": {0},
        "MaxPool": {1},
        "Unique": {1, 2, 3},
    }
)


def integer_refusal(
    node: Node, model: Model, narrow: bool, ranges: Mapping[str, Range]
) -> Refusal | None:
    """Return the refusal of a node with integers that OpenVINO may compute wrong.

    `narrow`: whether the user allows 32-bit arithmetic for all 64-bit integers. `ranges`: the
    proven ranges of the model's integers.
    """
    for values, indices in ((node.inputs, _INDEX_INPUTS), (node.outputs, _INDEX_OUTPUTS)):
        for i, value in enumerate(values):
            kind = model.spec(value).element_type if value else ""
            if not kind or kind in FLOATS:
                continue
            if i in indices.get(node.op_type, ()) and kind in _SUPPORTED_TYPES:
                continue
            if problem := _inexactness(node, value, kind, narrow, ranges):
                return Refusal("dtype", f"{value!r} is {model.spec(value).type}: {problem}")
    return None


def _inexactness(
    node: Node, value: str, kind: str, narrow: bool, ranges: Mapping[str, Range]
) -> str | None:
    """Describe why OpenVINO may compute a value of type `kind` wrong; None if it is exact."""
    if kind not in _SUPPORTED_TYPES:
        return f"OpenVINO does not compute in {kind}"
    if kind in NARROWED:
        if narrow:
            return None
        if not is_within(value, ranges, INT32.max):
            return f"OpenVINO computes {kind} in 32 bits"
    exactness = _EXACTNESS.get(node.op_type, _Exactness(_NO_TYPES))
    if kind in exactness.types or exactness.condition(node, ranges):
        return None
    return f"OpenVINO's {node.op_type} is not exact for this type"
