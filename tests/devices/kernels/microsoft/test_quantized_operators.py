"""Quantised operators of com.microsoft in models, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

import hetero
from tests.support.comparison import assert_close
from tests.support.quantized import bytes_of, run_cpu, run_unoptimized, weights_of
from tests.support.rows import for_each_row
from tests.support.small_models import make_model

RNG = np.random.default_rng(0)
DOMAINS = {"com.microsoft": 1}


def model_of(
    name: str, inputs: list[str], x: dict[str, Any], version: int = 17, **attributes: Any
) -> Any:
    """Return a model of one operator; constants have scales and zero points for all."""
    domain = "" if name == "QLinearMatMul" else "com.microsoft"
    constants = {
        "s": np.float32(0.21),
        "z": np.uint8(100),
        "t": np.float32(0.53),
        "u": np.uint8(7),
        "small": np.float32(1 / 256),
        "low": np.uint8(0),
        "columns": np.float32([0.25, 0.5, 1]),
        "zeros": np.zeros(3, np.int8),
        "w": weights_of(np.int8, 8, 3),
        "v": weights_of(np.int8, 3, 8),
        "b": RNG.integers(-900, 900, 3, np.int32),
    }
    node = helper.make_node(name, inputs, ["y"], name="node", domain=domain, **attributes)
    constants = {key: value for key, value in constants.items() if key in inputs}
    return make_model([node], x, ["y"], constants, opset=version, domains=DOMAINS)


X = ["x", "s", "z"]
TO = ["t", "u"]


@for_each_row(
    "name, inputs, attributes",
    [
        ("QLinearAdd", [*X, "r", "t", "u", *TO], {}),
        ("QLinearMul", [*X, "r", "t", "u", *TO], {}),
        ("QLinearConcat", [*TO, *X, "r", "t", "u", *X], {"axis": 1}),
        ("QLinearLeakyRelu", [*X, *TO], {"alpha": 0.5}),
        ("QLinearGlobalAveragePool", [*X, *TO], {}),
        ("QLinearAveragePool", [*X, *TO], {"kernel_shape": [2, 2], "pads": [1, 0, 0, 1]}),
        ("QLinearSigmoid", [*X, "small", "low"], {}),
        ("QLinearSoftmax", [*X, "small", "low"], {"axis": -1, "opset": 17}),
        ("QLinearMatMul", [*X, "r", "t", "u", *TO], {}),
        ("QGemm", ["m", "s", "z", "w", "columns", "zeros", "b", *TO], {}),
        ("QGemm", ["m", "s", "z", "v", "columns", "zeros", "b"], {"transB": 1}),
        ("QGemm", ["m", "s", "z", "w", "columns", "zeros", "b"], {"alpha": 0.5}),
        ("QGemm", ["m", "s", "z", "w", "columns", "zeros", "", *TO], {}),
    ],
)
def test_a_quantised_operator(name, inputs, attributes):
    x = {"x": bytes_of(np.uint8, 2, 3, 4, 4), "r": bytes_of(np.uint8, 2, 3, 4, 4)}
    x = {"m": bytes_of(np.uint8, 5, 8)} if name == "QGemm" else x
    x = {key: value for key, value in x.items() if key in inputs}
    model = model_of(name, inputs, x, **attributes)
    (ours,), (theirs,) = run_cpu(model, x), run_unoptimized(model, x)
    assert_close(ours, theirs, rtol=1e-5, atol=0)


def test_qlinear_softmax_of_each_opset():
    x = {"x": bytes_of(np.uint8, 2, 3, 4, 4)}
    for opset in (11, 13):
        inputs = [*X, "small", "low"]
        model = model_of("QLinearSoftmax", inputs, x, version=12, axis=1, opset=opset)
        (ours,), (theirs,) = run_cpu(model, x), run_unoptimized(model, x)
        assert_close(ours, theirs, rtol=0, atol=0)


@hetero.custom_operator("com.microsoft::QLinearSigmoid", infer=lambda x, *_: x)
def own_sigmoid(x: Any, *_: Any) -> Any:
    return 255 - x


def test_extension_of_the_same_name_comes_first():
    x = {"x": bytes_of(np.uint8, 2, 3, 4, 4)}
    with hetero.Core(executor="inprocess") as core:
        core.add_extension(own_sigmoid)
        model = core.read_model(model_of("QLinearSigmoid", [*X, *TO], x))
        assert np.array_equal(core.compile_model(model, "CPU")(x)[0], 255 - x["x"])
