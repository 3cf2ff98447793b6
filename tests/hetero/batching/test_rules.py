"""Rules for batching, by opset version: where a parameter lies, its default and its sign.

The results of accepted models are compared with single rows, in ONNX's reference evaluator or, for
old versions that it lacks, in ONNX Runtime.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

from hetero.batching.batch_axis import with_open_batch_axis
from hetero.batching.batchability import why_not_batchable
from hetero.devices.model.reader import read_model
from tests.support.rows import for_each_row


def build(opset: int, body: str, shape: str = "N, 4, 6", constants: str = "") -> onnx.ModelProto:
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
        g (float[{shape}] x) => (y) <{constants}> {{ {body} }}"""
    model = parse_model(text)
    model.graph.output[0].type.tensor_type.elem_type = 7 if "ArgMax" in body else 1
    return model


#: Name -> arguments of `build`; with the attribute of one opset and the input of the next.
ACCEPTED: dict[str, tuple[Any, ...]] = {
    "softmax of all but the batch": (12, "y = Softmax(x)"),
    "log-softmax of all but the batch": (12, "y = LogSoftmax(x)"),
    "hardmax of all but the batch": (12, "y = Hardmax(x)"),
    "softmax of the last axis": (13, "y = Softmax(x)", "N, 4"),
    "hardmax of the last axis": (13, "y = Hardmax(x)", "N, 4"),
    "attribute of reduction": (11, "y = ReduceSum <axes = [1]> (x)"),
    "reduction of several axes": (11, "y = ReduceMax <axes = [1, -1]> (x)"),
    "reduction of none": (18, "y = ReduceMax <noop_with_empty_axes = 1> (x)"),
    "attribute of unsqueeze": (11, "y = Unsqueeze <axes = [1, 3]> (x)"),
    "attribute of squeeze": (11, "y = Squeeze <axes = [1]> (x)", "N, 1, 6"),
    "attribute of pad": (2, "y = Pad <pads = [0, 1, 0, 0, 2, 0]> (x)"),
    "axes of pad": (
        18,
        "y = Pad(x, p, , a)",
        "N, 4, 6",
        "int64[2] p = {1, 2}, int64[1] a = {1}",
    ),
    "attributes of slice": (9, "y = Slice <starts = [1], ends = [3], axes = [1]> (x)"),
    "inputs of slice of sizes": (
        10,
        "s = Shape(x) t = Slice(s, b, e) r = Expand(o, t) y = Add(x, r)",
        "N, 4, 6",
        "int64[1] b = {1}, int64[1] e = {3}, float[1, 1] o = {2.0}",
    ),
    "attributes of slice of sizes": (
        9,
        "s = Shape(x) t = Slice <starts = [1], ends = [3]> (s) r = Expand(o, t) y = Add(x, r)",
        "N, 4, 6",
        "float[1, 1] o = {2.0}",
    ),
    "slice of sizes from the end": (
        13,
        "s = Shape(x) t = Slice(s, b, e) r = Expand(o, t) y = Add(x, r)",
        "N, 4, 6",
        "int64[1] b = {-2}, int64[1] e = {3}, float[1, 1] o = {2.0}",
    ),
    "sizes from the second": (
        15,
        "s = Shape <start = 1> (x) r = Expand(o, s) y = Add(x, r)",
        "N, 4, 6",
        "float[1, 1] o = {2.0}",
    ),
    "gather of sizes": (
        13,
        "s = Shape(x) t = Gather(s, i) r = Expand(o, t) y = Add(x, r)",
        "N, 4, 6",
        "int64[2] i = {-2, 2}, float[1, 1] o = {2.0}",
    ),
    "negative axis": (13, "y = ArgMax <axis = -1, keepdims = 0> (x)"),
    "axis of split": (11, "y, z = Split <axis = 1, split = [1, 3]> (x)"),
    "flatten from the end": (13, "y = Flatten <axis = -2> (x)"),
    "transposition of other axes": (13, "y = Transpose <perm = [0, 2, 1]> (x)"),
    "dropout": (12, "y = Dropout(x)"),
    "attribute of upsample": (7, "y = Upsample <scales = [1.0, 1.0, 2.0]> (x)"),
    "input of upsample": (9, "y = Upsample(x, c)", "N, 4, 6", "float[3] c = {1.0, 1.0, 2.0}"),
    "second input of resize": (10, "y = Resize(x, c)", "N, 4, 6", "float[3] c = {1.0, 1.0, 2.0}"),
    "matrix for all": (13, "y = MatMul(x, c)", "N, 2, 2", "float[2, 1] c = {1.0, 2.0}"),
    "one matrix per request": (13, "y = MatMul(x, c)", "N, 2, 2", "float[1, 2, 1] c = {1.0, 2.0}"),
    "bias for all": (
        13,
        "y = Gemm(x, c, d)",
        "N, 2",
        "float[2, 1] c = {1.0, 2.0}, float[1, 1] d = {3.0}",
    ),
    "bias vector": (
        13,
        "y = Gemm(x, c, d)",
        "N, 2",
        "float[2, 1] c = {1.0, 2.0}, float[1] d = {3.0}",
    ),
    "bias with rows": (
        13,
        "d = Neg(x) y = Gemm(x, c, d)",
        "N, 2",
        "float[2, 2] c = {1.0, 2.0, 3.0, 4.0}",
    ),
    "transposed second factor": (
        13,
        "y = Gemm <transB = 1> (x, c)",
        "N, 2",
        "float[1, 2] c = {1.0, 2.0}",
    ),
    "repetition of other axes": (13, "y = Tile(x, c)", "N, 2", "int64[2] c = {1, 3}"),
    "table by rows": (
        13,
        "i = Cast <to = 7> (x) y = Gather(c, i)",
        "N, 2",
        "float[2, 1] c = {1.0, 2.0}",
    ),
    "quantized matrix for all": (
        21,
        "q = QuantizeLinear(x, s, z) p = QLinearMatMul(q, s, z, c, s, z, s, z) y = Cast <to=1> (p)",
        "N, 2",
        "float s = {0.02}, uint8 z = {3}, uint8[2, 1] c = {20, 40}",
    ),
    "concatenation of other axes": (13, "z = Neg(x) y = Concat <axis = 1> (x, z)"),
}

