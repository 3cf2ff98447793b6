"""Table of operators: example inputs, attributes, opsets and tolerances.

Tests of the kernels, of the emulated GPU, of splits over devices and of device OV read it, and the
fuzzers vary its cases. Hand-written tests of kernels add edge values and refusals.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.attention_operators import ATTENTION_OPERATORS
from tests.support.microsoft_operators import MICROSOFT_OPERATORS
from tests.support.ml_operators import ML_OPERATORS
from tests.support.operator_rows import (
    SUMS,
    Random,
    Row,
    f32,
    floats,
    integers,
    ints,
    scalar,
    shaped,
    uniform,
    with_ints,
)

SPECIAL = f32(0.0, -0.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -7.25, np.inf, -np.inf, np.nan)
LARGE = f32(0.0, -0.5, 30.0, -30.0, 90.0, -90.0, 1000.0, -1000.0)
TRUTH = np.array([True, False])
ANY_SHAPES = [uniform(-4, 4, *shape) for shape in ((2, 3, 4), (7,), (2, 0, 3), (0,), ())]
#: Functions with steps: a small error of their input can be a large one of their output.
STEPS = ("Ceil", "Floor", "Round", "Shrink", "Sign", "ThresholdedRelu")
#: Shapes that broadcast to each other.
BROADCASTS = [
    *(((2, 3), (3,)), ((1, 3), (2, 1)), ((3,), (2, 2, 3)), ((4,), ()), ((), ()), ((0, 3), (3,)))
]
ACTIVATED = [uniform(-5, 5, 3, 5), LARGE, uniform(-5, 5, 0, 2), uniform(-5, 5)]
POSITIVE = uniform(0.5, 3, 2, 3, 4)
TIES = integers(0, 3, 2, 5, 4, dtype=np.float32)
CUBE = floats(2, 3, 4)
BLOCK = floats(4, 3, 5)
MOVED = floats(4, 3, 4)
PICTURE = floats(1, 2, 8, 8)
EMPTY = f32()
AXES = [[0], [1], [2], [0, 2], [1, 0], [2, 1], [0, 1, 2]]
NEGATIVE_AXES = [[-1], [-2, -1]]
KEEPDIMS = {"keepdims": [0, 1]}
REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd"
    " ReduceSumSquare"
)
SOFTMAXES = "Softmax LogSoftmax Hardmax"
PADS = [(0, 0, 0, 0), (1, 0, 2, 1), (0, 3, 0, 2), (-1, 1, 2, -2)]
#: Tolerances of interpolation, whose coordinates are rounded differently.
INTERPOLATED = {"rtol": 1e-3, "atol": 1e-4}
PAD_MODES = {"mode": ["constant", "reflect", "edge"]}

#: Images and attributes of pools.
WINDOWS: list[tuple[Random, dict[str, Any]]] = [
    (floats(2, 3, 9, 8), {"kernel_shape": [3, 2]}),
    (floats(1, 3, 11, 9), {"kernel_shape": [3, 3], "strides": [2, 3]}),
    (floats(1, 3, 9, 8), {"kernel_shape": [3, 3], "pads": [1, 0, 2, 1], "strides": [2, 2]}),
    (floats(1, 2, 10, 9), {"kernel_shape": [3, 4], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    (floats(1, 2, 10, 9), {"kernel_shape": [3, 4], "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    (floats(1, 2, 10, 9), {"kernel_shape": [3, 4], "auto_pad": "VALID", "strides": [2, 2]}),
    (floats(2, 3, 20), {"kernel_shape": [4], "strides": [3]}),
    (floats(1, 2, 6, 7, 5), {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2]}),
    (floats(1, 2, 5, 5), {"kernel_shape": [1, 1], "strides": [2, 2]}),
]
#: The last window of the last row would lie in the padding alone, so it is dropped.
CEILED: list[tuple[Random, dict[str, Any]]] = [
    (floats(1, 3, 10, 8), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    (floats(1, 3, 10, 11), {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    (floats(1, 1, 3, 3), {"kernel_shape": [2, 2], "strides": [3, 3], "pads": [0, 0, 1, 1]}),
]
DILATED: list[tuple[Random, dict[str, Any]]] = [
    (floats(1, 3, 12, 11), {"kernel_shape": [3, 2]}),
    (floats(1, 3, 12, 11), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 1, 2, 0]}),
]
#: Shapes of the image and the weights, and attributes.
CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 9, 8), (4, 3, 3, 3), {}),
    ((1, 3, 9, 8), (4, 3, 3, 3), {"pads": [1, 0, 2, 1]}),
    ((1, 3, 11, 9), (5, 3, 3, 2), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
    ((1, 2, 12, 12), (3, 2, 3, 3), {"dilations": [2, 3], "pads": [2, 2, 2, 2]}),
    ((1, 2, 13, 12), (3, 2, 3, 3), {"strides": [3, 2], "dilations": [2, 2], "pads": [2, 1, 0, 3]}),
    ((2, 6, 8, 8), (4, 3, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
    ((2, 6, 8, 9), (6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ((1, 4, 9, 9), (4, 1, 5, 3), {"group": 4, "strides": [2, 2]}),
    ((1, 4, 9, 9), (8, 1, 3, 3), {"group": 4}),
    ((1, 4, 9, 9), (4, 1, 3, 3), {"group": 4, "dilations": [2, 1]}),
    ((2, 5, 6, 6), (7, 5, 1, 1), {}),
    ((2, 5, 7, 6), (7, 5, 1, 1), {"strides": [2, 3]}),
    ((1, 6, 5, 5), (4, 3, 1, 1), {"group": 2}),
    ((1, 3, 5, 5), (4, 3, 1, 1), {"pads": [1, 2, 1, 0]}),
    ((1, 8, 10, 10), (600, 8, 3, 3), {"pads": [1, 1, 1, 1]}),
    ((3, 4, 5, 5), (6, 4, 5, 5), {}),
    ((1, 3, 10, 9), (2, 3, 4, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ((1, 3, 10, 9), (2, 3, 4, 3), {"auto_pad": "SAME_LOWER", "strides": [3, 2]}),
    ((1, 3, 10, 9), (2, 3, 4, 3), {"auto_pad": "VALID"}),
    ((2, 3, 20), (4, 3, 5), {"pads": [2, 1], "strides": [2]}),
    ((2, 4, 20), (4, 1, 5), {"group": 4, "dilations": [2]}),
    ((1, 2, 6, 7, 5), (3, 2, 3, 2, 3), {"pads": [1, 0, 1, 1, 1, 0]}),
    ((1, 3, 6, 7, 5), (3, 1, 3, 2, 3), {"group": 3, "strides": [2, 1, 2]}),
    ((0, 3, 9, 8), (4, 3, 3, 3), {}),
]
TRANSPOSED_CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 3, 5, 6), (3, 2, 3, 3), {}),
    ((2, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 3]}),
    ((1, 3, 5, 6), (3, 2, 4, 3), {"strides": [2, 2], "pads": [1, 0, 2, 1]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [3, 2], "output_padding": [2, 1]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"dilations": [2, 1]}),
    ((1, 4, 5, 6), (4, 3, 3, 3), {"group": 2, "strides": [2, 2]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "output_shape": [10, 12]}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ((1, 3, 5, 6), (3, 2, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    ((1, 3, 5), (3, 2, 4), {"strides": [2]}),
    ((0, 3, 5), (3, 2, 4), {}),
    ((1, 2, 3, 4, 3), (2, 2, 2, 3, 2), {"strides": [2, 1, 2]}),
]
PRODUCTS = [
    *(((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4, 5))),
    *(((2, 3, 4), (2, 4, 5)), ((6, 1, 3, 4), (2, 4, 5)), ((2, 3, 4), (4,)), ((0, 4), (4, 5))),
    *(((3, 0), (0, 5)), ((2, 0, 4), (4, 5)), ((1, 1, 2, 3), (5, 4, 3, 2))),
]
#: Shapes of C, the third input of Gemm, whose product is of shape 3 x 5.
SUMMANDS = [(3, 5), (1, 5), (5,), (3, 1), (1,), ()]
COORDINATES = ["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
#: A picture, no region of interest, and scales.
BY_SCALES = [
    (PICTURE, EMPTY, f32(1, 1, *factors))
    for factors in ((2, 2), (0.5, 0.25), (3, 0.5), (1.5, 0.75))
]
BY_SIZES = [
    (floats(1, 2, 7, 9), EMPTY, None, ints(1, 2, *sizes))
    for sizes in ((13, 5), (3, 17), (7, 9), (1, 1))
]
NEAREST = {
    "coordinate_transformation_mode": COORDINATES,
    "nearest_mode": ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
}
#: Equation of Einsum -> shapes of its inputs.
EQUATIONS: dict[str, list[tuple[int, ...]]] = {
    "ij,jk->ik": [(3, 4), (4, 5)],
    "ij,jk": [(3, 4), (4, 5)],
    "ij->ji": [(3, 4)],
    "ii->i": [(4, 4)],
    "ii": [(4, 4)],
    "ij->": [(3, 4)],
    "i,j->ij": [(3,), (4,)],
    "bhid,bhjd->bhij": [(2, 3, 4, 5), (2, 3, 6, 5)],
    "...ij,...jk->...ik": [(2, 3, 4), (2, 4, 5)],
    "...ii->...i": [(2, 3, 3)],
    "bij, jk , bk -> bi": [(2, 3, 4), (4, 5), (2, 5)],
    "i,i": [(5,), (5,)],
    "bij,kj,bkl->lib": [(2, 3, 4), (5, 4), (2, 5, 6)],
    "abc,dcb->da": [(2, 3, 4), (5, 4, 3)],
    "ij,ik->i": [(3, 4), (3, 5)],
    "ij,jk->ki": [(3, 1), (4, 5)],
    "bqhd,bkhd->bhqk": [(2, 3, 4, 5), (2, 6, 4, 5)],
}


def pool(op_type: str, windows: Any, others: dict[str, list[Any]], **keywords: Any) -> list[Row]:
    """Return a row for each window, combined with other attributes."""
    return [
        Row(
            op_type, [image], {name: [value] for name, value in window.items()} | others, **keywords
        )
        for image, window in windows
    ]


def gemm(a: tuple[int, int], b: tuple[int, int], **transposes: int) -> list[Row]:
    attributes = [{"alpha": 0.5, "beta": -2.0, **transposes}]
    with_c = shaped(*((a, b, c) for c in SUMMANDS))
    return [
        Row("Gemm", with_c, attributes, **SUMS),
        Row("Gemm", shaped((a, b)), attributes, oldest=11, **SUMS),
    ]


def normalize_last_axes(op_type: str, num_scales: int, **keywords: Any) -> list[Row]:
    """Return rows for each first axis of normalisation, with scales of the normalised shape."""
    x = (2, 3, 8)
    return [
        Row(op_type, shaped((x, *[x[axis:]] * num_scales)), {"axis": [axis]}, **SUMS, **keywords)
        for axis in (-1, 1, 2, 0, -2)
    ]


def recurrent(op_type: str, num_gates: int) -> list[Row]:
    """Return the rows of a recurrent layer: one direction, and both."""
    steps, batch, size, hidden = 5, 3, 4, 6
    rows = []
    for names in (["forward", "reverse"], ["bidirectional"]):
        directions, units = len(names) % 2 + 1, num_gates * hidden
        weights = [
            uniform(-1, 1, steps, batch, size),
            uniform(-1, 1, directions, units, size),
            uniform(-1, 1, directions, units, hidden),
            uniform(-1, 1, directions, 2 * units),
        ]
        states = [uniform(-1, 1, directions, batch, hidden)] * (2 if op_type == "LSTM" else 1)
        lengths = [np.array(numbers, np.int32) for numbers in ([5, 3, 1], [2, 2, 4])]
        inputs = [tuple(weights[:3]), *((*weights, n, *states) for n in (None, *lengths))]
        attributes = {"hidden_size": [hidden], "direction": names, "clip": [None, 0.3]}
        num_outputs = len(states) + 1
        rows.append(Row(op_type, inputs, attributes, num_outputs=num_outputs, **SUMS))
    return rows


OPERATORS: tuple[Row, ...] = (
    # Element-wise arithmetic
    Row(
        "Acos Acosh Asin Atanh Cosh Exp Log Reciprocal Sinh Sqrt Tan",
        [*ANY_SHAPES, SPECIAL],
        rtol=2e-6,
        atol=3e-7,
    ),
    Row(
        "Abs Asinh Atan Ceil Cos Erf Floor Neg Round Sin Tanh",
        [*ANY_SHAPES, SPECIAL],
        rtol=2e-6,
        atol=3e-7,
        elementwise=True,
    ),
    Row("Sign", [*ANY_SHAPES, SPECIAL[:-1]], elementwise=True),
    Row("Abs Neg Sign", [np.array([-3, 0, 5], dtype) for dtype in "bil"], oldest=13),
    Row("Add Sub Mul Div Pow", [tuple(uniform(0.5, 3, *s) for s in pair) for pair in BROADCASTS]),
    Row("Add Sub Mul Div", [(SPECIAL[:, None], SPECIAL)]),
    Row("Max Min Sum Mean", [floats(2, 3), (CUBE, CUBE, CUBE)]),
    Row("Max Min Sum Mean", shaped(((2, 1), (3,), ()), ((0, 1), (3,))), oldest=8),
    Row("Max Min", [(SPECIAL, SPECIAL[::-1].copy())], oldest=13),
    Row("Clip", [SPECIAL], {"min": [None, -1.0], "max": [None, 0.5]}, newest=10),
    Row("Clip", [LARGE, (LARGE, None, scalar(4)), (SPECIAL, scalar(-1), scalar(4))], oldest=11),
    Row("IsInf", [SPECIAL], {"detect_negative": [0, 1], "detect_positive": [0, 1]}),
    Row("IsNaN", [SPECIAL]),
    Row("BitwiseAnd BitwiseOr BitwiseXor", [(ints([12], [10]), ints(6, -1, 0))]),
    Row("BitwiseNot", [ints([12], [10])]),
    # Activations
    Row("Relu Sigmoid HardSwish Softplus Softsign Mish", ACTIVATED, elementwise=True),
    Row("LeakyRelu", ACTIVATED, {"alpha": [None, 0.3, 0.0, -0.5, 2.0]}, elementwise=True),
    Row("Elu ThresholdedRelu", ACTIVATED, {"alpha": [None, 0.7]}, elementwise=True),
    Row("Celu", ACTIVATED, {"alpha": [None, 2.5]}, elementwise=True),
    Row("Selu", ACTIVATED, [{}, {"alpha": 2.0, "gamma": 3.0}], elementwise=True),
    Row("HardSigmoid", ACTIVATED, [{}, {"alpha": 0.6, "beta": 0.1}], elementwise=True),
    Row("Gelu", ACTIVATED, {"approximate": [None, "tanh"]}, elementwise=True),
    Row("Shrink", ACTIVATED, [{}, {"lambd": 1.5, "bias": 0.5}], elementwise=True),
    Row("PRelu", shaped(*(((2, 3, 4, 5), s) for s in ((3, 4, 5), (4, 1), (1,), (3, 1, 1))))),
    Row("Swish", [floats(3, 4)], {"alpha": [1.0, 1.702]}, use_reference=True),
    Row(SOFTMAXES, [CUBE], {"axis": [None, 0, 1, 2]}),
    Row(SOFTMAXES, [CUBE], {"axis": [-1, -2]}, oldest=11),
    # Ties, and numbers so far apart that an unshifted exponential would overflow
    Row(SOFTMAXES, [f32([1000, 0], [1000, -1000]), f32([3, 3], [0, 1])], {"axis": [0, 1]}),
    # Logic
    Row("Equal", [(ints([1, 2], [3, 4]), ints([1], [4]))]),
    Row("Less Greater", [(ints([1, 2], [3, 4]), ints([1], [4]))], oldest=9),
    Row("Less Greater LessOrEqual GreaterOrEqual", [(SPECIAL[:, None], SPECIAL)]),
    Row("Equal", [(SPECIAL[:, None], SPECIAL)], oldest=11),
    Row("And Or Xor", [(TRUTH[:, None], TRUTH), (np.zeros((0, 2), bool), TRUTH)]),
    Row("Not", [TRUTH]),
    Row("Where", [(np.array([[True], [False]]), floats(3), floats()), (TRUTH, floats(2), f32(1))]),
    # Reductions and running sums
    Row(REDUCTIONS, [POSITIVE], KEEPDIMS | {"axes": [None, *AXES]}, newest=17),
    Row(REDUCTIONS, [POSITIVE], KEEPDIMS | {"axes": NEGATIVE_AXES}, oldest=11, newest=17),
    Row(REDUCTIONS, with_ints(POSITIVE, *AXES, *NEGATIVE_AXES), KEEPDIMS, oldest=18),
    Row(REDUCTIONS, [POSITIVE], KEEPDIMS, oldest=18),
    Row("ReduceSum", [POSITIVE], KEEPDIMS | {"axes": [None, *AXES]}, newest=12),
    Row("ReduceSum", with_ints(POSITIVE, *AXES, *NEGATIVE_AXES), KEEPDIMS, oldest=13),
    Row("ReduceSum", [POSITIVE], KEEPDIMS, oldest=13),
    Row("ArgMax ArgMin", [TIES], KEEPDIMS | {"axis": [None, 0, 1]}),
    Row("ArgMax ArgMin", [np.array([3, 9, 1], np.int32)]),
    Row("ArgMax ArgMin", [TIES], {"axis": [1, -1], "select_last_index": [0, 1]}, oldest=12),
    Row("CumSum", with_ints(CUBE, [0], [1], [-1]), {"exclusive": [0, 1], "reverse": [0, 1]}),
    Row("TopK", [BLOCK], {"axis": [0, 1, -1], "k": [1, 2, 3]}, newest=9, num_outputs=2),
    Row("TopK", with_ints(BLOCK, [1], [3]), {"axis": [0, 1, -1]}, oldest=10, num_outputs=2),
    Row("TopK", with_ints(BLOCK, [2]), {"axis": [0, -1], "largest": [0]}, oldest=11, num_outputs=2),
    # Matrix products and convolutions
    Row("MatMul", shaped(*PRODUCTS), **SUMS),
    *gemm((3, 4), (4, 5)),
    *gemm((4, 3), (4, 5), transA=1),
    *gemm((3, 4), (5, 4), transB=1),
    *gemm((4, 3), (5, 4), transA=1, transB=1),
    *(Row("Einsum", shaped(s), [{"equation": text}], **SUMS) for text, s in EQUATIONS.items()),
    Row("Det", shaped([(3, 3)], [(2, 3, 4, 4)], [(1, 1)]), **SUMS, use_reference=True),
    *(
        Row("Conv", shaped((x, w, w[:1]), (x, w)), [attributes], rtol=1e-4, atol=1e-4)
        for x, w, attributes in CONVOLUTIONS
    ),
    *(
        Row("ConvTranspose", shaped((x, w)), [attributes], rtol=1e-4, atol=1e-4)
        for x, w, attributes in TRANSPOSED_CONVOLUTIONS
    ),
    Row("ConvTranspose", shaped(((1, 3, 5, 6), (3, 2, 3, 3), (2,))), rtol=1e-4, atol=1e-4),
    # Pools
    *pool("MaxPool", WINDOWS, {}),
    *pool("MaxPool", WINDOWS[:3], {"storage_order": [0, 1]}, oldest=8, num_outputs=2),
    *pool("MaxPool", WINDOWS[3:6], {"storage_order": [0, 1]}, oldest=12, num_outputs=2),
    *pool("MaxPool", WINDOWS[6:], {}, oldest=12, num_outputs=2),
    *pool("MaxPool", CEILED, {"ceil_mode": [1]}, oldest=10, num_outputs=2),
    *pool("MaxPool", DILATED, {"dilations": [[2, 3]]}, oldest=10, num_outputs=2),
    *pool("AveragePool", WINDOWS, {"count_include_pad": [0, 1]}),
    *pool("AveragePool", CEILED, {"count_include_pad": [0, 1], "ceil_mode": [1]}, oldest=10),
    *pool("AveragePool", DILATED, {"count_include_pad": [0, 1], "dilations": [[2, 3]]}, oldest=19),
    *pool("LpPool", WINDOWS, {"p": [1, 2, 3]}, newest=18, **SUMS),
    *pool("LpPool", DILATED, {"p": [2], "dilations": [[2, 3]]}, oldest=18, newest=18, **SUMS),
    Row(
        "GlobalMaxPool GlobalAveragePool",
        [floats(2, 3, 5, 4), floats(2, 3, 5), floats(1, 2, 3, 4, 5), floats(0, 3, 4, 4)],
        atol=1e-5,
    ),
    # ONNX Runtime does not support GlobalLpPool of opset 22, which only added types.
    Row("GlobalLpPool", [floats(2, 3, 5, 4), floats(2, 3, 5), floats(0, 3, 4, 4)], newest=21),
    # Normalisation and recurrent layers
    *(
        Row(
            "BatchNormalization",
            [(floats(*x), *[floats(3)] * 3, uniform(0.1, 3, 3))],
            [{"epsilon": 1e-3}],
            **SUMS,
        )
        for x in ((2, 3, 4, 5), (2, 3), (2, 3, 7), (1, 3, 2, 3, 4), (0, 3, 4, 4))
    ),
    Row("InstanceNormalization", shaped(((2, 3, 4, 5), (3,), (3,))), rtol=1e-4, atol=1e-4),
    Row("InstanceNormalization", shaped(((2, 3, 7), (3,), (3,))), rtol=1e-4, atol=1e-4),
    *normalize_last_axes("LayerNormalization", 2, num_outputs=3),
    *normalize_last_axes("LayerNormalization", 1),
    *normalize_last_axes("RMSNormalization", 1, use_reference=True),
    Row(
        "GroupNormalization",
        shaped(((2, 6, 4), (2,), (2,))),
        {"num_groups": [2]},
        newest=20,
        **SUMS,
    ),
    Row(
        "GroupNormalization",
        shaped(((2, 6, 4), (6,), (6,))),
        {"num_groups": [2]},
        oldest=21,
        **SUMS,
    ),
    Row(
        "LRN",
        [floats(2, 7, 3, 3)],
        {"size": [1, 3, 5, 11], "beta": [0.75, 0.5], "bias": [2.0]},
        rtol=1e-4,
    ),
    Row(
        "MeanVarianceNormalization",
        [floats(2, 3, 4, 5)],
        {"axes": [None, [0, 2], [-1]]},
        oldest=13,
        rtol=1e-3,
        atol=1e-4,
        use_reference=True,
    ),
    *recurrent("RNN", 1),
    *recurrent("GRU", 3),
    *recurrent("LSTM", 4),
    # Shapes
    Row("Reshape", with_ints(CUBE, (6, 4), (0, -1), (0, 0, 2, 2), (-1,))),
    Row("Reshape", [*with_ints(floats(1), ()), *with_ints(floats(3, 0), (0, 0, 2))]),
    Row("Reshape", with_ints(floats(0, 3), (3, 0), (0, 3, 7)), {"allowzero": [1]}, oldest=14),
    Row("Flatten", [CUBE], {"axis": [0, 1, 2, 3]}),
    Row("Transpose", [CUBE], {"perm": [None, (0, 2, 1), (2, 0, 1), (1, 2, 0)]}),
    Row("Squeeze", [floats(1, 3, 1)], {"axes": [None, (0,), (2, 0)]}, newest=12),
    Row("Squeeze", [floats(1, 3, 1), *with_ints(floats(1, 3, 1), (0,), (2, 0))], oldest=13),
    Row("Unsqueeze", [floats(3, 4)], {"axes": [(0,), (1, 3), (3, 0)]}, newest=12),
    Row("Unsqueeze", with_ints(floats(3, 4), (0,), (1, 3), (3, 0)), oldest=13),
    Row("Expand", [*with_ints(floats(3, 1), (2, 1, 6), (1,)), *with_ints(floats(3), (2, 3))]),
    Row("Expand", [*with_ints(floats(), (2, 2)), *with_ints(floats(1, 3), (0, 1))]),
    Row("Tile", with_ints(CUBE, (2, 1, 3), (1, 1, 1), (0, 1, 1))),
    Row("Shape Size", [CUBE, floats(), floats(0, 2)]),
    Row("Shape", [CUBE], {"start": [0, 1, -1, -7, 7], "end": [None, 2, -1, -7, 7]}, oldest=15),
    Row("DepthToSpace SpaceToDepth", [floats(2, 8, 4, 6)], {"blocksize": [2]}),
    Row("DepthToSpace", [floats(2, 8, 4, 6)], {"blocksize": [2], "mode": ["CRD"]}, oldest=11),
    # Slices and indices
    Row("Concat", [(CUBE, CUBE, CUBE), CUBE], {"axis": [0, 1, 2]}),
    Row("Concat", shaped(((2, 3), (5, 3), (0, 3))), {"axis": [0]}),
    Row("Split", [floats(5, 4)], {"split": [[2, 3], [0, 5]]}, newest=12, num_outputs=2),
    Row("Split", with_ints(floats(5, 4), (2, 3), (0, 5)), oldest=13, num_outputs=2),
    Row("Slice", [BLOCK], [{"starts": [0, 1], "ends": [2, 3], "axes": [1, 2]}], newest=9),
    Row("Slice", [BLOCK], {"starts": [[1], [-2], [3]], "ends": [[3], [100], [1]]}, newest=9),
    Row("Slice", [BLOCK], [{"starts": [-100, 1], "ends": [-1, 2**63 - 1]}], newest=9),
    Row("Pad", [floats(5, 4)], PAD_MODES | {"pads": PADS}, newest=10),
    Row("Pad", with_ints(floats(5, 4), *PADS), PAD_MODES, oldest=11),
    Row("Pad", with_ints(floats(5, 4), PADS[1], (7, 0, 11, 0)), {"mode": ["wrap"]}, oldest=19),
    Row("Gather", [(BLOCK, integers(0, 3, *s)) for s in ((), (2, 3), (0,))], {"axis": [0, 1, 2]}),
    Row("GatherElements", [(BLOCK, integers(-3, 3, 4, 3, 3))], {"axis": [-1]}),
    Row("GatherElements", [(BLOCK, integers(-3, 3, 7, 3, 5))], {"axis": [0]}),
    Row("GatherND", [(BLOCK, integers(-3, 3, *s)) for s in ((3,), (2, 1), (2, 6, 2), (0, 2))]),
    Row("GatherND", [(BLOCK, integers(-3, 3, 4, 2, 2))], {"batch_dims": [1]}, oldest=12),
    Row("GatherND", [(BLOCK, integers(-3, 3, 4, 3, 1))], {"batch_dims": [2]}, oldest=12),
    Row("Scatter", [(BLOCK, ints([[0, 2], [1, 0]]), floats(1, 2, 2))], {"axis": [0, 1]}, newest=10),
    Row("ScatterElements", [(BLOCK, ints([[0, 2], [1, 0]]), floats(1, 2, 2))], {"axis": [0, 1, 2]}),
    Row("ScatterElements", [(BLOCK, ints([[-1, 2], [-3, 0]]), floats(1, 2, 2))], {"axis": [-2]}),
    Row("ScatterND", [(BLOCK, ints([1, 2], [3, 0]), floats(2, 5))]),
    Row("ScatterND", [(BLOCK, ints([0, -1, -2], [3, 0, 4]), floats(2))]),
    Row("OneHot", [(integers(-4, 4, 2, 3), ints(4), floats(2))], {"axis": [-1, 0, 1]}),
    Row("OneHot", [(integers(-4, 4, 2, 3), f32(4), floats(2))]),
    Row("NonZero", [integers(0, 2, 3, 4, dtype=np.float32), floats(2, 0), f32(np.nan, 0, np.inf)]),
    Row("Compress", [(floats(3, 3), np.array([True, False, True]))], {"axis": [0, 1, None]}),
    Row("ReverseSequence", [(floats(3, 3, 2), ints(1, 3, 2))], [{"batch_axis": 0, "time_axis": 1}]),
    Row("ReverseSequence", [(floats(4, 3), ints(1, 4, 2))], [{"batch_axis": 1, "time_axis": 0}]),
    Row("Trilu", [CUBE, *((CUBE, scalar(k, "l")) for k in (-2, 0, 1, 9))], {"upper": [0, 1]}),
    Row("EyeLike", [floats(3, 4)], {"k": [-3, -1, 0, 2], "dtype": [None, 7]}),
    Row("EyeLike", [floats(3, 4)], {"dtype": [11]}, oldest=22),
    Row("Unique", [f32(2, 1, 1, 3, 4, 3), TIES], {"sorted": [0, 1]}, num_outputs=4),
    Row("Unique", [TIES], {"sorted": [0, 1], "axis": [0, 1, -1]}, num_outputs=4),
    # Quantisation
    *(
        row
        for dtype in (np.uint8, np.int8)
        for row in (
            Row(
                "QuantizeLinear", [(uniform(-90, 90, 9), scalar(0.5), scalar(3, dtype))], newest=23
            ),
            Row(
                "DequantizeLinear",
                [(integers(0, 99, 9, dtype=dtype), scalar(0.5), scalar(3, dtype))],
                newest=23,
            ),
        )
    ),
    Row("DynamicQuantizeLinear", [uniform(-90, 90, 2, 3), uniform(1, 5, 4)], num_outputs=3),
    # Resizing
    Row(
        "Upsample",
        [floats(2, 3, 4, 5)],
        {
            "mode": ["nearest", "linear"],
            "scales": [[1.0, 1.0, *factors] for factors in ((2.0, 3.0), (1.5, 2.6), (1.0, 1.0))],
        },
        newest=8,
        atol=1e-5,
    ),
    Row(
        "Upsample",
        [(floats(2, 3, 4, 5), f32(1, 1, *factors)) for factors in ((2, 3), (1.5, 2.6), (1, 1))],
        {"mode": ["nearest", "linear"]},
        oldest=9,
        newest=9,
        atol=1e-5,
    ),
    Row(
        "Resize",
        [(floats(1, 2, 7, 8), f32(1, 1, *factors)) for factors in ((2, 3), (0.6, 0.5), (1.7, 0.8))],
        {"mode": ["nearest", "linear"]},
        oldest=10,
        newest=10,
        rtol=1e-4,
        atol=1e-5,
    ),
    Row(
        "Resize",
        BY_SCALES,
        {"coordinate_transformation_mode": COORDINATES, "mode": ["linear", "cubic"]},
        oldest=11,
        **INTERPOLATED,
    ),
    Row("Resize", BY_SCALES, NEAREST, oldest=11, newest=11),
    Row("Resize", BY_SCALES, NEAREST, oldest=18),
    Row(
        "Resize",
        BY_SIZES,
        {"coordinate_transformation_mode": COORDINATES, "mode": ["nearest", "linear", "cubic"]},
        oldest=13,
        newest=13,
        **INTERPOLATED,
    ),
    Row(
        "Resize",
        [(floats(1, 1, 5, 6), EMPTY, f32(1, 1, 2, 1.5))],
        {"mode": ["cubic"], "exclude_outside": [0, 1], "cubic_coeff_a": [-0.5, -0.75]},
        oldest=13,
        **INTERPOLATED,
    ),
    Row(
        "Resize",
        [(floats(1, 1, 6, 7), f32(0, 0, 0.2, -0.1, 1, 1, 0.8, 1.2), None, ints(1, 1, 4, 5))],
        {
            "mode": ["linear", "cubic", "nearest"],
            "coordinate_transformation_mode": ["tf_crop_and_resize"],
            "extrapolation_value": [9.5],
        },
        oldest=13,
        **INTERPOLATED,
    ),
    Row(
        "Resize",
        [(floats(1, 1, 4, 4), f32(0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75), f32(1, 1, 2, 2))],
        {"mode": ["linear"], "coordinate_transformation_mode": ["tf_crop_and_resize"]},
        oldest=13,
        rtol=1e-4,
        atol=1e-5,
    ),
    # Movement of elements
    Row("Reshape", with_ints(MOVED, (6, -1)), moves=True),
    Row("Flatten", [MOVED], {"axis": [2]}, moves=True),
    Row("Transpose", [MOVED], {"perm": [(2, 0, 1)]}, moves=True),
    Row("Squeeze", [MOVED], moves=True),
    Row("Unsqueeze", with_ints(MOVED, [1]), oldest=13, moves=True),
    Row("Expand", with_ints(MOVED, (2, 1, 1, 1)), moves=True),
    Row("Tile", with_ints(MOVED, (1, 2, 1)), moves=True),
    Row("Concat", [(MOVED, MOVED)], {"axis": [1]}, moves=True),
    Row("Split", with_ints(MOVED, (1, 3)), {"axis": [-1]}, oldest=13, num_outputs=2, moves=True),
    Row("Slice", [(MOVED, ints(3), ints(0), ints(2), ints(-2))], oldest=10, moves=True),
    Row("Pad", with_ints(MOVED, (1, 0, -1, 0, 1, 2)), {"mode": ["edge"]}, oldest=11, moves=True),
    Row("Pad", with_ints(MOVED, (1, 0, 0, 0, 1, 2)), {"mode": ["reflect"]}, oldest=11, moves=True),
    Row("Gather", with_ints(MOVED, (1, -1)), {"axis": [1]}, moves=True),
    Row("GatherElements", [(MOVED, ints(*range(24)).reshape(2, 3, 4) % 4)], moves=True),
    Row("GatherND", [(MOVED, ints([3, 0], [1, 2]))], moves=True),
    Row("ScatterND", [(MOVED, ints([3], [2], [1], [0]), MOVED)], moves=True),
    Row(
        "TensorScatter",
        [(MOVED, MOVED, ints(1, 2, 3, 0))],
        [{"mode": "circular", "axis": 1}],
        moves=True,
    ),
    Row("Compress", [(MOVED, np.array([True, False, True]))], {"axis": [1]}, moves=True),
    Row("ReverseSequence", [(MOVED, ints(2, 1, 4))], moves=True),
    Row("CenterCropPad", with_ints(MOVED, (2, 2)), {"axes": [(0, 2)]}, moves=True),
    *ATTENTION_OPERATORS,
    *ML_OPERATORS,
    *MICROSOFT_OPERATORS,
)


def elementwise_operators() -> list[tuple[str, dict[str, Any]]]:
    """Return the element-wise operators with each of their attributes, for random networks."""
    return [
        (op_type, attributes)
        for row in OPERATORS
        if row.elementwise
        for op_type in row.op_types.split()
        for attributes in row.combinations()
    ]
