"""Layers: where decoders are cut when costs and memory decide."""

from __future__ import annotations

import pytest

import hetero
from hetero.errors import PlanError
from hetero.planning.layers import find_layers
from tests.support.decoders import CONTEXT, decoder, greedy
from tests.support.stateful_models import running_sum


def test_layers_are_found_and_one_value_crosses_between_them() -> None:
    model = hetero.read_decoder(decoder(4))
    layers = find_layers(model)
    assert [names[-1] for names in layers] == ["end_0", "end_1", "end_2", "end_3", "sample"]
    assert sorted(name for names in layers for name in names) == sorted(model.node_names)
    for i, names in enumerate(layers[1:4], start=1):
        assert all(name.endswith(f"_{i}") for name in names), names


def test_what_has_no_layers_has_none() -> None:
    core = hetero.Core("inprocess")
    assert find_layers(core.read_model(running_sum())) == []
    whole = core.read_model(running_sum(), states={"before": "after"})
    assert [len(names) for names in find_layers(whole)] == [2]


def test_a_decoder_is_measured_as_it_takes_the_best_token(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What was made up for the node that chooses was none, so that it could be only estimated."""
    with hetero.Core("inprocess") as core:
        core.profile_model(hetero.read_decoder(decoder()), "CPU", seconds=0.5)
    assert [r for r in caplog.records if "estimated" in r.getMessage()] == []


def test_memory_cuts_between_layers_and_counts_weights_and_caches() -> None:
    model = hetero.read_decoder(decoder())
    layers = find_layers(model)
    # A layer's caches: keys and values of all tokens but the last, 16 numbers of 4 bytes.
    each = 2 * (CONTEXT - 1) * 16 * 4
    options = {"PERFORMANCE_HINT": "LATENCY", "PROFILE_SECONDS": 0.5, "PLAN_SECONDS": 0.5}

    def placed(nbytes: int, sessions: int) -> list[str]:
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
        # One layer and all weights go on a device; two layers, or one of two texts, do not.
        room = each + model.weight_nbytes
        assert placed(room, 1) == ["CPU.0", "CPU.1"] or placed(room, 1) == ["CPU.1", "CPU.0"]
        with pytest.raises(PlanError, match="memory"):
            placed(room, 2)
