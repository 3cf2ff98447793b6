"""Pins of whole layers by number: decoders, models with numbered names, and errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hetero
from hetero.affinity.layer_pins import number_ranges
from hetero.affinity.layers import find_layers, numbered_layers
from hetero.devices.errors import AffinityError

DEVICES = "HETERO:CPU.0,CPU.1"
#: Two layers with states, and no node after them.
STATEFUL = """
<ir_version: 8, opset_import: ["" : 17]>
stateful (float[1] x, float[1] p0, float[1] p1) => (float[1] y, float[1] n0, float[1] n1) {
    ["/layers.0/Add"] n0 = Add(x, p0)
    ["/layers.0/Neg"] h = Neg(n0)
    ["/layers.1/Add"] n1 = Add(h, p1)
    ["/layers.1/Sub"] y = Sub(n1, h)
}
"""
#: Three layers between a node before them and one after them, with names as PyTorch exports have.
ENCODER = """
<ir_version: 8, opset_import: ["" : 17]> encoder (float[2] x) => (float[2] y) {
    ["/embed/Mul"] e = Mul(x, x)
    ["/encoder/layer.0/Add"] a0 = Add(e, x)
    ["/encoder/layer.1/Tanh"] a1 = Tanh(a0)
    ["/encoder/layer.2/Neg"] n = Neg(a1)
    ["/encoder/Abs"] b = Abs(a0)
    ["/encoder/layer.2/Add"] a2 = Add(n, b)
    ["/classifier/Exp"] y = Exp(a2)
}
"""


def test_layers_without_head_follow_from_names():
    with hetero.Core("inprocess") as core:
        model = core.read_model(onnx.parser.parse_model(STATEFUL), states={"p*": "n*"})
    layers = [("/layers.0/Add", "/layers.0/Neg"), ("/layers.1/Add", "/layers.1/Sub")]
    assert find_layers(model) == layers  # its last group might be the head
    assert numbered_layers(model) == [*layers, ()]


def test_layers_follow_from_names_without_states():
    model = onnx.parser.parse_model(ENCODER)
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        source = core.read_model(model)
        assert numbered_layers(source) == [
            ("/embed/Mul", "/encoder/layer.0/Add", "/encoder/Abs"),
            ("/encoder/layer.1/Tanh",),
            ("/encoder/layer.2/Neg", "/encoder/layer.2/Add"),
            ("/classifier/Exp",),
        ]
        pins = {"layer:0-1": "CPU.0", "layer:2": "CPU.1", "/classifier/Exp": "CPU.0"}
        support = core.query_model(source, DEVICES, affinity=pins)
        assert support["/classifier/Exp"] == "CPU.0"  # a name takes precedence over a layer
        assert support["/encoder/layer.2/Neg"] == "CPU.1"
        compiled = core.compile_model(source, DEVICES, affinity=pins)
        x = np.array([0.5, -2], np.float32)
        expected = np.exp(-np.tanh(x * x + x) + np.abs(x * x + x))
        np.testing.assert_allclose(compiled({"x": x})["y"], expected, rtol=1e-6)


def test_model_without_layers_is_an_error():
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(AffinityError, match="the model has no layers"),
    ):
        core.compile_model("light:squeezenet", "CPU", affinity={"layer:0": "CPU"})


def test_number_ranges_join_consecutive_numbers():
    assert number_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
