"""Quantisation against ONNX Runtime and explicit integer arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from tests.support.kernel_oracle import NARROW, check, run_kernel, run_onnxruntime, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(25)
X = RNG.normal(0, 60, (2, 3, 4)).astype(np.float32)
INT4, UINT4 = NARROW["int4"], NARROW["uint4"]


def scalar(value: float, dtype: Any = np.float32) -> Any:
    return np.array(value, dtype)


def integers(shape: tuple[int, ...], dtype: Any) -> Any:
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("opset", [10, 13, 19, 21, 23])
def test_per_tensor(opset, dtype):
    edges = [0.25, 0.75, 1.25, 1e9, -1e9, np.inf, -np.inf]
    x = np.concatenate([X.ravel(), np.array(edges, np.float32)])
    zero_point = scalar(3, dtype)
    check("QuantizeLinear", [x, scalar(0.5), zero_point], opset=opset)
    check("QuantizeLinear", [x, scalar(0.5)], opset=opset)
    check("QuantizeLinear", [x[:0], scalar(0.5), zero_point], opset=opset)
    q = integers((3, 4), dtype)
    check("DequantizeLinear", [q, scalar(0.5), zero_point], opset=opset)
    check("DequantizeLinear", [q, scalar(0.5)], opset=opset)


@for_each_row("axis", [0, 1, 2, -1])
@for_each_row("opset", [13, 19, 21])
def test_per_axis(opset, axis):
    n: int = X.shape[axis]
    scale = RNG.uniform(0.3, 1, (n,)).astype(np.float32)
    zero_point = integers((n,), np.int8)
    check("QuantizeLinear", [X, scale, zero_point], {"axis": axis}, opset)
    q = integers(X.shape, np.int8)
    check("DequantizeLinear", [q, scale, zero_point], {"axis": axis}, opset)


@pytest.mark.parametrize(("axis", "block"), [(0, 2), (1, 2), (2, 2), (-1, 4), (2, 3)])
def test_blocks(axis, block):
    shape = list(X.shape)
    shape[axis] = -(-shape[axis] // block)
    scale = RNG.uniform(0.3, 1, shape).astype(np.float32)
    zero_point = integers(tuple(shape), np.int8)
    attributes = {"axis": axis, "block_size": block}
    check("QuantizeLinear", [X, scale, zero_point], attributes, 21, oracle=run_reference)
    q = integers(X.shape, np.int8)
    check("DequantizeLinear", [q, scale, zero_point], attributes, 21, oracle=run_reference)


@pytest.mark.parametrize(
    "name",
    [
        "uint16",
        "int16",
        "uint4",
        "int4",
        "uint2",
        "int2",
        "float8_e4m3fn",
        "float8_e5m2",
        "float4_e2m1fn",
    ],
)
def test_other_types(name):
    dtype = NARROW.get(name, np.dtype(name) if name not in NARROW else None)
    zero_point = np.zeros((), np.float32).astype(dtype)
    inputs = [X, scalar(7.5), zero_point]
    opset = 25 if "2" in name[-1:] else 23
    q = check("QuantizeLinear", inputs, {}, opset, oracle=run_reference)[0]
    inputs = [q, scalar(7.5), zero_point]
    check("DequantizeLinear", inputs, {}, opset, oracle=run_reference)


@pytest.mark.parametrize("dtype", [INT4, UINT4, np.dtype(np.int16)])
def test_output_type(dtype):
    to = {INT4: TensorProto.INT4, UINT4: TensorProto.UINT4}.get(dtype, TensorProto.INT16)
    actual = run_kernel("QuantizeLinear", [X, scalar(9)], {"output_dtype": to}, 21)[0]
    assert actual.dtype == dtype
    inputs = [X, scalar(9), scalar(0, np.uint8)]
    with pytest.raises(TypeError, match="zero point"):
        run_kernel("QuantizeLinear", inputs, {"output_dtype": to}, 21)


def test_half_scales():
    x, scale = X.astype(np.float16), scalar(0.37, np.float16)
    check("QuantizeLinear", [x, scale, scalar(2, np.int8)], opset=21)
    check("DequantizeLinear", [integers((5,), np.int8), scale, scalar(2, np.int8)], opset=21)
    attributes = {"output_dtype": TensorProto.FLOAT}
    actual = run_kernel("DequantizeLinear", [integers((5,), np.int8), scale], attributes, 23)[0]
    assert actual.dtype == np.float32


@pytest.mark.parametrize(
    ("scale", "attributes"),
    [((4,), {"axis": 1}), ((2, 3), {}), ((2, 2, 4), {"axis": 1, "block_size": 3})],
)
def test_quantize_refuses_scales_of_other_shapes(scale, attributes):
    with pytest.raises(ValueError, match="y_scale: expected"):
        run_kernel("QuantizeLinear", [X, np.ones(scale, np.float32)], attributes, 21)
    with pytest.raises(IndexError, match="rank 3"):
        run_kernel("QuantizeLinear", [X, np.ones(3, np.float32)], {"axis": 3}, 21)


@pytest.mark.parametrize(
    "x",
    [
        X,
        np.abs(X),
        -np.abs(X),
        np.zeros(3, np.float32),
        np.array([1e-3], np.float32),
        np.zeros((0, 2), np.float32),
    ],
)
def test_dynamic(x):
    if x.size:
        check("DynamicQuantizeLinear", [x], {}, 11, n_outputs=3)
    else:
        expected = [x.astype(np.uint8), scalar(1), scalar(0, np.uint8)]
        check("DynamicQuantizeLinear", [x], {}, 11, n_outputs=3, expected=expected)


@for_each_row("k", [7, 300])
@for_each_row("zero_points", ["none", "scalar", "vector"])
@for_each_row("types", [(np.uint8, np.uint8), (np.uint8, np.int8), (np.int8, np.int8)])
def test_matmul_integer(types, zero_points, k):
    a, b = integers((2, 3, k), types[0]), integers((k, 5), types[1])
    zeros = {
        "none": [],
        "scalar": [scalar(7, types[0]), scalar(9, types[1])],
        "vector": [integers((3,), types[0]), integers((5,), types[1])],
    }[zero_points]
    wide = [a.astype(np.int64), b.astype(np.int64)]
    if zeros:
        wide[0] -= zeros[0].astype(np.int64).reshape(-1, 1)
        wide[1] -= zeros[1].astype(np.int64)
    expected = (wide[0] @ wide[1]).astype(np.int32)
    check("MatMulInteger", [a, b, *zeros], opset=10, expected=[expected])


def test_sums_beyond_float32_stay_exact():
    a = np.full((1, 301), 255, np.uint8)
    expected = np.array([[301 * 255 * 255]], np.int32)
    check("MatMulInteger", [a, a.T], opset=10, expected=[expected])
    x = np.full((1, 301, 1, 1), 255, np.uint8)
    check("ConvInteger", [x, x], opset=10, expected=[expected[None, None]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_matmul(dtype):
    a, b = integers((4, 6), dtype), integers((6, 5), dtype)
    zero = scalar(3, dtype)
    inputs = [a, scalar(0.02), zero, b, scalar(0.03), zero, scalar(0.7), zero]
    for opset in (10, 21):
        check("QLinearMatMul", inputs, opset=opset)
    columns = [
        a,
        scalar(0.02),
        zero,
        b,
        RNG.uniform(0.01, 0.05, 5).astype(np.float32),
        integers((5,), dtype),
        scalar(0.7),
        zero,
    ]
    check("QLinearMatMul", columns, opset=10)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pads": [1, 1, 1, 1]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"group": 2},
        {"dilations": [2, 1]},
    ],
)
def test_conv_integer(attributes):
    x = integers((2, 4, 7, 6), np.uint8)
    w = integers((6, 4 // attributes.get("group", 1), 3, 2), np.uint8)
    for zeros in ([], [scalar(5, np.uint8)], [scalar(5, np.uint8), scalar(4, np.uint8)]):
        check("ConvInteger", [x, w, *zeros], attributes, 10)


@pytest.mark.parametrize("attributes", [{}, {"pads": [1, 0, 2, 1]}, {"group": 2}])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_qlinear_conv(dtype, attributes):
    group = attributes.get("group", 1)
    x, w = integers((1, 4, 6, 5), dtype), integers((6, 4 // group, 3, 3), dtype)
    zero = scalar(2, dtype)
    bias = RNG.integers(-5000, 5000, 6).astype(np.int32)
    per_channel = RNG.uniform(0.01, 0.02, 6).astype(np.float32)
    inputs = [x, scalar(0.05), zero, w, scalar(0.01), zero, scalar(1.3), zero]
    for case in (inputs, [*inputs, bias]):
        check("QLinearConv", case, attributes, 10)
    inputs[4:6] = [per_channel, np.zeros(6, dtype)]
    check("QLinearConv", [*inputs, bias], attributes, 10)


@pytest.mark.parametrize("scale", [0.1, 0.3, 0.7])
def test_products_are_scaled_in_float32(scale):
    """In float32, 5 * 0.1 is 0.5, which rounds to 0; in float64, it is more, which rounds to 1."""
    a, one = np.arange(256, dtype=np.uint8), np.ones((1, 1), np.uint8)
    zero = scalar(0, np.uint8)
    scales = [scalar(scale), zero], [scalar(1), zero], [scalar(1), zero]
    check("QLinearMatMul", [a[:, None], *scales[0], one, *scales[1], *scales[2]], opset=10)
    x, w = a.reshape(1, 1, 16, 16), one[None, None]
    check("QLinearConv", [x, *scales[0], w, *scales[1], *scales[2]], opset=10)


def test_zero_point_of_another_type_is_refused():
    a = integers((2, 2), np.uint8)
    with pytest.raises(TypeError, match="int8"):
        run_kernel("MatMulInteger", [a, a, scalar(1, np.int8)])
    with pytest.raises(TypeError, match="int8"):
        run_kernel("DequantizeLinear", [a, scalar(1), scalar(1, np.int8)])
    assert run_onnxruntime("MatMulInteger", [a, a], opset=10)[0].dtype == np.int32
