"""Layers of decoders, and partitions between layers because of cost and memory."""

from __future__ import annotations

import pytest

import hetero
from hetero.affinity.layers import find_layers
from hetero.errors import PlanError
from tests.support.decoders import CONTEXT, decoder, greedy
from tests.support.stateful_models import running_sum


def test_find_layers_of_decoder() -> None:
    model = hetero.read_decoder(decoder(4))
    layers = find_layers(model)
    assert [names[-1] for names in layers] == ["end_0", "end_1", "end_2", "end_3", "sample"]
    assert sorted(name for names in layers for name in names) == sorted(model.node_names)
    for i, names in enumerate(layers[1:4], start=1):
        assert all(name.endswith(f"_{i}") for name in names), names


def test_find_layers_of_models_without_layers() -> None:
    core = hetero.Core("inprocess")
    assert find_layers(core.read_model(running_sum())) == []
    stateful = core.read_model(running_sum(), states={"before": "after"})
    assert [len(names) for names in find_layers(stateful)] == [2]


def test_profile_decoder_estimates_no_part(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sampling node needs valid generated inputs; otherwise its cost is only estimated."""
    with hetero.Core("inprocess") as core:
        core.profile_model(hetero.read_decoder(decoder()), "CPU", seconds=0.5)
    assert [r for r in caplog.records if "estimated" in r.getMessage()] == []


@pytest.mark.slow
def test_memory_limit_splits_between_layers() -> None:
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