#: Name -> arguments of `build`, and a part of the reason.
REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "softmax over the batch by default": (
        (13, "y = Softmax(x)", "N"),
        "Softmax) operates on axis 0",
    ),
    "second of several axes": ((11, "y = ReduceSum <axes = [1, 0]> (x)"), "operates on axis 0"),
    "first of several axes": ((11, "y = ReduceSum <axes = [-3, 1]> (x)"), "operates on axis 0"),
    "reduction of all": ((11, "y = ReduceSum(x)"), "operates on all axes"),
    "empty axes": (
        (18, "y = ReduceMax <noop_with_empty_axes = 0> (x)"),
        "operates on all axes",
    ),
    "new first axis": ((11, "y = Unsqueeze <axes = [0]> (x)"), "inserts an axis before"),
    "new first axis from the end": ((11, "y = Unsqueeze <axes = [1, -5]> (x)"), "inserts an axis"),
    "attribute of pad": ((2, "y = Pad <pads = [1, 0, 0, 0, 0, 0]> (x)"), "operates on axis 0"),
    "axes of pad": (
        (18, "y = Pad(x, p, , a)", "N, 4, 6", "int64[2] p = {0, 2}, int64[1] a = {-3}"),
        "operates on axis 0",
    ),
    "slice without axes": ((9, "y = Slice <starts = [0], ends = [1]> (x)"), "operates on axis 0"),
    "argmax over the batch by default": ((13, "y = ArgMax(x)"), "operates on axis 0"),
    "split over the batch by default": ((11, "y, z = Split(x)"), "operates on axis 0"),
    "flatten of the batch": ((13, "y = Flatten <axis = 0> (x)"), "merges axis 0"),
    "flatten of all but one": ((13, "y = Flatten <axis = -1> (x)"), "merges axis 0"),
    "transposition by default": ((13, "y = Transpose(x)"), "moves axis 0"),
    "old dropout in training": ((6, "y = Dropout(x)"), "at random"),
    "upsampled batch": ((7, "y = Upsample <scales = [2.0, 1.0, 1.0]> (x)"), "scales axis 0"),
    "upsampled batch by input": (
        (9, "y = Upsample(x, c)", "N, 4, 6", "float[3] c = {2.0, 1.0, 1.0}"),
        "scales axis 0",
    ),
    "size of the batch from a slice": (
        (
            13,
            "s = Shape(x) t = Slice(s, b, e) r = Expand(o, t) y = Add(x, r)",
            "N, 4, 6",
            "int64[1] b = {0}, int64[1] e = {1}, float[1, 1] o = {2.0}",
        ),
        "does not expand",
    ),
    "sizes in reverse": (
        (
            13,
            "s = Shape(x) t = Slice(s, b, e, a, d) f = Cast <to = 1> (t) y = Mul(x, f)",
            "N, 3, 3",
            "int64[1] b = {2}, int64[1] e = {-9}, int64[1] a = {0}, int64[1] d = {-1}",
        ),
        "size of the batch",
    ),
    "one of two sizes is the batch's": (
        (
            13,
            "s = Shape(x) t = Gather(s, i) f = Cast <to = 1> (t) y = Mul(x, f)",
            "N, 4, 2",
            "int64[2] i = {1, -3}",
        ),
        "size of the batch",
    ),
    "rows as a matrix": ((13, "y = MatMul(c, x)", "N, 2", "float[1, 2] c = {1.0, 2.0}"), "rows"),
    "rows as the second factor": (
        (13, "y = Gemm(c, x)", "N, 2", "float[1, 2] c = {1.0, 2.0}"),
        "multiplies rows with each other",
    ),
    "transposed rows": (
        (13, "y = Gemm <transA = 1> (x, c)", "N, 2", "float[3, 1] c = {1.0, 2.0, 3.0}"),
        "transposes the batch",
    ),
    "bias for one row each": (
        (
            13,
            "y = Gemm(x, c, d)",
            "N, 2",
            "float[2, 1] c = {1.0, 2.0}, float[3, 1] d = {3.0, 4.0, 5.0}",
        ),
        "takes 'd'",
    ),
    "rows in a bias alone": (
        (
            13,
            "y = Gemm(c, d, x)",
            "N, 2",
            "float[1, 2] c = {1.0, 2.0}, float[2, 2] d = {3.0, 4.0, 5.0, 6.0}",
        ),
        "without rows",
    ),
    "scale with rows": (
        (13, "z = Neg(x) y = InstanceNormalization(x, z, z)", "N, 4, 6"),
        "rows as its parameter 'z'",
    ),
    "scale of each row": (
        (17, "z = Neg(x) y = LayerNormalization(x, z)", "N, 4"),
        "rows as its parameter 'z'",
    ),
    "gathered rows": (
        (13, "y = Gather(x, c)", "N, 4, 6", "int64[2] c = {0, 1}"),
        "operates on axis 0",
    ),
    "table along another axis": (
        (
            13,
            "i = Cast <to = 7> (x) y = Gather <axis = 1> (c, i)",
            "N, 2",
            "float[2, 2] c = {1.0, 2.0, 3.0, 4.0}",
        ),
        "behind other axes",
    ),
    "another domain": ((13, "y = com.example.Neg(x)"), "not known"),
}


