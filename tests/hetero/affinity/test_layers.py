"""Layers of decoders, and partitions between layers because of cost and memory."""

from __future__ import annotations

import hetero
from hetero.affinity.layers import find_layers
from tests.support.stateful_models import running_sum


def test_find_layers_of_models_without_layers():
    core = hetero.Core("inprocess")
    assert find_layers(core.read_model(running_sum())) == []
    stateful = core.read_model(running_sum(), states={"before": "after"})
    assert [len(names) for names in find_layers(stateful)] == [2]
