"""Pins of whole layers by number: decoders, models with numbered names, and errors."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import hetero
from hetero.affinity.layer_pins import number_ranges
from hetero.affinity.layers import find_layers, numbered_layers
from hetero.devices.errors import AffinityError
from tests.support.command_line import Shell
from tests.support.decoders import decoder, greedy

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


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        (
            {"layer:0-1": "CPU.0", "layer:2-3": "CPU.1"},
            ["CPU.0", "CPU.0", "CPU.1", "CPU.1", "CPU.1"],
        ),
        (
            {"layer:0": "CPU.1", "layer:1-3": "CPU.0", "layer:head": "CPU.1"},
            ["CPU.1", "CPU.0", "CPU.0", "CPU.0", "CPU.1"],
        ),
    ],
)
def test_layers_of_a_decoder_run_on_their_devices(
    pins: dict[str, str], expected: list[str]
) -> None:
    model = hetero.read_decoder(decoder(4))
    layers = numbered_layers(model)
    with (
        hetero.Core("inprocess", devices={"CPU": 2}) as core,
        core.compile_model(model, DEVICES, affinity=pins) as compiled,
    ):
        places = {name: s.device for s in compiled.subgraphs for name in s.node_names}
        for names, device in zip(layers, expected, strict=True):
            assert {places[name] for name in names if name in places} == {device}
    model = hetero.read_decoder(decoder())
    pins = {"layer:0": "CPU.0", "layer:1": "CPU.1"}
    with (
        hetero.Core("inprocess", devices={"CPU": 2}) as core,
        core.compile_model(model, DEVICES, affinity=pins) as compiled,
    ):
        assert [s.device for s in compiled.subgraphs] == ["CPU.0", "CPU.1"]
        assert list(compiled.generate([3, 14], 5)) == greedy([3, 14], 5)


def test_layers_without_head_follow_from_names() -> None:
    with hetero.Core("inprocess") as core:
        model = core.read_model(onnx.parser.parse_model(STATEFUL), states={"p*": "n*"})
    layers = [("/layers.0/Add", "/layers.0/Neg"), ("/layers.1/Add", "/layers.1/Sub")]
    assert find_layers(model) == layers  # its last group might be the head
    assert numbered_layers(model) == [*layers, ()]


def test_layers_follow_from_names_without_states() -> None:
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


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        (["0-1"], "no device for layer 2-3; add one, such as 2-3=DEVICE"),
        (["0", "2-3"], "no device for layer 1; add one, such as 1=DEVICE"),
        (["0-2", "2-3"], "'2-3': 2 has a device already; keep one"),
        (["0-4"], "'0-4': the model has layers 0-3 only"),
        (["0-3", "7"], "'7': the model has layers 0-3 only"),
        (["3-0"], "'3-0': expected a number, a range such as 0-15, or head"),
        (["all"], "'all': expected a number, a range such as 0-15, or head"),
    ],
)
def test_gaps_overlaps_and_unknown_layers_are_errors(numbers: list[str], problem: str) -> None:
    model = hetero.read_decoder(decoder(4))
    pins = {f"layer:{text}": "CPU" for text in numbers}
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(AffinityError) as caught,
    ):
        core.compile_model(model, "CPU", affinity=pins)
    assert f"pins of layers: {problem}" in caught.value.data["problems"]


def test_model_without_layers_is_an_error() -> None:
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(AffinityError, match="the model has no layers"),
    ):
        core.compile_model("light:squeezenet", "CPU", affinity={"layer:0": "CPU"})


def test_layers_option_splits_a_decoder(shell: Shell, tmp_path: object) -> None:
    path = f"{tmp_path}/model.onnx"
    onnx.save(decoder(), path)
    line = f"generate {path} -d {DEVICES} --devices CPU=2 --ids 3,14 -n 3 --json"
    document = shell(f"{line} --layers 0=CPU.0,1=CPU.1,head=CPU.0").document
    assert document["tokens"] == greedy([3, 14], 3)
    rows = [(row["device"], row["layers"]) for row in document["layers"]]
    assert rows == [("CPU.0", "0"), ("CPU.1", "1"), ("CPU.0", "head")]
    result = shell(f"{line} --layers 0=CPU.0")
    assert result.code == 1
    assert "no device for layer 1" in result.out
    assert "--layers" in shell(f"{line} --layers 0").out


def test_number_ranges_join_consecutive_numbers() -> None:
    assert number_ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
