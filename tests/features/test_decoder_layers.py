"""Layers of decoders: pins of layers, and partitions between layers because of cost and memory."""

from __future__ import annotations

import onnx
import pytest

import hetero
from hetero.affinity.layers import find_layers, numbered_layers
from hetero.errors import AffinityError, PlanError
from tests.support.decoders import CONTEXT, decoder, greedy

DEVICES = "HETERO:CPU.0,CPU.1"


def test_find_layers_of_decoder():
    model = hetero.read_decoder(decoder(4))
    layers = find_layers(model)
    assert [names[-1] for names in layers] == ["end_0", "end_1", "end_2", "end_3", "sample"]
    assert sorted(name for names in layers for name in names) == sorted(model.node_names)
    for i, names in enumerate(layers[1:4], start=1):
        assert all(name.endswith(f"_{i}") for name in names), names


def test_profile_decoder_estimates_no_part(
    caplog,
):
    """The sampling node needs valid generated inputs; otherwise its cost is only estimated."""
    with hetero.Core("inprocess") as core:
        core.profile_model(hetero.read_decoder(decoder()), "CPU", seconds=0.5)
    assert [r for r in caplog.records if "estimated" in r.getMessage()] == []


@pytest.mark.slow
def test_memory_limit_splits_between_layers():
    model = hetero.read_decoder(decoder())
    layers = find_layers(model)
    # The KV cache of a layer: keys and values of all tokens except the last, 16 floats each.
    cache_nbytes = 2 * (CONTEXT - 1) * 16 * 4
    options = {"PERFORMANCE_HINT": "LATENCY", "PROFILE_SECONDS": 0.5, "PLAN_SECONDS": 0.5}

    def compile_devices(nbytes: int, sessions: int) -> list[str]:
        config = {
            **options,
            "PERFORMANCE_HINT_NUM_REQUESTS": sessions,
            "DEVICE_MEMORY_NBYTES": {"CPU.0": nbytes, "CPU.1": nbytes},
        }
        with core.compile_model(model, "HETERO:CPU.0,CPU.1", config) as compiled:
            assert list(compiled.generate([3, 1], 5)) == greedy([3, 1], 5)
            for subgraph in compiled.subgraphs:
                names = set(subgraph.node_names)
                assert all(names.issuperset(n) or names.isdisjoint(n) for n in layers)
            return [s.device for s in compiled.subgraphs]

    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        # One layer and all weights fit a device; two layers, or one layer of two sequences, do not.
        room = cache_nbytes + model.weight_nbytes
        assert compile_devices(room, 1) == ["CPU.0", "CPU.1"] or compile_devices(room, 1) == [
            "CPU.1",
            "CPU.0",
        ]
        with pytest.raises(PlanError, match="memory"):
            compile_devices(room, 2)


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
def test_layers_of_a_decoder_run_on_their_devices(pins, expected):
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
def test_gaps_overlaps_and_unknown_layers_are_errors(numbers, problem):
    model = hetero.read_decoder(decoder(4))
    pins = {f"layer:{text}": "CPU" for text in numbers}
    with (
        hetero.Core("inprocess") as core,
        pytest.raises(AffinityError) as caught,
    ):
        core.compile_model(model, "CPU", affinity=pins)
    assert f"pins of layers: {problem}" in caught.value.data["problems"]


def test_layers_option_splits_a_decoder(shell, tmp_path):
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
