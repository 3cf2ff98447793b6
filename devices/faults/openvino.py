"""Faults of OpenVINO: nodes that it accepts and computes otherwise than ONNX defines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import onnx

from hetero.devices.faults.fault import Fault, NodeView, fault_refusal
from hetero.devices.faults.openvino_integers import (
    FLOATS,
    INT32,
    NARROWED,
    fits,
    integer_refusal,
)
from hetero.devices.model.integer_ranges import Range, by_operator
from hetero.devices.model.model import Model, Node
from hetero.devices.plugin.support import Refusal

#: The operator set of OpenVINO's ONNX frontend: it ignores later attributes and inputs.
NEWEST_OPSET: Final = 23
#: Operators that are right except for NaN, infinities or rounding -> a note for the query.
NOTES: Final = by_operator(
    {
        "Celu Exp HardSigmoid Max Min Relu Softmax LogSoftmax": "NaN does not propagate",
        "Greater GreaterOrEqual": "true if one side is NaN",
        "Clip": "NaN and infinities become the nearest limit",
        "ArgMax ArgMin Gelu Hardmax Mod ThresholdedRelu": "wrong for NaN and infinities",
        "ReduceMax ReduceMin": "an infinity that is the only element becomes the largest float",
        "QuantizeLinear": "a value halfway between two steps may round to the other one",
        "LpNormalization": "a small number is added to the divisor",
    }
)


def refusal(node: Node, model: Model, narrow: bool, ranges: Mapping[str, Range]) -> Refusal | None:
    """Return the refusal of a node that OpenVINO computes wrong; None if it is right.

    `narrow`: whether the user allows 32-bit arithmetic for all 64-bit integers. `ranges`: the
    proven ranges of the model's integers.
    """
    view = NodeView(node, model, ranges, narrow)
    fault = fault_refusal("OpenVINO", FAULTS, view)
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


def _casts_floats_to_narrowed_integers(view: NodeView) -> bool:
    """Return whether a Cast makes 64-bit integers of floats that may not fit 32 bits."""
    output = view.node.outputs[0]
    if view.narrow or view.element_type(output) not in NARROWED:
        return False
    if fits(output, view.ranges, INT32.max):
        return False
    return view.element_type(view.node.inputs[0]) in FLOATS


def _fills_beyond_32_bits(view: NodeView) -> bool:
    """Return whether a ConstantOfShape's integer does not fit 32 bits."""
    value = view.attribute("value", None)
    return value is not None and value.dtype.kind in "iu" and abs(int(value.flat[0])) >= 2**31


def _has_scales_along_open_axis(view: NodeView) -> bool:
    """Return whether the axis of several scales may have an open length."""
    if view.input_shape(1) in ((), (1,)):
        return False
    shape = view.input_shape(0) or ()
    axis = view.attribute("axis", 1)
    return not -len(shape) <= axis < len(shape) or not isinstance(shape[axis], int)


def _slopes_may_fit_channels(view: NodeView) -> bool:
    """Return whether a PRelu's slopes for the last axis may be as many as the channels."""
    shape, slopes = (view.input_shape(i) or () for i in (0, 1))
    return (
        len(shape) > 2
        and len(slopes) == 1
        and slopes != (1,)
        and (shape[1] == slopes[0] or not isinstance(shape[1], int))
    )


def _has_constant_inputs(view: NodeView) -> bool:
    """Return whether all inputs depend on constants only."""
    return view.model.request_dependent.isdisjoint(view.node.reads)


def _reduced_axes_of_three(view: NodeView) -> list[int]:
    """Return the axes that a reduction of three axes reduces."""
    constant = view.model.constants.get(view.input_name(1))
    axes = constant.array.ravel().tolist() if constant else view.attribute("axes", ())
    return [axis % 3 for axis in axes]


def _reduces_middle_axis_of_dequantised_values(view: NodeView) -> bool:
    producer = view.input_producer(0)
    is_dequantised = producer is not None and producer.op_type == "DequantizeLinear"
    has_three_axes = len(view.input_shape(0) or ()) == 3
    return is_dequantised and has_three_axes and _reduced_axes_of_three(view) == [1]


