"""Where OpenVINO departs from ONNX's definitions though it takes a node, found by running it.

Each line is a case of ONNX's backend suite, or of its operators on extreme values, whose expected
output OpenVINO 2026.4 misses on its CPU. What is listed here is refused, so that another device
gives the right answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import onnx

from devices.model.integer_ranges import Range
from devices.model.model import Model, Node
from devices.plugin.support import Refusal

#: Operators that are refused whatever their inputs are -> how OpenVINO's differ.
_REFUSED: Final = {
    "Bernoulli": "its random numbers are not those of the seed",
    "DFT": "up to 3e-4 where zeros are expected, and the axis of operator set 20 is not read",
    "DynamicQuantizeLinear": "values between two steps go to the other one",
    "NonMaxSuppression": "boxes whose overlap is just the threshold are dropped",
    "RandomNormal": "its random numbers are not those of the seed",
    "RandomNormalLike": "its random numbers are not those of the seed",
    "RandomUniform": "its random numbers are not those of the seed",
    "RandomUniformLike": "its random numbers are not those of the seed",
    "TopK": "of equal elements the first need not come first",
}
#: Operators whose answers are right but for NaN or infinities -> how they are not.
NOTES: Final = {
    name: text
    for text, names in (
        ("NaN is not carried on", "Celu Exp HardSigmoid Max Min Relu Softmax LogSoftmax"),
        ("true where one side is NaN", "Greater GreaterOrEqual"),
        ("NaN and infinities become the nearest limit", "Clip"),
        ("not right for NaN and infinities", "ArgMax ArgMin Gelu Hardmax Mod ThresholdedRelu"),
        ("infinities alone become the nearest float", "ReduceMax ReduceMin"),
        ("a value between two steps may go to the other one", "QuantizeLinear"),
    )
    for name in names.split()
}
#: Element types that are computed in.
_FLOATS: Final = frozenset({"float", "float16"})
#: Integers whose values OpenVINO carries on unchanged.
_CARRIED: Final = frozenset({"bool", "int8", "int16", "int32", "uint8", "uint16"})
#: Integers that it computes in 32 bits.
NARROWED: Final = frozenset({"int64", "uint64", "uint32"})
#: Operators that move or compare elements, which is right for every type that is carried.
_MOVES: Final = frozenset(
    {
        "Cast", "Compress", "Concat", "ConstantOfShape", "DepthToSpace", "Expand",
        "EyeLike", "Flatten", "Gather", "GatherElements", "GatherND",
        "Identity", "Max", "Min", "NonZero", "Not", "And", "Or", "Xor",
        "OneHot", "Pad", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND",
        "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
        "Unsqueeze", "Where",
    }
)  # fmt: skip
#: Operators that are right for all that 32 bits hold, besides those that move elements.
_WHOLE: Final = frozenset({"Abs", "Add", "CumSum", "Mul", "Neg", "Range", "Sign", "Sub"})
#: Operators that compute integers as floats: right up to `EXACT_FLOAT`.
_AS_FLOATS: Final = frozenset({"Clip", "Div", "Mod", "ReduceProd", "ReduceSum", "Trilu"})
#: Comparisons, as floats too: right where one side is that small.
_COMPARED: Final = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
#: Up to this magnitude a float holds every integer, and no larger one becomes one of them.
EXACT_FLOAT: Final = 2**24 - 1
INT32: Final = np.iinfo(np.int32)
#: Other operators -> integers that they are right for.
_INTEGERS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("Add", "Sub", "Mul"), frozenset({"int32"})),
    **dict.fromkeys(("ArgMax", "ArgMin"), frozenset({"int8", "uint8", "int32"})),
    **dict.fromkeys(
        ("BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"), _CARRIED - {"bool"}
    ),
    "BitShift": frozenset({"uint8", "uint16"}),
    **dict.fromkeys(
        (
            "QuantizeLinear", "DequantizeLinear", "ConvInteger", "MatMulInteger",
            "QLinearConv", "QLinearMatMul",
        ),
        frozenset({"int8", "uint8", "int32"}),
    ),
    **dict.fromkeys(("IsNaN", "IsInf"), frozenset({"bool"})),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), frozenset({"int32"})),
    **dict.fromkeys(("Attention", "Dropout"), frozenset({"bool"})),
}  # fmt: skip
#: Inputs that are places, axes or sizes, small whatever their type, or of which only the shape is
#: read.
_PLACES: Final[Mapping[str, frozenset[int]]] = {
    **dict.fromkeys(
        (
            "CenterCropPad", "CumSum", "Expand", "Gather", "GatherElements", "GatherND", "OneHot",
            "Reshape", "Scatter", "ScatterElements", "ScatterND", "Split", "Squeeze", "Tile",
            "Trilu", "Unsqueeze", "ReverseSequence", "ReduceSum", "ReduceMean", "ReduceL1",
            "ReduceL2", "ReduceProd", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
            "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "AffineGrid",
        ),
        frozenset({1}),
    ),
    "OneHot": frozenset({0, 1}),
    **dict.fromkeys(("ConstantOfShape", "Shape", "Size"), frozenset({0})),
    "Pad": frozenset({1, 3}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Resize": frozenset({3}),
    "RoiAlign": frozenset({2}),
    "Col2Im": frozenset({1, 2}),
    "RotaryEmbedding": frozenset({3}),
}  # fmt: skip
#: Outputs that are places or sizes.
_FOUND: Final[Mapping[str, frozenset[int]]] = {
    **dict.fromkeys(("ArgMax", "ArgMin", "NonZero", "Shape", "Size"), frozenset({0})),
    "MaxPool": frozenset({1}),
    "Unique": frozenset({1, 2, 3}),
}


def refusal(node: Node, model: Model, narrow: bool, ranges: Mapping[str, Range]) -> Refusal | None:
    """Return why a node's answers would be wrong, or None.

    `narrow`: whether 64-bit integers may be computed in 32 bits whatever they are; `ranges`: what
    is proven of the model's integers.
    """
    if how := _REFUSED.get(node.op_type) or _departure(node, model, narrow, ranges):
        return Refusal("policy", f"OpenVINO's {node.op_type} differs from ONNX's: {how}")
    for values, places in ((node.inputs, _PLACES), (node.outputs, _FOUND)):
        for i, value in enumerate(values):
            kind = model.spec(value).element_type if value else ""
            if not kind or kind in _FLOATS:
                continue
            if i in places.get(node.op_type, ()) and kind in NARROWED | _CARRIED:
                continue
            if wrong := _wrong_type(node, value, kind, narrow, ranges):
                return Refusal("dtype", f"{value!r} is {model.spec(value).type}: {wrong}")
    return None


def _wrong_type(
    node: Node, value: str, kind: str, narrow: bool, ranges: Mapping[str, Range]
) -> str | None:
    """Return what OpenVINO would do wrong with the elements of a value, or None."""
    operator = node.op_type
    if kind not in NARROWED | _CARRIED:
        return f"OpenVINO does not compute in {kind}"
    if kind in NARROWED and not fits(value, ranges, INT32.max):
        if narrow:
            return None
        return f"OpenVINO computes {kind} in 32 bits"
    if operator in _MOVES or kind in _INTEGERS.get(operator, ()):
        return None
    if kind in NARROWED | {"int32"} and operator in _WHOLE:
        return None
    if operator in _COMPARED and (
        kind == "bool" or any(fits(v, ranges, EXACT_FLOAT) for v in node.inputs)
    ):
        return None
    integers = [v for v in (*node.inputs, *node.outputs) if v in ranges]
    if operator in _AS_FLOATS and all(fits(v, ranges, EXACT_FLOAT) for v in integers):
        return None
    if narrow and kind in NARROWED:
        return None
    return f"OpenVINO's {operator} is not exact for it"


def fits(value: str, ranges: Mapping[str, Range], limit: int) -> bool:
    """Whether a value is proven to be of at most that magnitude."""
    return value in ranges and -limit <= ranges[value][0] and ranges[value][1] <= limit


def _departure(node: Node, model: Model, narrow: bool, ranges: Mapping[str, Range]) -> str | None:
    """Return how a node with these attributes and inputs departs from its definition."""
    operator, attributes = node.op_type, node.attributes
    given = [bool(value) for value in node.inputs] + [False] * 8
    if operator == "Attention":
        if any(given[4:7]) or (given[3] and attributes.get("is_causal")):
            return "a causal mask beside another, or with past keys, is left out"
        if any(node.outputs[1:]):
            return "further outputs are not checked"
    if operator in ("GRU", "LSTM", "RNN"):
        if attributes.get("layout"):
            return "layout=1 is not read"
        if operator == "LSTM" and given[7]:
            return "peepholes are left out"
    if operator == "Resize":
        return _departure_of_resize(attributes, given)
    if operator in ("ReduceMax", "ReduceMin") and 0 in (model.spec(node.inputs[0]).shape or ()):
        return "of no elements it gives the farthest float"
    if operator == "GlobalLpPool" and len(model.spec(node.inputs[0]).shape or ()) < 3:
        return "without spatial dimensions it does not compile"
    if operator == "RoiAlign" and attributes.get("mode") == "max":
        return "the greatest is taken before the weights are applied"
    if operator == "SpaceToDepth" and attributes.get("mode", "DCR") != "DCR":
        return "mode is not read"
    if operator == "Slice" and any(
        model.spec(value).element_type == "int64"
        and value not in model.constants
        and not fits(value, ranges, INT32.max)
        for value in node.inputs[1:3]
    ):
        return "ends beyond 32 bits wrap round"
    if operator == "Dropout" and any(v and v not in model.constants for v in node.inputs[1:]):
        return "ratio and training_mode are read only where they are constants"
    if operator == "Tile" and node.inputs[1] not in model.constants:
        return "repeats that are no constant may give anything"
    if operator == "ConstantOfShape":
        tensor = attributes.get("value")
        if tensor is not None and tensor.dtype.kind in "iu" and abs(int(tensor.flat[0])) >= 2**31:
            return "its value does not fit in 32 bits"
    if operator == "Cast" and not narrow and model.spec(node.outputs[0]).element_type in NARROWED:
        source = model.spec(node.inputs[0]).element_type
        if source in _FLOATS and not fits(node.outputs[0], ranges, INT32.max):
            return "floats beyond 32 bits are cut off"
    return None


def _departure_of_resize(attributes: Mapping[str, Any], given: list[bool]) -> str | None:
    if attributes.get("antialias") or attributes.get("exclude_outside"):
        return "its filters with antialias or exclude_outside have other weights"
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "keep_aspect_ratio_policy is not read"
    aligned = attributes.get("coordinate_transformation_mode") == "align_corners"
    if aligned and given[2] and attributes.get("mode", "nearest") != "nearest":
        return "with scales, corners are aligned of the whole length"
    return None


#: The operator set that OpenVINO's frontend was written for: of later definitions it reads what
#: was there already.
KNOWN_OPSET: Final = 23


def unread(node: Node, opset: int) -> str | None:
    """Return what a node has that came after the operator set that OpenVINO knows, or None."""
    if opset <= KNOWN_OPSET or not onnx.defs.has(node.op_type, KNOWN_OPSET):
        return None
    known = onnx.defs.get_schema(node.op_type, KNOWN_OPSET)
    new = [a.name for a in node.proto.attribute if a.name not in known.attributes]
    if new:
        return f"{new[0]!r} of {node.op_type}"
    if len(node.inputs) > known.max_input:
        return f"input {len(node.inputs)} of {node.op_type}"
    return None
