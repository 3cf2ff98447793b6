"""Quantized models in float32: results equal those of integer arithmetic in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

from tests.support.quantized import (
    RNG,
    bytes_of,
    operator_types,
    run_cpu,
    run_unoptimized,
    weights_of,
)
from tests.support.small_models import make_model


def pair(x: str, y: str, zero: str = "zero") -> list[NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, "scale", zero], [f"{y}_q"]),
        helper.make_node("DequantizeLinear", [f"{y}_q", "scale", zero], [y]),
    ]


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16])
@pytest.mark.parametrize("zero", [0, 3])
def test_fake_quantize_equals_quantize_and_dequantize(dtype, zero):
    x = (RNG.standard_normal((3, 40)) * 9).astype(np.float32)
    x[0, :4] = [0.25, 0.75, -0.25, 1e9]
    constants = {"scale": np.float32(0.5), "zero": dtype(zero)}
    model = make_model(pair("x", "y"), {"x": x}, ["y"], constants, opset=21)
    assert operator_types(model) == ["FakeQuantize"]
    assert np.array_equal(run_cpu(model, {"x": x})[0], run_unoptimized(model, {"x": x})[0])


@pytest.mark.parametrize(
    ("change", "case"),
    [
        ({"scale": np.array([0.5, 0.25, 1], np.float32), "zero": np.zeros(3, np.uint8)}, "axis"),
        ({"other": np.uint8(4)}, "another zero point"),
        ({}, "integers are an output"),
    ],
)
def test_other_quantizations_are_not_fused(change, case):
    nodes = pair("x", "y")
    if "other" in change:
        nodes[1].input[2] = "other"
    if case == "axis":
        for node in nodes:
            node.attribute.append(helper.make_attribute("axis", 0))
    x = RNG.standard_normal((3, 5)).astype(np.float32)
    constants = {"scale": np.float32(0.5), "zero": np.uint8(9)} | change
    model = make_model(nodes, {"x": x}, ["y"] if change else ["y", "y_q"], constants)
    assert "FakeQuantize" not in operator_types(model)
    results = zip(run_cpu(model, {"x": x}), run_unoptimized(model, {"x": x}), strict=True)
    for result, expected in results:
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_repeated_rounding_does_not_change_values():
    nodes = [
        *pair("x", "a"),
        helper.make_node("Transpose", ["a"], ["t"], perm=[0, 1, 3, 2]),
        *pair("t", "b"),
        helper.make_node("MaxPool", ["b"], ["m"], kernel_shape=[2, 2], pads=[1, 1, 1, 1]),
        *pair("m", "c"),
        helper.make_node("Concat", ["c", "m"], ["d"], axis=1),
        *pair("d", "y"),
    ]
    x = (RNG.standard_normal((2, 3, 5, 7)) * 9).astype(np.float32)
    constants = {"scale": np.float32(0.3), "zero": np.uint8(100)}
    model = make_model(nodes, {"x": x}, ["y"], constants)
    assert np.array_equal(run_cpu(model, {"x": x})[0], run_unoptimized(model, {"x": x})[0])


@pytest.mark.parametrize("other", ["zero", "low"])
def test_several_dequantizations_of_one_value_are_fused(other):
    quantize, first = pair("x", "a")
    second = helper.make_node("DequantizeLinear", ["a_q", "scale", other], ["b"])
    nodes = [quantize, first, second, helper.make_node("Add", ["a", "b"], ["y"])]
    x = (RNG.standard_normal((3, 40)) * 9).astype(np.float32)
    constants = {"scale": np.float32(0.3), "zero": np.uint8(100), "low": np.uint8(0)}
    model = make_model(nodes, {"x": x}, ["y"], constants)
    assert ("FakeQuantize" in operator_types(model)) == (other == "zero")
    assert np.array_equal(run_cpu(model, {"x": x})[0], run_unoptimized(model, {"x": x})[0])


@pytest.mark.parametrize("relu", [False, True])
def test_output_of_convolution_is_rounded(relu):
    x = RNG.standard_normal((2, 5, 9, 8)).astype(np.float32)
    nodes = [helper.make_node("Conv", ["a", "w", "b"], ["c"])]
    nodes += [helper.make_node("Relu", ["c"], ["r"])] if relu else []
    nodes = [*pair("x", "a"), *nodes, *pair("r" if relu else "c", "y", "low")]
    constants = {
        "w": RNG.integers(-9, 9, (4, 5, 3, 3)).astype(np.float32),
        "b": np.ones(4, np.float32),
        "scale": np.float32(0.25),
        "zero": np.uint8(128),
        "low": np.uint8(0),
    }
    model = make_model(nodes, {"x": x}, ["y"], constants)
    assert operator_types(model) == ["FakeQuantize", "Conv", "FakeQuantize"]
    # Floats represent multiples of 1/4 times small integers exactly.
    assert np.array_equal(run_cpu(model, {"x": x})[0], run_unoptimized(model, {"x": x})[0])


def step_difference(model: ModelProto, feeds: dict[str, Any]) -> np.ndarray:
    """Return the differences between device CPU and ONNX Runtime, in quantization steps."""
    (result,), (expected,) = run_cpu(model, feeds), run_unoptimized(model, feeds)
    assert result.dtype == expected.dtype
    return np.abs(result.astype(int) - expected.astype(int))


def quantized_inputs(x: Sequence[str], y: str) -> list[str]:
    """Return the inputs of a QLinear operator: tensors, scales and zero points."""
    tensors = [f"{name}{part}" for name in x for part in ("", "_scale", "_zero")]
    return [*tensors, f"{y}_scale", f"{y}_zero"]


SCALES = {
    "x_scale": np.float32(0.02),
    "x_zero": np.uint8(120),
    "y_scale": np.float32(0.7),
    "y_zero": np.uint8(130),
}


@pytest.mark.parametrize("per_channel", [False, True])
def test_quantized_convolution_equals_onnxruntime(per_channel):
    x, w = bytes_of(np.uint8, 1, 16, 12, 12), weights_of(np.int8, 8, 16, 3, 3)
    scale = np.linspace(0.01, 0.03, 8, dtype=np.float32) if per_channel else np.float32(0.02)
    constants = SCALES | {
        "w": w,
        "w_scale": scale,
        "w_zero": np.zeros(scale.shape, np.int8),
        "b": RNG.integers(-9000, 9000, 8, np.int32),
    }
    inputs = [*quantized_inputs(["x", "w"], "y"), "b"]
    nodes = [helper.make_node("QLinearConv", inputs, ["y"], pads=[1, 1, 1, 1], name="conv")]
    model = make_model(nodes, {"x": x}, ["y"], constants)
    difference = step_difference(model, {"x": x})
    assert difference.max() <= 1  # if a product is halfway between two steps
    assert difference.mean() < 1e-3


def test_quantized_product_equals_onnxruntime():
    x, w = bytes_of(np.uint8, 6, 300), weights_of(np.int8, 300, 7)
    constants = SCALES | {"w": w, "w_scale": np.float32(0.01), "w_zero": np.int8(-2)}
    nodes = [helper.make_node("QLinearMatMul", quantized_inputs(["x", "w"], "y"), ["y"])]
    model = make_model(nodes, {"x": x}, ["y"], constants)
    difference = step_difference(model, {"x": x})
    assert difference.max() <= 1
    assert difference.mean() < 1e-3


@pytest.mark.parametrize("cast", [False, True])
@pytest.mark.parametrize("depth", [64, 600])
@pytest.mark.parametrize("largest", [3, 127])
def test_integer_product_is_exact(cast, depth, largest):
    x = bytes_of(np.uint8, 5, depth)
    w = np.full((depth, 3), largest, np.int8)
    x[0] = 255
    nodes = [helper.make_node("MatMulInteger", ["x", "w", "x_zero", "w_zero"], ["p"])]
    nodes += [helper.make_node("Cast", ["p"], ["y"], to=1)] if cast else []
    constants = {"w": w, "x_zero": np.uint8(0), "w_zero": np.int8(-1)}
    model = make_model(nodes, {"x": x}, ["y" if cast else "p"], constants)
    (result,) = run_cpu(model, {"x": x})
    assert result.dtype == (np.float32 if cast else np.int32)
    assert np.array_equal(result, x.astype(int) @ (w.astype(int) + 1))


def dynamic_linear(bias: bool = True) -> list[NodeProto]:
    """Return a dynamically quantized linear layer, as ONNX Runtime's quantizer writes it."""
    return [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "w_zero"], ["p"]),
        helper.make_node("Mul", ["s", "w_scale"], ["unit"]),
        helper.make_node("Cast", ["p"], ["f"], to=1),
        helper.make_node("Mul", ["f", "unit"], ["y" if not bias else "m"]),
        *([helper.make_node("Add", ["b", "m"], ["y"])] if bias else []),
    ]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("depth", "width", "dtype", "per_column"),
    [(64, 7, np.int8, True), (600, 5, np.int8, False), (600, 500, np.uint8, True)],
)
def test_dynamically_quantized_linear_layer_equals_onnxruntime(
    depth, width, dtype, per_column, bias
):
    x = RNG.standard_normal((2, 3, depth)).astype(np.float32)
    columns = width if per_column else 1
    constants = {
        "w": weights_of(dtype, depth, width),
        "w_zero": dtype(3),
        "b": np.ones(width, np.float32),
        "w_scale": np.linspace(0.01, 0.03, columns, dtype=np.float32),
    }
    model = make_model(dynamic_linear(bias), {"x": x}, ["y"], constants)
    (result,), (expected,) = run_cpu(model, {"x": x}), run_unoptimized(model, {"x": x})
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("row", [[-101.5, 153.5], [0, 0], [3, 4], [-5, -9], [-1e-3, 700]])
def test_dynamic_range_equals_onnxruntime(row):
    x = np.array([row * 8], np.float32)
    constants = {"w": np.eye(16, dtype=np.int8), "w_zero": np.int8(0), "w_scale": np.float32(1)}
    model = make_model(dynamic_linear(bias=False), {"x": x}, ["y"], constants)
    assert np.array_equal(run_cpu(model, {"x": x})[0], run_unoptimized(model, {"x": x})[0])


