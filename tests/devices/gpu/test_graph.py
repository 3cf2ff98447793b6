"""CUDA graphs of device GPU on emulated arrays: when runs are recorded, and what they return."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import hetero
from hetero.devices.gpu.graph import GraphCache, signature
from hetero.devices.model.reader import read_model
from hetero.devices.request.device_model import DeviceModel
from tests.emulated_gpu.backend import BACKEND, COPIES
from tests.emulated_gpu.plugin import EmulatedGPUPlugin
from tests.support.small_models import run_onnxruntime

RANDOM = np.random.default_rng(0)


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')


LAYER = parsed("""
    layer (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)
    <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
    {
        product = MatMul (x, w)
        y = Relu (product)
        z = Sub (y, x)
    }
""")


@pytest.fixture
def plugin():
    COPIES.clear()
    return EmulatedGPUPlugin()


def drawn(rows: int = 3) -> np.ndarray:
    return RANDOM.normal(size=(rows, 4)).astype(np.float32)


def check_layer(compiled: DeviceModel, x: np.ndarray) -> None:
    results = compiled({"x": x}).to_tuple()
    for result, expected in zip(results, run_onnxruntime(LAYER, {"x": x}), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_third_run_of_a_shape_launches_a_graph(plugin):
    compiled = plugin.compile_model(read_model(LAYER))
    for rows in (3, 5):
        for run in range(5):
            COPIES.clear()
            check_layer(compiled, drawn(rows))
            if run >= 2:
                assert dict(COPIES) == {"graph launch": 1, "upload": 1, "download": 2}
            if run == 0:
                assert dict(COPIES) == {"upload": 1, "download": 2}


def test_model_without_graphs_launches_none(plugin):
    compiled = plugin.compile_model(read_model(LAYER), {"CUDA_GRAPHS": False})
    for _ in range(4):
        check_layer(compiled, drawn())
    assert not COPIES["graph launch"]


def test_run_while_another_uses_the_graph_is_right(plugin):
    compiled = plugin.compile_model(read_model(LAYER))
    for _ in range(3):
        check_layer(compiled, drawn())
    program: Any = compiled._program
    (graph,) = program._graphs._graphs.values()
    launches = COPIES["graph launch"]
    with graph.lock:
        check_layer(compiled, drawn())
    assert COPIES["graph launch"] == launches


@pytest.mark.parametrize(
    ("text", "inputs"),
    [
        ("agraph (float[N] x) => (int64[1, M] y) { y = NonZero (x) }", [[0, 1, 1], [1, 0, 0]]),
        (
            """agraph (float[N] x) => (float[N] y) {
                zero = Constant <value = float {0}> ()
                sum = ReduceSum <keepdims = 0> (x)
                is_positive = Greater (sum, zero)
                y = If (is_positive) <
                    then_branch = then () => (float[N] t) { t = Exp (x) },
                    else_branch = otherwise () => (float[N] e) { e = Neg (x) }
                >
            }""",
            [[0, 1, 1], [-1, 0, 0]],
        ),
    ],
)
def test_run_that_waits_has_no_graph(plugin, text, inputs):
    model = parsed(text)
    compiled = plugin.compile_model(read_model(model))
    for _ in range(3):
        for values in inputs:
            x = {"x": np.array(values, np.float32)}
            np.testing.assert_allclose(compiled(x)["y"], *run_onnxruntime(model, x))
    assert not COPIES["graph launch"]


def test_run_that_draws_numbers_draws_others_each_time(plugin):
    model = parsed("agraph (float[9] x) => (float[9] y) { y = RandomNormalLike (x) }")
    compiled = plugin.compile_model(read_model(model))
    x = np.zeros(9, np.float32)
    assert len({compiled({"x": x})["y"].tobytes() for _ in range(4)}) == 4


def test_host_input_is_read_in_each_run(plugin):
    model = parsed("agraph (float[N] x, int64[k] axes) => (float[M] y) { y = Unsqueeze (x, axes) }")
    compiled = plugin.compile_model(read_model(model))
    x = np.arange(3, dtype=np.float32)
    for _ in range(3):
        for axis, shape in ((0, (1, 3)), (1, (3, 1))):
            assert compiled({"x": x, "axes": np.array([axis])})["y"].shape == shape


def test_resident_output_outlives_the_next_launch():
    """A stage's output stays on the device while the stage runs for another request."""
    with hetero.Core(
        executor="inprocess", plugins=["tests.emulated_gpu.plugin:EmulatedGPUPlugin"]
    ) as core:
        pins = {"product": "EGPU.0", "y": "CPU", "z": "EGPU.0"}
        with core.compile_model(LAYER, "HETERO:EGPU,CPU", affinity=pins) as compiled:
            for _ in range(4):
                x = drawn()
                for result, expected in zip(
                    compiled(x).to_tuple(), run_onnxruntime(LAYER, {"x": x}), strict=True
                ):
                    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


@pytest.fixture
def device():
    with BACKEND.activate("0"):
        yield


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("offset", "is_kept"), [(0, True), (1, False)])
def test_graph_that_gives_other_results_is_dropped(offset, is_kept):
    x = BACKEND.to_device(drawn())
    key = signature([x])
    assert key is not None
    cache = GraphCache(BACKEND)
    assert not cache.is_due(key)
    assert cache.is_due(key)
    cache.record(key, [x], [x * 2], lambda copies: [copies[0] * 2 + offset])
    assert (cache.find(key) is not None) == is_kept
    assert not cache.is_due(key)
