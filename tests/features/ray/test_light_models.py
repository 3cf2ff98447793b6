"""The nine networks that onnx ships, on Ray, split at random over ONNX Runtime and CPU."""

from __future__ import annotations

import numpy as np
import pytest

from hetero.devices.model.light_models import (
    light_model_inputs,
    light_model_names,
    light_model_outputs,
)
from tests.support.core_fixtures import core_fixture
from tests.support.random_affinity import random_affinity

pytestmark = [pytest.mark.ray, pytest.mark.slow]


core = core_fixture("module", executor="ray")


@pytest.mark.parametrize("name", light_model_names())
def test_random_split_matches_the_reference_output(core, name):
    model = core.read_model(f"light:{name}")
    pins = random_affinity(core, model, ["ORT", "CPU"], seed=0)
    with core.compile_model(model, "HETERO:ORT,CPU", affinity=pins) as compiled:
        assert set(pins.values()) == {"ORT", "CPU"}
        assert len(compiled.subgraphs) > 1
        results = compiled(light_model_inputs(model))
    for output, expected in zip(results.to_tuple(), light_model_outputs(name), strict=True):
        assert output.shape == expected.shape
        np.testing.assert_allclose(output, expected, rtol=1e-3, atol=1e-5)
