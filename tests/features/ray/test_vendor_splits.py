"""Networks and exports on Ray, split at random over the runtimes of three vendors."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import pytest

import hetero
from benchmarks.small_networks import SMALL_NETWORKS
from hetero.devices.model.light_models import (
    light_model_inputs,
    light_model_names,
    light_model_outputs,
)
from hetero.devices.model.model import Model
from hetero.measure.sample_inputs import sample_inputs
from tests.backend_suite.expected_failures import EXPECTED_FAILURES_OF_THREE_VENDORS
from tests.support.core_fixtures import core_fixture
from tests.support.random_affinity import random_affinity
from tests.support.small_models import flattening

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.ray, pytest.mark.slow]
DEVICES = ["OV", "ORT", "CPU"]


core = core_fixture("module", executor="ray")


def check(core: hetero.Core, model: Model, inputs: Any, expected: Any, tolerance: Any) -> None:
    pins = random_affinity(core, model, DEVICES, crc32(model.name.encode()))
    with core.compile_model(model, "HETERO:OV,ORT,CPU", affinity=pins) as compiled:
        assert {s.device.partition(".")[0] for s in compiled.subgraphs} == set(DEVICES)
        results = compiled(inputs).to_tuple()
    for output, expected_output in zip(results, expected, strict=True):
        np.testing.assert_allclose(output, expected_output, **tolerance, strict=True)


@pytest.mark.parametrize("name", light_model_names())
def test_random_split_over_vendors_matches_reference(core, name):
    if f"real/test_{name}" in EXPECTED_FAILURES_OF_THREE_VENDORS:
        pytest.skip("a Softmax of sums near 1e10 is dominated by rounding errors")
    model = core.read_model(f"light:{name}")
    expected = light_model_outputs(name)
    check(core, model, light_model_inputs(model), expected, {"rtol": 1e-3, "atol": 1e-5})


@pytest.mark.parametrize("name", ["bert", "gpt", "vit", "mobilenet", "unet", "lstm"])
def test_random_split_of_export_matches_onnxruntime(core, name):
    proto = SMALL_NETWORKS[f"small-{name}"]()
    model = core.read_model(proto)
    inputs = sample_inputs(model)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {port.name: inputs[port.name] for port in model.inputs})
    check(core, model, inputs, expected, {"rtol": 1e-3, "atol": 1e-4})


def test_computed_sizes_are_split_over_vendors(core):
    x = np.arange(-12, 12, dtype=np.float32).reshape(4, 2, 3)
    pins = {"op:Reshape": "CPU", "op:Neg": "OV", "op:Relu": "ORT"}
    with core.compile_model(flattening(), "HETERO:OV,ORT,CPU", affinity=pins) as compiled:
        assert [s.device for s in compiled.subgraphs][-2:] == ["OV.CPU", "ORT"]
        np.testing.assert_array_equal(compiled(x)["y"], np.maximum(-x.reshape(4, 6), 0))
