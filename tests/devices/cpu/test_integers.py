"""Quantised products of integers, where numba is installed, give what ONNX Runtime's give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, helper

import hetero
from devices.cpu.fast.quantized import pack, quantized_matmul
from devices.cpu.integers import fast_integers, integers_name
from devices.errors import KernelError
from devices.transforms import quantized_products
from tests.devices.transforms.test_quantized import (
    bytes_of,
    dynamic,
    dynamic_convolution,
    kinds,
    pair,
    plain,
    run_cpu,
)
from tests.support.small_models import compile_cpu, make_model

pytestmark = pytest.mark.skipif(not integers_name(), reason="needs numba and AVX512-VNNI")

RNG = np.random.default_rng(0)


def agree(model: ModelProto, feeds: dict[str, Any]) -> None:
    """Check that bound and unbound runs give what ONNX Runtime gives of the model as written."""
    for ours, theirs in zip(run_cpu(model, feeds), plain(model, feeds), strict=True):
        assert ours.dtype == theirs.dtype
        assert np.array_equal(ours, theirs)


def linear(name: str, kind: type, x: int, w: Any, y: int, **attributes: Any) -> Any:
    """Return a QLinear operator and its parameters, of scales that floats multiply exactly."""
    inputs = ["x", "x_scale", "x_zero", "w", "w_scale", "w_zero", "y_scale", "y_zero"]
    is_signed = kind is np.int8
    constants = {
        "x_scale": np.float32(0.25), "x_zero": kind(x - 128 * is_signed),
        "w_scale": np.float32(0.125), "w_zero": np.zeros((), w.dtype), "w": w,
        "y_scale": np.float32(32), "y_zero": kind(y - 128 * is_signed),
    }  # fmt: skip
    return helper.make_node(name, inputs, ["y"], **attributes), constants


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((5, 3, 3, 3), {"strides": [2, 2]}),
        ((70, 4, 1, 1), {}),
        ((17, 6, 1, 3), {"pads": [0, 1, 0, 1], "dilations": [1, 2]}),
        ((33, 8, 3, 2), {"pads": [1, 1, 0, 2], "dilations": [2, 1], "strides": [1, 2]}),
        ((6, 2, 3, 3), {"group": 3, "pads": [1] * 4}),
        ((84, 1, 3, 3), {"group": 84, "pads": [1] * 4, "strides": [2, 2]}),
        ((16, 1, 2, 2), {"group": 16}),
    ],
)
def test_convolutions(kind: type, shape: tuple[int, ...], attributes: dict[str, Any]) -> None:
    channels = shape[1] * attributes.get("group", 1)
    node, constants = linear("QLinearConv", kind, 90, bytes_of(np.int8, *shape), 60, **attributes)
    constants["b"] = RNG.integers(-900, 900, shape[0], np.int32)
    constants["w_scale"] = (0.25 ** RNG.integers(1, 3, shape[0])).astype(np.float32)
    constants["w_zero"] = np.zeros(shape[0], np.int8)
    node.input.append("b")
    x = bytes_of(kind, 2, channels, 9, 8)
    model = make_model([node], {"x": x}, ["y"], constants)
    assert kinds(model) == ["QuantizedConv"]
    agree(model, {"x": x})


@pytest.mark.parametrize("zero", [0, 100, 255])
@pytest.mark.parametrize("group", [1, 4])
def test_weights_beyond_signed_bytes(zero: int, group: int) -> None:
    w = bytes_of(np.uint8, 4, 4 // group, 3, 3)
    node, constants = linear("QLinearConv", np.uint8, 128, w, 128, group=group)
    constants["w_zero"] = np.uint8(zero)
    x = bytes_of(np.uint8, 1, 4, 6, 6)
    agree(make_model([node], {"x": x}, ["y"], constants), {"x": x})


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize(
    ("rows", "depth", "width"), [((7,), 9, 5), ((2, 55), 64, 130), ((1,), 4, 16)]
)
def test_matrices(kind: type, rows: tuple[int, ...], depth: int, width: int) -> None:
    node, constants = linear("QLinearMatMul", kind, 7, bytes_of(np.int8, depth, width), 130)
    x = bytes_of(kind, *rows, depth)
    model = make_model([node], {"x": x}, ["y"], constants)
    assert kinds(model) == ["QuantizedMatMul"]
    agree(model, {"x": x})


def back(name: str, kind: str) -> NodeProto:
    return helper.make_node(
        "DequantizeLinear", [name, f"{kind}_scale", f"{kind}_zero"], [f"{name}_f"]
    )


def between() -> tuple[list[NodeProto], dict[str, Any]]:
    """Return two convolutions, whose results a pool and a concatenation take, and a third."""
    nodes = [*pair("x", "a"), back("w", "w"), back("v", "w"), back("b", "b"), back("u", "w")]
    nodes += [
        helper.make_node("Conv", ["a", "w_f", "b_f"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        *pair("r", "d", "low"),
        helper.make_node("Conv", ["a", "v_f"], ["e"]),
        helper.make_node("QuantizeLinear", ["e", "wide", "zero"], ["e_q"]),
        helper.make_node("DequantizeLinear", ["e_q", "wide", "zero"], ["g"]),
        helper.make_node("Concat", ["d", "g"], ["h"], axis=1),
        *pair("h", "i", "low"),
        helper.make_node("MaxPool", ["i"], ["j"], kernel_shape=[2, 2], pads=[1, 0, 0, 1]),
        *pair("j", "k", "low"),
        helper.make_node("Conv", ["k", "u_f"], ["y"]),
    ]
    constants = {
        "w": bytes_of(np.int8, 4, 3, 3, 3), "v": bytes_of(np.int8, 6, 3, 1, 1),
        "u": bytes_of(np.int8, 2, 10, 1, 1), "b": RNG.integers(-99, 99, 4, np.int32),
        "w_scale": np.float32(0.125), "w_zero": np.int8(0), "b_scale": np.float32(0.0625),
        "b_zero": np.int32(0), "scale": np.float32(0.5), "zero": np.uint8(128),
        "low": np.uint8(0), "wide": np.float32(2),
    }  # fmt: skip
    return nodes, constants


def test_integers_stay_integers_between_products() -> None:
    nodes, constants = between()
    x = RNG.integers(-90, 90, (1, 3, 7, 8)).astype(np.float32)
    model = make_model(nodes, {"x": x}, ["y"], constants)
    assert kinds(model) == [
        "QuantizeLinear",
        *["QuantizedConv"] * 2,
        "Concat",
        "MaxPool",
        "QuantizedConv",
    ]
    agree(model, {"x": x})


def test_products_without_numba_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, constants = between()
    x = RNG.integers(-90, 90, (1, 3, 7, 8)).astype(np.float32)
    model = make_model(nodes, {"x": x}, ["y"], constants)
    (ours,) = run_cpu(model, {"x": x})
    monkeypatch.setattr(quantized_products, "fast_integers", lambda: None)
    assert "ChannelsLastConv" in kinds(model)
    assert np.array_equal(run_cpu(model, {"x": x})[0], ours)


def test_a_product_whose_integers_others_want_rounds_them_to_floats() -> None:
    nodes = [
        *pair("x", "a"), back("w", "w"),
        helper.make_node("Gemm", ["a", "w_f", "c"], ["p"], transB=1),
        *pair("p", "d"),
        helper.make_node("Neg", ["d"], ["y"]),
    ]  # fmt: skip
    constants = {
        "w": bytes_of(np.int8, 5, 6), "w_scale": np.float32(0.125), "w_zero": np.int8(0),
        "c": np.arange(5, dtype=np.float32), "scale": np.float32(0.5), "zero": np.uint8(100),
    }  # fmt: skip
    x = RNG.standard_normal((3, 6)).astype(np.float32)
    model = make_model(nodes, {"x": x}, ["y"], constants)
    assert kinds(model) == ["QuantizeLinear", "QuantizedMatMul", "Neg"]
    agree(model, {"x": x})


@pytest.mark.parametrize("group", [1, 6])
def test_convolutions_whose_activations_are_quantised_in_the_run(group: int) -> None:
    model, x = dynamic_convolution(group)
    assert kinds(model) == ["DynamicQuantizeLinear", "QuantizedConv"]
    (ours,), (theirs,) = run_cpu(model, {"x": x}), plain(model, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_matrices_whose_left_side_is_quantised_in_the_run(kind: type) -> None:
    constants = {
        "w": bytes_of(kind, 50, 20), "w_zero": kind(3), "b": np.ones(20, np.float32),
        "w_scale": np.linspace(0.01, 0.03, 20, dtype=np.float32),
    }  # fmt: skip
    x = RNG.standard_normal((2, 3, 50)).astype(np.float32)
    model = make_model(dynamic(), {"x": x}, ["y"], constants)
    assert kinds(model) == ["DynamicQuantizeLinear", "QuantizedMatMul"]
    (ours,), (theirs,) = run_cpu(model, {"x": x}), plain(model, {"x": x})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", [[-101.5, 153.5], [0, 0], [3, 4], [-5, -9], [-1e-3, 700]])
def test_floats_are_spread_as_in_the_specification(row: list[float]) -> None:
    x = np.array([row * 20], np.float32)
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])]
    agree(make_model(nodes, {"x": x}, ["y", "s", "z"]), {"x": x})


@pytest.mark.parametrize("size", [1, 16, 35])
def test_rounding_in_one_pass_keeps_what_is_not_a_number(size: int) -> None:
    x = np.resize(np.array([np.nan, 1e9, -1e9, 0.25, 0.75, -np.inf], np.float32), size)
    y, scale = np.empty_like(x), np.full(1, 0.5, np.float32)
    fast_integers().quantise(y, x, scale, np.array([-128, 127, 0], np.float32))
    assert np.array_equal(y, np.clip(np.rint(x / 0.5), -128, 127) * np.float32(0.5), equal_nan=True)


def test_weights_are_padded_to_whole_vectors() -> None:
    packed = pack(np.arange(-40, 40).reshape(1, 2, 5, 8))
    assert packed.shape == (1, 1, 2, 2, 64)
    assert packed[0, 0, 1, 1, :4].tolist() == [32, 0, 0, 0]  # row 4 of the second run, column 0


def test_too_few_channels_are_an_error() -> None:
    node, constants = linear("QLinearConv", np.uint8, 0, bytes_of(np.int8, 4, 3, 1, 1), 0)
    x = bytes_of(np.uint8, 1, 2, 3, 3)
    model = make_model([node], {"x": np.zeros((1, 3, 3, 3), np.uint8)}, ["y"], constants)
    model.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value")
    with pytest.raises(KernelError, match="3 channels wanted"):
        compile_cpu(model).run([x])


def test_quantised_models_are_cut_exported_and_imported() -> None:
    nodes, constants = between()
    for i, node in enumerate(nodes):
        node.name = f"n{i}"
    x = RNG.integers(-90, 90, (1, 3, 7, 8)).astype(np.float32)
    proto = make_model(nodes, {"x": x}, ["y"], constants)
    with hetero.Core(executor="inprocess") as core:
        model = core.read_model(proto)
        there = dict.fromkeys((), "NULL") | {"n15": "ORT", "n16": "ORT"}
        compiled = core.compile_model(model, "HETERO:CPU,ORT", affinity=there)
        assert len(compiled.subgraphs) == 3
        (want,) = plain(proto, {"x": x})
        assert np.array_equal(compiled({"x": x})[0], want)
        again = core.import_model(compiled.export_model())
        assert np.array_equal(again({"x": x})[0], want)


@pytest.mark.parametrize("changed", ["weights", "start"])
def test_arrays_of_other_sizes_are_an_error(changed: str) -> None:
    given = {
        "x": bytes_of(np.uint8, 3, 8), "unit": np.float32(1), "zero": np.uint8(0),
        "weights": pack(bytes_of(np.int8, 1, 1, 8, 5)), "start": np.zeros((1, 16), np.int32),
        "scale": np.ones((1, 16), np.float32), "bias": np.zeros((1, 16), np.float32),
    }  # fmt: skip
    given[changed] = given[changed][:, :0]
    with pytest.raises(ValueError, match="weights, start, scale, bias"):
        quantized_matmul(np, *given.values(), shape=(8, 5), rounding=(0.0,) * 6, to=1)