def dynamic_convolution(group: int) -> tuple[ModelProto, np.ndarray]:
    """Return a dynamically quantized convolution, as ONNX Runtime's quantizer writes it."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node(
            "ConvInteger", ["q", "w", "z", "w_zero"], ["p"], pads=[1] * 4, group=group
        ),
        helper.make_node("Mul", ["s", "w_scale"], ["unit"]),
        helper.make_node("Cast", ["p"], ["f"], to=1),
        helper.make_node("Mul", ["f", "unit"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["n"]),
        helper.make_node("BatchNormalization", ["n", "g", "h", "h", "g"], ["o"]),
        helper.make_node("Clip", ["o", "low", "high"], ["y"]),
    ]
    constants = {
        "w": weights_of(np.int8, 6, 6 // group, 3, 3),
        "w_zero": np.int8(0),
        "w_scale": np.linspace(0.01, 0.03, 6, dtype=np.float32).reshape(1, 6, 1, 1),
        "b": np.ones((1, 6, 1, 1), np.float32),
        "g": np.full(6, 0.5, np.float32),
        "h": np.arange(6, dtype=np.float32),
        "low": np.float32(-4),
        "high": np.float32(6),
    }
    x = RNG.standard_normal((2, 6, 5, 7)).astype(np.float32)
    return make_model(nodes, {"x": x}, ["y"], constants), x


@pytest.mark.parametrize("group", [1, 6])
def test_dynamically_quantized_convolution_equals_onnxruntime(group):
    model, x = dynamic_convolution(group)
    (result,), (expected,) = run_cpu(model, {"x": x}), run_unoptimized(model, {"x": x})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_dynamic_quantization_of_nan_runs():
    node = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
    x = np.array([[1, 2, np.nan, 4], [1, 2, 3, 4]], np.float32)
    run_cpu(make_model([node], {"x": x}, ["q", "s", "z"]), {"x": x})
    constants = {"w": np.eye(4, dtype=np.int8), "w_zero": np.int8(0), "w_scale": np.float32(1)}
    run_cpu(make_model(dynamic_linear(bias=False), {"x": x}, ["y"], constants), {"x": x})


def test_pass_avoids_names_in_use():
    nodes = [
        helper.make_node("Cast", ["x"], ["conv1/x"], to=1),
        helper.make_node("Cast", ["x"], ["conv1/floats"], to=1),
        helper.make_node(
            "QLinearConv", [*quantized_inputs(["x", "w"], "y"), "b"], ["conv1"], "conv1"
        ),
        helper.make_node("DequantizeLinear", ["conv1", "y_scale", "y_zero"], ["a"]),
        helper.make_node("Sum", ["a", "conv1/x", "conv1/floats"], ["y"]),
    ]
    constants = SCALES | {
        "w": np.full((1, 1, 1, 1), 3, np.int8),
        "w_scale": np.float32(0.5),
        "w_zero": np.int8(0),
        "b": np.array([900], np.int32),
    }
    x = {"x": bytes_of(np.uint8, 1, 1, 2, 2)}
    model = make_model(nodes, x, ["y"], constants)
    np.testing.assert_allclose(run_cpu(model, x)[0], run_unoptimized(model, x)[0], rtol=1e-6)