def _is_fused_with_constant_tensors(view: NodeView) -> bool:
    """Return whether a reduction of the first or last of three axes is near constant tensors.

    OpenVINO computes the elementwise nodes after such a reduction in the same step, and applies
    elements of their constants to the wrong positions. In quantised models it also moves nodes from
    before the reduction behind it.
    """
    model = view.model
    if len(view.input_shape(0) or ()) != 3:
        return False
    is_reduction = view.node.op_type.startswith("Reduce")
    if is_reduction and _reduced_axes_of_three(view) not in ([0], [2]):
        return False

    def producers(node: Node) -> list[Node]:
        return [producer for value in node.reads if (producer := model.producer(value))]

    directions = (model.readers, producers) if _is_quantised_model(model) else (model.readers,)
    for neighbours in directions:
        pending = neighbours(view.node)
        while pending:
            node = pending.pop()
            constants = [v for v in node.reads if v not in model.request_dependent]
            if len(constants) != len(node.reads) - 1:
                continue
            if any(model.spec(v).shape not in ((), (1,)) for v in constants):
                return True
            pending += neighbours(node)
    return False


def _is_quantised_model(model: Model) -> bool:
    """Return whether a model quantises at run time, so that OpenVINO moves scales through it."""
    return any(node.op_type == "QuantizeLinear" for node in model.nodes)


def _has_quantising_and_other_readers(view: NodeView) -> bool:
    """Return whether one reader quantises a node's output, and others or the user read it too."""
    readers = view.model.readers(view.node)
    is_output = any(port.name == view.node.outputs[0] for port in view.model.outputs)
    has_quantising_reader = any(reader.op_type == "QuantizeLinear" for reader in readers)
    return has_quantising_reader and len(readers) + is_output > 1


def _reshapes_reduction_of_equal_rank(view: NodeView) -> bool:
    """Return whether a reduction that drops axes is reshaped to the same number of axes."""
    producer = view.input_producer(0)
    if producer is None or not producer.op_type.startswith("Reduce"):
        return False
    before, after = view.input_shape(0), view.model.spec(view.node.outputs[0]).shape
    if producer.attributes.get("keepdims", 1) or before == after:
        return False
    return before is None or after is None or len(before) == len(after)


def _is_pointwise_with_strides_and_pads(view: NodeView) -> bool:
    """Return whether a convolution's kernel has one element, and strides and pads."""
    kernel = view.input_shape(1 if view.node.op_type == "Conv" else 3) or ()
    strides, pads = view.attribute("strides", (1,)), view.attribute("pads", (0,))
    return set(kernel[2:]) == {1} and max(strides) > 1 and any(pads)


def _reads_table_dequantised_along_other_axis(view: NodeView) -> bool:
    """Return whether a constant table has scales along another axis than the first."""
    node = view.input_producer(0)
    if node is None or view.input_name(0) in view.model.request_dependent:
        return False
    return (
        node.op_type == "DequantizeLinear"
        and view.model.spec(node.inputs[1]).shape not in ((), (1,))
        and node.attributes.get("axis", 1) != 0
    )


def _is_zero_constant(view: NodeView, position: int) -> bool:
    """Return whether an input is a constant of zeros."""
    constant = view.model.constants.get(view.input_name(position))
    return constant is not None and not constant.array.any()


