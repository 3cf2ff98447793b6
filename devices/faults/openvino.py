"""Faults of OpenVINO: nodes that it accepts, but computes wrongly or fails to run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx

from hetero.devices.faults.fault import Fault, FaultTable, NodeView, Proof
from hetero.devices.faults.openvino_conditions import (
    casts_floats_to_narrowed_integers,
    fills_beyond_32_bits,
    has_constant_inputs,
    has_negative_scales_along_axis,
    has_open_sizes,
    has_quantising_and_other_readers,
    has_scales_along_open_axis,
    indices_may_be_shorter,
    is_fused_with_constant_tensors,
    is_pointwise_with_strides_and_pads,
    is_quantised_model,
    is_quantised_to_uint8,
    is_same_padded,
    is_zero_constant,
    last_window_may_start_in_padding,
    may_reduce_no_elements,
    permutes_input_of_convolution,
    reads_table_dequantised_along_other_axis,
    reduces_middle_axis_of_dequantised_values,
    reshapes_reduction_of_equal_rank,
    scales_negatively_before_quantisation,
    slopes_may_fit_channels,
    splits_open_axis,
)
from hetero.devices.faults.openvino_integers import INT32, integer_refusal, is_within
from hetero.devices.model.integer_ranges import Range, by_operator
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.support import Refusal

#: The operator set of OpenVINO's ONNX frontend: it ignores later attributes and inputs.
NEWEST_OPSET: Final = 23
#: Operators that are right except for NaN, infinities or rounding -> a note for the query.
NOTES: Final = by_operator(
    {
        "Celu Exp GlobalMaxPool HardSigmoid LogSoftmax Max MaxPool Min ReduceLogSumExp Relu "
        "Softmax SoftmaxCrossEntropyLoss": "NaN does not propagate",
        "ScatterElements ScatterND": "NaN does not propagate in reductions max and min",
        "Greater GreaterOrEqual": "true if one side is NaN",
        "Shrink": "NaN propagates instead of becoming 0",
        "Clip": "NaN and infinities become the nearest limit",
        "ArgMax ArgMin Gelu Hardmax Mod ThresholdedRelu": "wrong for NaN and infinities",
        "ReduceMax ReduceMin": "NaN may not propagate; a single infinity becomes the largest float",
        "Resize": "NaN does not propagate to samples that weight it with 0",
        "QuantizeLinear": "a value halfway between two steps may round to the other one",
        "LpNormalization": "a small number is added to the divisor",
    }
)


#: Rows without a proof and a case are wrong on some processors only.
FAULTS: Final = FaultTable(
    "OpenVINO",
    (
        Fault(
            "Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
            "its random numbers do not follow the seed",
            suite_case="node/test_bernoulli",
        ),
        Fault(
            "DFT",
            "errors reach 3e-4 for zeros, and the default axis of operator set 20 is ignored",
            proof=Proof("(float[1,3,4,1] x) => (float[1,3,4,2] y) {y = DFT(x)}", opset=20),
        ),
        Fault(
            "DynamicQuantizeLinear",
            "values halfway between two steps round to the other one",
            proof=Proof(
                """(float[6] x) => (uint8[6] y, float s, uint8 z)
                {y, s, z = DynamicQuantizeLinear(x)}""",
                {"x": [0, 0.5, 1.5, 2.5, 3.5, 255]},
            ),
        ),
        Fault(
            "NonMaxSuppression",
            "boxes whose overlap equals the threshold are dropped",
            proof=Proof(
                """(float[1,2,4] boxes, float[1,1,2] scores) => (int64[n,3] y)
                <int64 most = {3}, float threshold = {0.5}>
                {y = NonMaxSuppression(boxes, scores, most, threshold)}""",
                {"boxes": [[[0, 0, 1, 1], [0, 0, 1, 2]]], "scores": [[[0.9, 0.8]]]},
            ),
        ),
        Fault(
            "ReduceMax ReduceMin",
            "without elements it returns the extreme float instead of an infinity",
            may_reduce_no_elements,
            proof=Proof(
                "(float[n] x) => (float y) {y = ReduceMax<keepdims = 0>(x)}", sizes={"n": 0}
            ),
        ),
        Fault(
            "ReduceMax ReduceMin GlobalMaxPool",
            "its uint8 quantisation is applied to whole numbers",
            is_quantised_to_uint8,
            proof=Proof(
                """(float[2,3,3,3] x) => (float[2,3,1,1] y) <float s = {0.05}, uint8 z = {120}>
                {m = GlobalMaxPool(x) q = QuantizeLinear(m, s, z) y = DequantizeLinear(q, s, z)}"""
            ),
        ),
        Fault(
            "TopK",
            "equal elements may be returned in another order",
            suite_case="node/test_top_k_same_values",
        ),
        Fault(
            "Attention",
            "a causal mask with another mask, or with past keys, is ignored",
            lambda v: (
                any(map(v.input_name, range(4, 7)))
                or (v.input_name(3) and v.attribute("is_causal"))
            ),
            suite_case="node/test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal",
        ),
        Fault(
            "QuantizeLinear DequantizeLinear",
            "scales along an axis of open length are applied to another axis",
            has_scales_along_open_axis,
            proof=Proof(
                """(float[n,m] x) => (float[n,m] y)
                <float[3] s = {0.1, 1, 3}, int8[3] z = {0, 1, 2}>
                {q = QuantizeLinear<axis = 0>(x, s, z) y = DequantizeLinear<axis = 0>(q, s, z)}""",
                sizes={"n": 3, "m": 3},
            ),
        ),
        Fault(
            "Mul Div BatchNormalization",
            "in quantised models with open sizes, negative scales are applied to wrong elements",
            scales_negatively_before_quantisation,
            proof=Proof(
                """(float[n,3,2] x) => (float[n,3,2] y)
                <float[1,3,1] k = {1, -2, 3}, float s = {0.05}, uint8 z = {128}>
                {m = Mul(x, k) q = QuantizeLinear(m, s, z) y = DequantizeLinear(q, s, z)}""",
                sizes={"n": 1},
            ),
        ),
        Fault(
            "QuantizeLinear",
            "negative scales along an axis give a limit of the type",
            has_negative_scales_along_axis,
            proof=Proof(
                """(float[2,3] x) => (int8[2,3] y)
                <float[3] s = {-0.1, 0.1, -0.3}, int8[3] z = {3, 4, 5}>
                {y = QuantizeLinear<axis = 1>(x, s, z)}"""
            ),
        ),
        Fault(
            "QLinearConv QLinearMatMul",
            "scales that are not constants give wrong results if they are negative",
            lambda v: any(v.is_runtime_value(v.input_name(position)) for position in (1, 4, 6)),
            proof=Proof(
                """(int8[2,4] a, float[1] s, int8[4,3] b) => (int8[2,3] y) <int8 z = {3}>
                {y = QLinearMatMul(a, s, z, b, s, z, s, z)}""",
                {
                    "a": [[81, 109, -127, 111], [-124, 87, -128, -98]],
                    "s": [-0.2],
                    "b": [[25, -76, 117], [-67, -101, -128], [-127, 0, 119], [0, 127, 120]],
                },
            ),
        ),
        Fault(
            "QLinearConv",
            "uint8 weights with zero point 0 do not compile",
            lambda v: v.element_type(v.input_name(3)) == "uint8" and is_zero_constant(v, 5),
            proof=Proof(
                """(uint8[1,1,2,2] x) => (uint8[1,1,2,2] y)
                <float s = {0.5}, uint8 z = {3}, uint8 n = {0}, uint8[1,1,1,1] w = {7}>
                {y = QLinearConv(x, s, z, w, s, n, s, z)}""",
                {"x": [[[[3, 9], [12, 90]]]]},
            ),
        ),
        Fault(
            "Conv ConvTranspose QLinearConv QLinearMatMul",
            "its result is undefined if all inputs are constants",
            has_constant_inputs,
            proof=Proof(
                """(float[1] x) => (float[1,1,2,2] y)
                <uint8[1,1,2,2] c = {3, 9, 12, 90}, float s = {0.5}, uint8 z = {3}, int8 n = {0},
                int8[1,1,1,1] w = {7}>
                {q = QLinearConv(c, s, z, w, s, n, s, z) f = DequantizeLinear(q, s, z)
                y = Add(f, x)}"""
            ),
        ),
        Fault(
            "Conv QLinearConv",
            "a kernel of one element with strides ignores pads",
            is_pointwise_with_strides_and_pads,
            proof=Proof(
                """(float[1,1,4] x) => (float[1,1,3] y) <float[1,1,1] w = {2}>
                {r = Relu(x) y = Conv<pads = [1, 1], strides = [2]>(r, w)}"""
            ),
        ),
        Fault(
            "Conv",
            "if one of several readers quantises its output, that reader gets zeros",
            has_quantising_and_other_readers,
        ),
        Fault(
            "ConvTranspose",
            "output_shape is applied wrong with open sizes, or with auto_pad",
            lambda v: v.attribute("output_shape") and (has_open_sizes(v) or is_same_padded(v)),
            proof=Proof(
                """(float[1,1,h,w] x) => (float[1,1,4,4] y) <float[1,1,3,3] k = {1,2,3,4,5,6,7,8,9}>
                {y = ConvTranspose<strides = [2, 2], output_shape = [4, 4]>(x, k)}""",
                sizes={"h": 2, "w": 2},
            ),
        ),
        Fault(
            "ConvTranspose",
            "auto_pad is ignored with open sizes",
            lambda v: is_same_padded(v) and has_open_sizes(v, first_axis=2),
            proof=Proof(
                """(float[1,1,h,w] x) => (float[1,1,a,b] y)
                <float[1,1,3,3] k = {1,2,3,4,5,6,7,8,9}>
                {y = ConvTranspose<strides = [2, 2], auto_pad = "SAME_UPPER">(x, k)}""",
                sizes={"h": 2, "w": 2},
            ),
        ),
        Fault(
            "AveragePool",
            "in quantised models, pads that count are not zero",
            lambda v: (
                v.attribute("count_include_pad")
                and is_quantised_model(v.model)
                and (any(v.attribute("pads", ())) or is_same_padded(v))
            ),
            proof=Proof(
                """(float[1,1,2,2] x) => (float[1,1,3,3] y) <float s = {0.1}, uint8 z = {30}>
                {q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
                y = AveragePool<kernel_shape = [2, 2], pads = [1, 1, 1, 1],
                count_include_pad = 1>(d)}"""
            ),
        ),
        Fault(
            "AveragePool",
            "ceil_mode with count_include_pad divides the last windows by another number",
            lambda v: (
                v.attribute("ceil_mode")
                and v.attribute("count_include_pad")
                and any(v.attribute("pads", ()))
            ),
            proof=Proof(
                """(float[1,1,6] x) => (float[1,1,4] y)
                {y = AveragePool<kernel_shape = [3], strides = [2], pads = [1, 1], ceil_mode = 1,
                count_include_pad = 1>(x)}"""
            ),
        ),
        Fault(
            "LpPool",
            "ceil_mode computes incomplete windows wrong",
            lambda v: v.attribute("ceil_mode"),
            proof=Proof(
                """(float[1,1,7] x) => (float[1,1,4] y)
                {y = LpPool<kernel_shape = [2], strides = [2], ceil_mode = 1>(x)}""",
                opset=18,
            ),
        ),
        Fault(
            "MaxPool AveragePool",
            "with ceil_mode and open sizes it adds windows that start in the padding",
            lambda v: last_window_may_start_in_padding(v) and has_open_sizes(v, first_axis=2),
            proof=Proof(
                """(float[1,1,h,w] x) => (float[1,1,a,b] y)
                {y = MaxPool<kernel_shape = [2, 2], strides = [2, 2], pads = [1, 1, 1, 1],
                ceil_mode = 1>(x)}""",
                sizes={"h": 7, "w": 7},
            ),
        ),
        Fault(
            "MaxPool",
            "indices with storage_order=1 are row-major",
            lambda v: v.attribute("storage_order") and any(v.node.outputs[1:]),
            proof=Proof(
                """(float[1,1,4,4] x) => (float[1,1,2,2] y, int64[1,1,2,2] i)
                {y, i = MaxPool<kernel_shape = [2, 2], strides = [2, 2], storage_order = 1>(x)}"""
            ),
        ),
        Fault(
            "Reshape Flatten",
            "after a reduction that drops axes it is skipped",
            reshapes_reduction_of_equal_rank,
            proof=Proof(
                """(float[2,3,4] x) => (float[1,12] y)
                {m = ReduceMean<axes = [0], keepdims = 0>(x) y = Flatten<axis = 0>(m)}"""
            ),
        ),
        Fault(
            "MatMul Gemm",
            "its result is undefined if all inputs are dequantised constants",
            lambda v: (
                has_constant_inputs(v)
                and any(node.op_type == "DequantizeLinear" for node in v.model.nodes)
            ),
        ),
        Fault(
            "Gather",
            "scales of a table's columns are applied to another axis",
            reads_table_dequantised_along_other_axis,
            proof=Proof(
                """(float[1] x) => (float[2,2] y)
                <int8[3,2] t = {1, 2, 3, 4, 5, 6}, float[2] s = {1, 10}, int64[2] i = {0, 2}>
                {d = DequantizeLinear<axis = 1>(t, s) g = Gather(d, i) y = Add(g, x)}"""
            ),
        ),
        Fault(
            "Gather",
            "a permutation of channels is inverted before a convolution",
            permutes_input_of_convolution,
            proof=Proof(
                """(float[1,3,1] x) => (float[1,1,1] y)
                <int64[3] p = {1, 2, 0}, float[1,3,1] w = {1, 2, 4}>
                {a = Gather<axis = 1>(x, p) y = Conv(a, w)}"""
            ),
        ),
        Fault(
            "GatherElements",
            "the run fails if indices are shorter than the data on other axes",
            indices_may_be_shorter,
            proof=Proof(
                """(float[n,3] x, int64[m,3] i) => (float[m,3] y)
                {y = GatherElements<axis = 1>(x, i)}""",
                {"i": [[0, 1, 2], [1, 1, 0]]},
                {"n": 3},
            ),
        ),
        Fault(
            "Split",
            "the run fails if num_outputs does not divide an open length",
            splits_open_axis,
            proof=Proof(
                """(float[n] x) => (float[a] y, float[b] z)
                {y, z = Split<num_outputs = 2>(x)}""",
                sizes={"n": 7},
                opset=18,
            ),
        ),
        Fault(
            "Div",
            "8-bit quotients are rounded with open sizes",
            lambda v: (
                v.element_type(v.node.inputs[0]) in ("int8", "uint8")
                and any(has_open_sizes(v, i) for i in range(2))
            ),
            proof=Proof(
                "(uint8[n] x, uint8[n] d) => (uint8[n] y) {y = Div(x, d)}",
                {"x": [7, 3], "d": [4, 2]},
            ),
        ),
        Fault(
            "GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
            "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
            "after one of three axes is reduced, constants are applied to wrong positions",
            is_fused_with_constant_tensors,
            proof=Proof(
                """(float[b,3,t] x) => (float[b,3,1] y) <float[1,3,1] c = {1, 2, 3}>
                {m = ReduceMean<axes = [2]>(x) r = Relu(m) y = Mul(r, c)}""",
                sizes={"b": 2, "t": 4},
            ),
        ),
        Fault(
            "ReduceMax ReduceMean ReduceMin ReduceSum",
            "zeros result from reducing the middle one of three axes of dequantised values",
            reduces_middle_axis_of_dequantised_values,
            proof=Proof(
                """(float[2,8,4] x) => (float[2,1,4] y) <float s = {0.1}, int8 z = {9}>
                {q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
                y = ReduceMean<axes = [1]>(d)}"""
            ),
        ),
        Fault(
            "ReduceLogSumExp",
            "attribute 'axes' is ignored",
            lambda v: v.attribute("axes"),
            proof=Proof(
                "(float[b,3] x) => (float[b,1] y) {y = ReduceLogSumExp<axes = [1]>(x)}",
                sizes={"b": 2},
            ),
        ),
        Fault(
            "PRelu",
            "one-dimensional slopes are applied to the channels",
            slopes_may_fit_channels,
            proof=Proof(
                """(float[2,3,3] x) => (float[2,3,3] y) <float[3] s = {0.1, 1, 3}>
                {y = PRelu(x, s)}"""
            ),
        ),
        Fault(
            "GroupNormalization",
            "it may crash on two dimensions",
            lambda v: len(v.input_shape(0) or ()) < 3,
            proof=Proof(
                """(float[3,2] x) => (float[3,2] y) <float[2] c = {1, 2}>
                {g = GroupNormalization<num_groups = 2>(x, c, c) y = Sub(g, x)}""",
                opset=21,
            ),
        ),
        Fault(
            "GRU LSTM RNN",
            "layout=1 is ignored",
            lambda v: v.attribute("layout"),
            proof=Proof(
                """(float[2,3,2] x, float[1,2,2] w, float[1,2,2] r) => (float[2,3,1,2] y)
                {y = RNN<hidden_size = 2, layout = 1>(x, w, r)}"""
            ),
        ),
        Fault(
            "GRU LSTM RNN",
            "sequence_lens is ignored if sizes are open",
            lambda v: v.input_name(4) and has_open_sizes(v),
            proof=Proof(
                """(float[t,b,1] x) => (float[t,1,b,1] y)
                <float[1,1,1] w = {2}, int32[2] l = {1, 3}>
                {y = RNN<hidden_size = 1, direction = "reverse">(x, w, w, , l)}""",
                sizes={"t": 3, "b": 2},
            ),
        ),
        Fault(
            "LSTM",
            "peepholes are ignored",
            lambda v: v.input_name(7),
            proof=Proof(
                """(float[3,1,2] x, float[1,8,2] w, float[1,8,2] r, float[1,6] p)
                => (float[3,1,1,2] y) {y = LSTM<hidden_size = 2>(x, w, r, , , , , p)}"""
            ),
        ),
        Fault(
            "Resize",
            "filter weights differ with antialias or exclude_outside",
            lambda v: v.attribute("antialias") or v.attribute("exclude_outside"),
            proof=Proof(
                """(float[1,1,6,6] x) => (float[1,1,3,3] y) <float[4] s = {1, 1, 0.5, 0.5}>
                {y = Resize<antialias = 1, mode = "linear">(x, , s)}""",
                opset=18,
            ),
        ),
        Fault(
            "Resize",
            "keep_aspect_ratio_policy is ignored",
            lambda v: v.attribute("keep_aspect_ratio_policy", "stretch") != "stretch",
            proof=Proof(
                """(float[1,1,6,7] x) => (float[1,1,a,b] y) <int64[4] s = {1, 1, 4, 9}>
                {y = Resize<keep_aspect_ratio_policy = "not_larger">(x, , , s)}""",
                opset=18,
            ),
        ),
        Fault(
            "Resize",
            "align_corners with scales uses the rounded output size",
            lambda v: (
                v.attribute("coordinate_transformation_mode") == "align_corners"
                and v.input_name(2)
                and v.attribute("mode", "nearest") != "nearest"
            ),
            suite_case="node/test_resize_downsample_scales_linear_align_corners",
        ),
        Fault(
            "GlobalLpPool",
            "it does not compile without spatial dimensions",
            lambda v: len(v.input_shape(0) or ()) < 3,
        ),
        Fault(
            "RoiAlign",
            "mode=max takes the maximum before it applies the weights",
            lambda v: v.attribute("mode") == "max",
            proof=Proof(
                """(float[1,1,5,5] x, float[1,4] r, int64[1] b) => (float[1,1,2,2] y)
                {y = RoiAlign<mode = "max", output_height = 2, output_width = 2,
                sampling_ratio = 2>(x, r, b)}""",
                {"r": [[0, 0, 3.3, 3.7]], "b": [0]},
            ),
        ),
        Fault(
            "Expand",
            "it crashes if the result has no elements",
            lambda v: 0 in (v.model.spec(v.node.outputs[0]).shape or ()),
            proof=Proof(
                "(float[2,1] x) => (float[a,b] y) <int64[2] s = {2, 0}> {y = Expand(x, s)}"
            ),
        ),
        Fault(
            "Compress",
            "it crashes if the condition selects nothing",
            lambda v: is_zero_constant(v, 1),
            proof=Proof(
                """(float[2,1] x) => (float[a,b] y) <bool[2] s = {0, 0}>
                {y = Compress<axis = 0>(x, s)}"""
            ),
        ),
        Fault(
            "Slice",
            "starts and ends beyond 32 bits overflow",
            lambda v: any(
                v.is_runtime_value(name)
                and v.element_type(name) == "int64"
                and not is_within(name, v.ranges, INT32.max)
                for name in v.node.inputs[1:3]
            ),
            proof=Proof(
                "(float[4] x, int64[1] s, int64[1] e) => (float[n] y) {y = Slice(x, s, e)}",
                {"s": [1], "e": [2**32]},
            ),
        ),
        Fault(
            "Dropout",
            "ratio and training_mode are ignored unless they are constants",
            lambda v: any(map(v.is_runtime_value, v.node.inputs[1:])),
            proof=Proof(
                """(float[64] x, float r, bool t) => (float y) <float zero = {0}>
                {d = Dropout<seed = 1>(x, r, t) e = Equal(d, zero) f = Cast<to = 1>(e)
                y = ReduceMax<keepdims = 0>(f)}""",
                {"r": 0.5, "t": True},
            ),
        ),
        Fault(
            "Tile",
            "its result is undefined unless repeats are a constant",
            lambda v: v.is_runtime_value(v.input_name(1)),
            suite_case="node/test_tile",
        ),
        Fault(
            "ConstantOfShape",
            "its value does not fit 32 bits",
            fills_beyond_32_bits,
            proof=Proof(
                """(int64[1] n) => (int64[a] y)
                {y = ConstantOfShape<value = int64[1] {8589934593}>(n)}""",
                {"n": [3]},
            ),
        ),
        Fault(
            "Cast",
            "floats beyond 32 bits are clamped",
            casts_floats_to_narrowed_integers,
            proof=Proof("(float[2] x) => (int64[2] y) {y = Cast<to = 7>(x)}", {"x": [2**33, 1]}),
        ),
    ),
)


def refusal(node: Node, model: Model, narrow: bool, ranges: Mapping[str, Range]) -> Refusal | None:
    """Return the refusal of a node that OpenVINO computes wrong; None if it is right.

    `narrow`: whether the user allows 32-bit arithmetic for all 64-bit integers. `ranges`: the
    proven ranges of the model's integers.
    """
    fault = FAULTS.refusal(NodeView(node, model, ranges, narrow))
    return fault or integer_refusal(node, model, narrow, ranges)


def newer_feature(node: Node, opset: int) -> str | None:
    """Return the first attribute or input of a node that is newer than NEWEST_OPSET, or None."""
    if opset <= NEWEST_OPSET or not onnx.defs.has(node.op_type, NEWEST_OPSET):
        return None
    schema = onnx.defs.get_schema(node.op_type, NEWEST_OPSET)
    attributes = [a.name for a in node.proto.attribute if a.name not in schema.attributes]
    if attributes:
        return f"attribute {attributes[0]!r} of {node.op_type}"
    if len(node.inputs) > schema.max_input:
        return f"input {len(node.inputs)} of {node.op_type}"
    return None
