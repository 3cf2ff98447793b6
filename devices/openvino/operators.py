"""Where OpenVINO departs from ONNX's definitions though it takes a node, found by running it.

What is listed here is refused, so that another device gives the right answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx

from hetero.devices.model.integer_ranges import Range, by_operator
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.faults import Fault, Use, departure
from hetero.devices.plugin.support import Refusal

#: Operators whose answers are right but for NaN or infinities -> how they are not.
NOTES: Final = by_operator(
    {
        "Celu Exp HardSigmoid Max Min Relu Softmax LogSoftmax": "NaN is not carried on",
        "Greater GreaterOrEqual": "true where one side is NaN",
        "Clip": "NaN and infinities become the nearest limit",
        "ArgMax ArgMin Gelu Hardmax Mod ThresholdedRelu": "not right for NaN and infinities",
        "ReduceMax ReduceMin": "infinities alone become the nearest float",
        "QuantizeLinear": "a value between two steps may go to the other one",
        "LpNormalization": "a small number is added to what it divides by",
    }
)
#: Element types that are computed in.
_FLOATS: Final = frozenset({"float", "float16"})
#: Integers whose values OpenVINO carries on unchanged.
_CARRIED: Final = frozenset({"bool", "int8", "int16", "int32", "uint8", "uint16"})
#: Integers that it computes in 32 bits.
NARROWED: Final = frozenset({"int64", "uint64", "uint32"})
#: Operators that move or compare elements, which is right for every type that is carried.
_MOVES: Final = frozenset(
    [
        "Cast",
        "Compress",
        "Concat",
        "ConstantOfShape",
        "DepthToSpace",
        "Expand",
        "EyeLike",
        "Flatten",
        "Gather",
        "GatherElements",
        "GatherND",
        "Identity",
        "Max",
        "Min",
        "NonZero",
        "Not",
        "And",
        "Or",
        "Xor",
        "OneHot",
        "Pad",
        "Reshape",
        "ReverseSequence",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Size",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
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
_INTEGERS: Final = by_operator(
    {
        "Add Sub Mul GRU LSTM RNN": frozenset({"int32"}),
        "ArgMax ArgMin QuantizeLinear DequantizeLinear ConvInteger MatMulInteger QLinearConv "
        "QLinearMatMul": frozenset({"int8", "uint8", "int32"}),
        "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot": _CARRIED - {"bool"},
        "BitShift": frozenset({"uint8", "uint16"}),
        "IsNaN IsInf Attention Dropout": frozenset({"bool"}),
    }
)
#: Inputs that are places, axes or sizes, small whatever their type, or of which only the shape is
#: read.
_PLACES: Final = by_operator(
    {
        "ConstantOfShape Shape Size": {0},
        "OneHot": {0, 1},
        "CenterCropPad CumSum Expand Gather GatherElements GatherND Reshape Scatter "
        "ScatterElements "
        "ScatterND Split Squeeze Tile Trilu Unsqueeze ReverseSequence ReduceSum ReduceMean "
        "ReduceL1 "
        "ReduceL2 ReduceProd ReduceLogSum ReduceLogSumExp ReduceSumSquare "
        "NegativeLogLikelihoodLoss "
        "SoftmaxCrossEntropyLoss AffineGrid": {1},
        "Col2Im": {1, 2},
        "Pad": {1, 3},
        "Slice": {1, 2, 3, 4},
        "RoiAlign": {2},
        "Resize RotaryEmbedding": {3},
    }
)
#: Outputs that are places or sizes.
_FOUND: Final = by_operator(
    {
        "ArgMax ArgMin NonZero Shape Size": {0},
        "MaxPool": {1},
        "Unique": {1, 2, 3},
    }
)


def refusal(node: Node, model: Model, narrow: bool, ranges: Mapping[str, Range]) -> Refusal | None:
    """Return why a node's answers would be wrong, or None.

    `narrow`: whether 64-bit integers may be computed in 32 bits whatever they are; `ranges`: what
    is proven of the model's integers.
    """
    if wrong := departure("OpenVINO", _FAULTS, Use(node, model, ranges, narrow)):
        return wrong
    for values, places in ((node.inputs, _PLACES), (node.outputs, _FOUND)):
        for i, value in enumerate(values):
            kind = model.spec(value).element_type if value else ""
            if not kind or kind in _FLOATS:
                continue
            if i in places.get(node.op_type, ()) and kind in NARROWED | _CARRIED:
                continue
            if how := _wrong_type(node, value, kind, narrow, ranges):
                return Refusal("dtype", f"{value!r} is {model.spec(value).type}: {how}")
    return None


def _wrong_type(
    node: Node, value: str, kind: str, narrow: bool, ranges: Mapping[str, Range]
) -> str | None:
    """Return what OpenVINO would do wrong with the elements of a value, or None."""
    operator = node.op_type
    if kind not in NARROWED | _CARRIED:
        return f"OpenVINO does not compute in {kind}"
    if narrow and kind in NARROWED:
        return None
    if kind in NARROWED and not fits(value, ranges, INT32.max):
        return f"OpenVINO computes {kind} in 32 bits"
    small = [fits(v, ranges, EXACT_FLOAT) for v in (*node.inputs, *node.outputs) if v in ranges]
    if (
        operator in _MOVES
        or kind in _INTEGERS.get(operator, ())
        or (operator in _WHOLE and kind in NARROWED | {"int32"})
        or (operator in _AS_FLOATS and all(small))
    ):
        return None
    if operator in _COMPARED and (
        kind == "bool" or any(fits(v, ranges, EXACT_FLOAT) for v in node.inputs)
    ):
        return None
    return f"OpenVINO's {operator} is not exact for it"


def fits(value: str, ranges: Mapping[str, Range], limit: int) -> bool:
    """Whether a value is proven to be of at most that magnitude."""
    return value in ranges and -limit <= ranges[value][0] and ranges[value][1] <= limit


def _narrows(use: Use) -> bool:
    """Whether floats that a Cast makes integers of need not fit in 32 bits."""
    made = use.node.outputs[0]
    if use.narrow or use.element_type(made) not in NARROWED:
        return False
    if fits(made, use.ranges, INT32.max):
        return False
    return use.element_type(use.node.inputs[0]) in _FLOATS


def _fills_widely(use: Use) -> bool:
    value = use.get("value", None)
    return value is not None and value.dtype.kind in "iu" and abs(int(value.flat[0])) >= 2**31


def _scales_an_open_axis(use: Use) -> bool:
    """Whether there is a scale for each place of an axis of which the length is not known."""
    if use.shape(1) in ((), (1,)):
        return False
    shape = use.shape(0) or ()
    axis = use.get("axis", 1)
    return not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int)


def _may_go_along_the_channels(use: Use) -> bool:
    """Whether PRelu has slopes for the last axis alone, of more than two, and channels as many."""
    shape, slopes = (use.shape(i) or () for i in (0, 1))
    return (
        len(shape) > 2
        and len(slopes) == 1
        and slopes != (1,)
        and (shape[1] == slopes[0] or not isinstance(shape[1], int))
    )


def _is_constant(use: Use) -> bool:
    """Whether a node makes the same for every request."""
    return use.model.moving.isdisjoint(use.node.reads)


def _reduced_of_three(use: Use) -> list[int]:
    """Return which axes of three are reduced."""
    axes = use.model.constants.get(use.given(1))
    found = axes.array.ravel().tolist() if axes else use.get("axes", ())
    return [axis % 3 for axis in found]


def _is_dequantised_between(use: Use) -> bool:
    """Whether the middle one of three axes is reduced of what was quantised."""
    maker = use.maker(0)
    is_dequantised = maker is not None and maker.op_type == "DequantizeLinear"
    return is_dequantised and len(use.shape(0) or ()) == 3 and _reduced_of_three(use) == [1]


def _is_scaled_by_place(use: Use) -> bool:
    """Whether one axis of three is reduced, the first or the last, and constants go with it."""
    # What follows is computed in the same step, with one constant for another's places; in
    # quantised models also what comes before, which OpenVINO moves behind.
    model = use.model
    if len(use.shape(0) or ()) != 3:
        return False
    if use.node.op_type.startswith("Reduce") and _reduced_of_three(use) not in ([0], [2]):
        return False

    def before(node: Node) -> list[Node]:
        return [maker for value in node.reads if (maker := model.maker(value))]

    for step in (model.readers, before) if _is_quantised(model) else (model.readers,):
        near = step(use.node)
        while near:
            node = near.pop()
            constants = [v for v in node.reads if v not in model.moving]
            if len(constants) != len(node.reads) - 1:
                continue
            if any(model.spec(v).shape not in ((), (1,)) for v in constants):
                return True
            near += step(node)
    return False


def _is_quantised(model: Model) -> bool:
    """Whether OpenVINO moves what quantisation scales by through the model."""
    return any(node.op_type == "QuantizeLinear" for node in model.nodes)


def _is_also_quantised(use: Use) -> bool:
    """Whether what a node makes is quantised by one reader, and read or given out besides."""
    readers = use.model.readers(use.node)
    given_out = any(port.name == use.node.outputs[0] for port in use.model.outputs)
    return len(readers) + given_out > 1 and any(r.op_type == "QuantizeLinear" for r in readers)


def _is_left_out(use: Use) -> bool:
    """Whether what a reduction made without its axes gets as many axes of other lengths."""
    maker = use.maker(0)
    if maker is None or not maker.op_type.startswith("Reduce"):
        return False
    given, made = use.shape(0), use.model.spec(use.node.outputs[0]).shape
    kept = maker.attributes.get("keepdims", 1)
    return not kept and given != made and (given is None or made is None or len(given) == len(made))


def _skips_what_it_pads(use: Use) -> bool:
    """Whether a convolution of single elements has strides and pads."""
    kernel = use.shape(1 if use.node.op_type == "Conv" else 3) or ()
    strides, pads = use.get("strides", (1,)), use.get("pads", (0,))
    return set(kernel[2:]) == {1} and max(strides) > 1 and any(pads)


def _reads_scaled_columns(use: Use) -> bool:
    """Whether a constant is read that is dequantised along another axis than the first."""
    node = use.maker(0)
    if node is None or use.given(0) in use.model.moving:
        return False
    return (
        node.op_type == "DequantizeLinear"
        and use.model.spec(node.inputs[1]).shape not in ((), (1,))
        and node.attributes.get("axis", 1) != 0
    )


def _is_zero(use: Use, position: int) -> bool:
    """Whether an input is a constant of zeros alone."""
    constant = use.model.constants.get(use.given(position))
    return constant is not None and not constant.array.any()


#: Each is a case of ONNX's backend suite, or of its operators on extreme values, whose expected
#: output OpenVINO 2026.4 misses on its CPU.
_FAULTS: Final = (
    Fault(
        "Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        "its random numbers are not those of the seed",
    ),
    Fault("DFT", "up to 3e-4 for zeros, and the axis of operator set 20 is not read"),
    Fault("DynamicQuantizeLinear", "values between two steps go to the other one"),
    Fault("NonMaxSuppression", "boxes whose overlap is just the threshold are dropped"),
    Fault(
        "ReduceMax ReduceMin",
        "of no elements it gives the farthest float",
        lambda u: 0 in (u.shape(0) or ()),
    ),
    Fault("TopK", "of equal elements the first need not come first"),
    Fault(
        "Attention",
        "a causal mask beside another, or with past keys, is left out",
        lambda u: any(map(u.given, range(4, 7))) or (u.given(3) and u.get("is_causal")),
    ),
    Fault("Attention", "further outputs are not checked", lambda u: any(u.node.outputs[1:])),
    Fault(
        "QuantizeLinear DequantizeLinear",
        "scales along an axis of open length go along another",
        _scales_an_open_axis,
    ),
    Fault(
        "QLinearConv",
        "weights of uint8 from zero on do not compile",
        lambda u: u.element_type(u.given(3)) == "uint8" and _is_zero(u, 5),
    ),
    Fault(
        "Conv ConvTranspose QLinearConv QLinearMatMul",
        "of constants alone it makes anything",
        _is_constant,
    ),
    Fault(
        "Conv QLinearConv",
        "of single elements, with strides, it leaves pads out",
        _skips_what_it_pads,
    ),
    Fault(
        "Conv",
        "where it is quantised by one reader, and has others, that one reads zeros",
        _is_also_quantised,
    ),
    Fault(
        "AveragePool",
        "in quantised models, pads that count are no zeros",
        lambda u: (
            u.get("count_include_pad")
            and _is_quantised(u.model)
            and (any(u.get("pads", ())) or u.get("auto_pad", "NOTSET").startswith("SAME"))
        ),
    ),
    Fault("Reshape Flatten", "after a reduction that drops its axes it is left out", _is_left_out),
    Fault(
        "MatMul Gemm",
        "of dequantised constants alone it makes anything",
        lambda u: (
            _is_constant(u) and any(node.op_type == "DequantizeLinear" for node in u.model.nodes)
        ),
    ),
    Fault(
        "Gather",
        "of a table dequantised by columns, scales go along another axis",
        _reads_scaled_columns,
    ),
    Fault(
        "GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
        "with one axis of three reduced, constants that follow go to other places",
        _is_scaled_by_place,
    ),
    Fault(
        "ReduceMax ReduceMean ReduceMin ReduceSum",
        "of dequantised values, with the middle one of three axes reduced, it makes zeros",
        _is_dequantised_between,
    ),
    Fault("ReduceLogSumExp", "the attribute 'axes' is not read", lambda u: u.get("axes")),
    Fault("PRelu", "a slope of one dimension goes along the channels", _may_go_along_the_channels),
    Fault(
        "GroupNormalization",
        "of two dimensions it may end the process",
        lambda u: len(u.shape(0) or ()) < 3,
    ),
    Fault("GRU LSTM RNN", "layout=1 is not read", lambda u: u.get("layout")),
    Fault(
        "GRU LSTM RNN",
        "lengths of sequences are not read where sizes are open",
        lambda u: u.given(4) and not all(type(n) is int for n in u.shape(0) or ("",)),
    ),
    Fault("LSTM", "peepholes are left out", lambda u: u.given(7)),
    Fault(
        "Resize",
        "its filters with antialias or exclude_outside have other weights",
        lambda u: u.get("antialias") or u.get("exclude_outside"),
    ),
    Fault(
        "Resize",
        "keep_aspect_ratio_policy is not read",
        lambda u: u.get("keep_aspect_ratio_policy", "stretch") != "stretch",
    ),
    Fault(
        "Resize",
        "with scales, corners are aligned of the whole length",
        lambda u: (
            u.get("coordinate_transformation_mode") == "align_corners"
            and u.given(2)
            and u.get("mode", "nearest") != "nearest"
        ),
    ),
    Fault(
        "GlobalLpPool",
        "without spatial dimensions it does not compile",
        lambda u: len(u.shape(0) or ()) < 3,
    ),
    Fault(
        "RoiAlign",
        "the greatest is taken before the weights are applied",
        lambda u: u.get("mode") == "max",
    ),
    Fault("SpaceToDepth", "mode is not read", lambda u: u.get("mode", "DCR") != "DCR"),
    Fault(
        "Expand",
        "to no elements it ends the process",
        lambda u: 0 in (u.model.spec(u.node.outputs[0]).shape or ()),
    ),
    Fault("Compress", "of no elements it ends the process", lambda u: _is_zero(u, 1)),
    Fault(
        "Slice",
        "ends beyond 32 bits wrap round",
        lambda u: any(
            u.is_computed(v) and u.element_type(v) == "int64" and not fits(v, u.ranges, INT32.max)
            for v in u.node.inputs[1:3]
        ),
    ),
    Fault(
        "Dropout",
        "ratio and training_mode are read only where they are constants",
        lambda u: any(map(u.is_computed, u.node.inputs[1:])),
    ),
    Fault(
        "Tile",
        "repeats that are no constant may give anything",
        lambda u: u.is_computed(u.given(1)),
    ),
    Fault("ConstantOfShape", "its value does not fit in 32 bits", _fills_widely),
    Fault("Cast", "floats beyond 32 bits are cut off", _narrows),
)


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