#: OpenVINO 2026.4 is wrong on its CPU device for a case of ONNX's backend suite, or for a random
#: or extreme input, of each row.
FAULTS: Final = (
    Fault(
        "Bernoulli RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
        "its random numbers do not follow the seed",
    ),
    Fault("DFT", "errors reach 3e-4 for zeros, and the axis input of operator set 20 is ignored"),
    Fault("DynamicQuantizeLinear", "values halfway between two steps round to the other one"),
    Fault("NonMaxSuppression", "boxes whose overlap equals the threshold are dropped"),
    Fault(
        "ReduceMax ReduceMin",
        "without elements it returns the extreme float instead of an infinity",
        lambda v: 0 in (v.input_shape(0) or ()),
    ),
    Fault("TopK", "equal elements may be returned in another order"),
    Fault(
        "Attention",
        "a causal mask with another mask, or with past keys, is ignored",
        lambda v: (
            any(map(v.input_name, range(4, 7))) or (v.input_name(3) and v.attribute("is_causal"))
        ),
    ),
    Fault("Attention", "outputs after the first may be wrong", lambda v: any(v.node.outputs[1:])),
    Fault(
        "QuantizeLinear DequantizeLinear",
        "scales along an axis of open length are applied to another axis",
        _has_scales_along_open_axis,
    ),
    Fault(
        "QLinearConv",
        "uint8 weights with zero point 0 do not compile",
        lambda v: v.element_type(v.input_name(3)) == "uint8" and _is_zero_constant(v, 5),
    ),
    Fault(
        "Conv ConvTranspose QLinearConv QLinearMatMul",
        "its result is undefined if all inputs are constants",
        _has_constant_inputs,
    ),
    Fault(
        "Conv QLinearConv",
        "a kernel of one element with strides ignores pads",
        _is_pointwise_with_strides_and_pads,
    ),
    Fault(
        "Conv",
        "if one of several readers quantises its output, that reader gets zeros",
        _has_quantising_and_other_readers,
    ),
    Fault(
        "AveragePool",
        "in quantised models, pads that count are not zero",
        lambda v: (
            v.attribute("count_include_pad")
            and _is_quantised_model(v.model)
            and (
                any(v.attribute("pads", ())) or v.attribute("auto_pad", "NOTSET").startswith("SAME")
            )
        ),
    ),
    Fault(
        "Reshape Flatten",
        "after a reduction that drops axes it is skipped",
        _reshapes_reduction_of_equal_rank,
    ),
    Fault(
        "MatMul Gemm",
        "its result is undefined if all inputs are dequantised constants",
        lambda v: (
            _has_constant_inputs(v)
            and any(node.op_type == "DequantizeLinear" for node in v.model.nodes)
        ),
    ),
    Fault(
        "Gather",
        "scales of a table's columns are applied to another axis",
        _reads_table_dequantised_along_other_axis,
    ),
    Fault(
        "GlobalAveragePool GlobalMaxPool ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
        "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare",
        "after one of three axes is reduced, constants are applied to wrong positions",
        _is_fused_with_constant_tensors,
    ),
    Fault(
        "ReduceMax ReduceMean ReduceMin ReduceSum",
        "zeros result from reducing the middle one of three axes of dequantised values",
        _reduces_middle_axis_of_dequantised_values,
    ),
    Fault("ReduceLogSumExp", "attribute 'axes' is ignored", lambda v: v.attribute("axes")),
    Fault("PRelu", "one-dimensional slopes are applied to the channels", _slopes_may_fit_channels),
    Fault(
        "GroupNormalization",
        "it may crash on two dimensions",
        lambda v: len(v.input_shape(0) or ()) < 3,
    ),
    Fault("GRU LSTM RNN", "layout=1 is ignored", lambda v: v.attribute("layout")),
    Fault(
        "GRU LSTM RNN",
        "sequence_lens is ignored if sizes are open",
        lambda v: v.input_name(4) and not all(type(n) is int for n in v.input_shape(0) or ("",)),
    ),
    Fault("LSTM", "peepholes are ignored", lambda v: v.input_name(7)),
    Fault(
        "Resize",
        "filter weights differ with antialias or exclude_outside",
        lambda v: v.attribute("antialias") or v.attribute("exclude_outside"),
    ),
    Fault(
        "Resize",
        "keep_aspect_ratio_policy is ignored",
        lambda v: v.attribute("keep_aspect_ratio_policy", "stretch") != "stretch",
    ),
    Fault(
        "Resize",
        "align_corners with scales uses the rounded output size",
        lambda v: (
            v.attribute("coordinate_transformation_mode") == "align_corners"
            and v.input_name(2)
            and v.attribute("mode", "nearest") != "nearest"
        ),
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
    ),
    Fault("SpaceToDepth", "mode is ignored", lambda v: v.attribute("mode", "DCR") != "DCR"),
    Fault(
        "Expand",
        "it crashes if the result has no elements",
        lambda v: 0 in (v.model.spec(v.node.outputs[0]).shape or ()),
    ),
    Fault(
        "Compress", "it crashes if the condition selects nothing", lambda v: _is_zero_constant(v, 1)
    ),
    Fault(
        "Slice",
        "starts and ends beyond 32 bits overflow",
        lambda v: any(
            v.is_runtime_value(name)
            and v.element_type(name) == "int64"
            and not fits(name, v.ranges, INT32.max)
            for name in v.node.inputs[1:3]
        ),
    ),
    Fault(
        "Dropout",
        "ratio and training_mode are ignored unless they are constants",
        lambda v: any(map(v.is_runtime_value, v.node.inputs[1:])),
    ),
    Fault(
        "Tile",
        "its result is undefined unless repeats are a constant",
        lambda v: v.is_runtime_value(v.input_name(1)),
    ),
    Fault("ConstantOfShape", "its value does not fit 32 bits", _fills_beyond_32_bits),
    Fault("Cast", "floats beyond 32 bits are clamped", _casts_floats_to_narrowed_integers),
)