@for_each_row("name", ACCEPTED)
def test_accepted_rows_are_independent(name):
    proto = build(*ACCEPTED[name])
    assert why_not_batchable(read_model(proto)) is None
    sizes = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim][1:]
    x = np.random.default_rng(3).random((3, *sizes)).astype(np.float32)
    batch, *rows = (compute(proto, part) for part in (x, x[:1], x[1:2], x[2:]))
    np.testing.assert_allclose(batch, np.concatenate(rows), rtol=1e-6)


def compute(proto: onnx.ModelProto, x: np.ndarray) -> Any:
    if proto.graph.node[0].op_type in ("Upsample", "Resize"):
        return onnxruntime.InferenceSession(proto.SerializeToString()).run(["y"], {"x": x})[0]
    return ReferenceEvaluator(proto).run(["y"], {"x": x})[0]


def test_old_dropout_of_inference_is_accepted():
    assert why_not_batchable(read_model(build(6, "y = Dropout <is_test = 1> (x)"))) is None


@for_each_row("name", REFUSED)
def test_refused_with_the_reason(name):
    arguments, reason = REFUSED[name]
    message = why_not_batchable(read_model(build(*arguments)))
    assert message is not None
    assert reason in message


@pytest.mark.parametrize("shape", ["1, 4", "", "3"])
def test_fixed_batch_axis_is_refused(shape):
    message = why_not_batchable(read_model(build(13, "y = Neg(x)", shape)))
    assert message is not None
    assert "input 'x'" in message
    assert "no open batch axis 0" in message


# Opening of the batch axis.

TARGET = "int64[2] t = {1, 8}"


def opened(body: str, shape: str = "1, 2, 4", constants: str = TARGET, opset: int = 14) -> Any:
    """Return the shapes of input and output with an open axis, or None if it stays."""
    model = read_model(build(opset, body, shape, constants))
    result = with_open_batch_axis(model)
    return None if result is model else (result.inputs[0].shape, result.spec("y").shape)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("y = Neg(x)", (("batch", 2, 4), ("batch", 2, 4))),
        ("y = Reshape(x, t)", (("batch", 2, 4), ("batch", 8))),
        ("y = Reshape <allowzero = 0> (x, t)", (("batch", 2, 4), ("batch", 8))),
        ("z = Neg(x) y = Reshape(z, t)", (("batch", 2, 4), ("batch", 8))),
    ],
)
def test_batch_axis_opens(body, expected):
    assert opened(body) == expected


def test_reshape_that_keeps_zeros_stays():
    result = opened("y = Reshape <allowzero = 1> (x, t)")
    assert result is None or result[1] == (1, 8)


def test_reshape_target_changes_for_rows_alone():
    # The constant `c` has no batch: its target keeps the 1, and both nodes share it.
    body = "a = Reshape(c, t) b = Reshape(x, t) y = Add(a, b)"
    constants = "int64[2] t = {1, 2}, float[2] c = {1.0, 2.0}"
    model = read_model(build(14, body, "1, 2", constants))
    result = with_open_batch_axis(model)
    targets = [result.constants[n.inputs[1]].array.tolist() for n in result.nodes[:2]]
    assert targets == [[1, 2], [0, 2]]
    assert model.constants["t"].array.tolist() == [1, 2]


def test_reshape_to_several_rows_stays():
    result = opened("y = Reshape(x, t)", constants="int64[2] t = {2, 4}")
    assert result is None or result[1] == (2, 4)


def test_other_operators_with_constants_stay():
    body = "b = Expand(x, t) y = Neg(b)"
    model = read_model(build(14, body, "1, 8", TARGET))
    result = with_open_batch_axis(model)
    assert result.constants.keys() == {"t"}


@pytest.mark.parametrize("shape", ["2, 4", "N, 4", ""])
def test_other_batch_sizes_stay(shape):
    assert opened("y = Neg(x)", shape) is None
