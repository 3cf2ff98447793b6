"""Quantised operators of com.microsoft in models: opsets of QLinearSoftmax, and extensions."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

import hetero
from tests.support.comparison import assert_close
from tests.support.quantized import bytes_of, run_cpu, run_unoptimized
from tests.support.small_models import make_model

DOMAINS = {"com.microsoft": 1}


def model_of(
    name: str, inputs: list[str], x: dict[str, Any], version: int = 17, **attributes: Any
) -> Any:
    """Return a model of one operator; scales and zero points are constants."""
    constants = {
        "s": np.float32(0.21),
        "z": np.uint8(100),
        "t": np.float32(0.53),
        "u": np.uint8(7),
        "small": np.float32(1 / 256),
        "low": np.uint8(0),
    }
    node = helper.make_node(name, inputs, ["y"], name="node", domain="com.microsoft", **attributes)
    constants = {key: value for key, value in constants.items() if key in inputs}
    return make_model([node], x, ["y"], constants, opset=version, domains=DOMAINS)


X = ["x", "s", "z"]
TO = ["t", "u"]


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
