"""Real networks and exports, cut at random over three vendors' runtimes, on Ray."""

from __future__ import annotations

from collections.abc import Iterator
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
from tests.support.random_affinity import random_affinity
from tests.support.small_models import flattening

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = [pytest.mark.ray, pytest.mark.slow]
DEVICES = ["OV", "ORT", "CPU"]


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core() as core:
        yield core


def check(core: hetero.Core, model: Model, given: Any, wanted: Any, tolerance: Any) -> None:
    pins = random_affinity(core, model, DEVICES, crc32(model.name.encode()))
    with core.compile_model(model, "HETERO:OV,ORT,CPU", affinity=pins) as compiled:
        assert {s.device.partition(".")[0] for s in compiled.subgraphs} == set(DEVICES)
        results = compiled(given).to_tuple()
    for got, want in zip(results, wanted, strict=True):
        np.testing.assert_allclose(got, want, **tolerance, strict=True)


@pytest.mark.parametrize("name", light_model_names())
def test_a_random_cut_gives_the_shipped_output(core: hetero.Core, name: str) -> None:
    if f"real/test_{name}" in EXPECTED_FAILURES_OF_THREE_VENDORS:
        pytest.skip("what a Softmax of sums near 1e10 gives is all rounding")
    model = core.read_model(f"light:{name}")
    wanted = light_model_outputs(name)
    check(core, model, light_model_inputs(model), wanted, {"rtol": 1e-3, "atol": 1e-5})


@pytest.mark.parametrize("name", ["bert", "gpt", "vit", "mobilenet", "unet", "lstm"])
def test_a_random_cut_of_an_export_gives_what_onnx_runtime_gives(
    core: hetero.Core, name: str
) -> None:
    proto = SMALL_NETWORKS[f"small-{name}"]()
    model = core.read_model(proto)
    given = sample_inputs(model)
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    wanted = session.run(None, {port.name: given[port.name] for port in model.inputs})
    check(core, model, given, wanted, {"rtol": 1e-3, "atol": 1e-4})


def test_what_follows_computed_sizes_is_cut_over_vendors(core: hetero.Core) -> None:
    x = np.arange(-12, 12, dtype=np.float32).reshape(4, 2, 3)
    pins = {"op:Reshape": "CPU", "op:Neg": "OV", "op:Relu": "ORT"}
    with core.compile_model(flattening(), "HETERO:OV,ORT,CPU", affinity=pins) as compiled:
        assert [s.device for s in compiled.subgraphs][-2:] == ["OV.CPU", "ORT"]
        np.testing.assert_array_equal(compiled(x)["y"], np.maximum(-x.reshape(4, 6), 0))
