"""Device GPU on a GPU, if this machine has one: conformance, ONNX's suite, products and graphs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.parser import parse_model

from hetero.devices.conformance.onnx_suite import AnyCompiledModel, Case, backend_cases, outcome
from hetero.devices.errors import DeviceMemoryError, PluginLoadError
from hetero.devices.gpu.plugin import GPUPlugin
from hetero.devices.model.reader import read_model
from hetero.devices.testing import device_checks
from tests.backend_suite.expected_failures import may_pass, read_expected_failures
from tests.support.small_models import make_model, run_onnxruntime

CPU_FAILURES = Path(__file__).parents[2] / "backend_suite" / "expected_failures_cpu.txt"
GPU_FAILURES = Path(__file__).with_name("expected_failures.txt")
#: Kernels compile at their first use, so cases run on several threads.
THREADS = 8


@pytest.fixture(scope="module")
def plugin():
    try:
        return GPUPlugin()
    except PluginLoadError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("check", device_checks(), ids=lambda check: check.__name__)
def test_device_on_gpu_conforms(plugin, check):
    check(plugin)


@dataclass(frozen=True, eq=False)
class RepeatedCase(Case):
    """A case that runs three times: the second run records a CUDA graph, the third launches it."""

    def check(self, proto: Any, model: Any, compiled: AnyCompiledModel) -> None:
        for _ in range(3):
            super().check(proto, model, compiled)


@pytest.mark.slow
def test_onnx_backend_suite_passes_on_gpu(plugin):
    expected = read_expected_failures(CPU_FAILURES) | read_expected_failures(GPU_FAILURES)
    cases = [RepeatedCase(case.name, case.kind, case.case) for case in backend_cases()]
    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = dict(
            zip(
                [case.name for case in cases],
                pool.map(lambda case: outcome(plugin, case, {}), cases),
                strict=True,
            )
        )
    errors = {n: result for n, result in outcomes.items() if result not in ("refused", "passed")}
    assert {n: error for n, error in errors.items() if n not in expected} == {}
    assert not {
        n for n, reason in expected.items() if outcomes.get(n) == "passed" and not may_pass(reason)
    }


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_product_of_any_layout_equals_numpy(plugin, dtype):
    random = np.random.default_rng(0)
    xp = plugin.backend.xp
    layouts = {
        "rows": lambda x: x,
        "columns": lambda x: xp.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2),
        "part": lambda x: xp.pad(x, [(0, 0)] * (x.ndim - 1) + [(1, 2)])[..., 1:-2],
    }
    shapes: Sequence[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((5, 7), (7, 3)),
        ((1, 1), (1, 1)),
        ((4, 5, 7), (4, 7, 3)),
        ((4, 5, 7), (7, 3)),
        ((2, 1, 5, 7), (4, 7, 3)),
        ((1, 7), (2, 3, 7, 1)),
    ]
    tolerance = {np.float16: 2e-3, np.float32: 1e-5, np.float64: 1e-13}[dtype]
    with plugin.backend.activate("0"):
        for (shape_a, shape_b), left, right in itertools.product(shapes, layouts, layouts):
            a, b = (random.normal(size=shape).astype(dtype) for shape in (shape_a, shape_b))
            operands = layouts[left](xp.asarray(a)), layouts[right](xp.asarray(b))
            result = plugin.backend.download(xp.matmul(*operands))
            expected = a.astype(np.float64) @ b.astype(np.float64)
            np.testing.assert_allclose(result, expected, tolerance, 4 * tolerance)
            assert result.dtype == dtype


def test_concurrent_runs_of_a_graph_are_right(plugin):
    random = np.random.default_rng(0)
    weights = random.normal(size=(64, 64)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    inputs = random.normal(size=(200, 8, 64)).astype(np.float32)
    model = make_model(nodes, {"x": inputs[0]}, ["y"], {"w": weights})
    compiled = plugin.compile_model(read_model(model))
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda x: compiled({"x": x})["y"], inputs))
    np.testing.assert_allclose(np.stack(results), np.maximum(inputs @ weights, 0), 1e-4, 1e-4)


def test_memory_limit_holds_on_gpu(plugin):
    """Runs within the limit work after one that exceeds it, also as a graph."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["" : 18]>
        wide (float[N, 1] x, int64[1] size) => (float[N, M] z) {
            w = ConstantOfShape <value = float[1] {1}> (size)
            y = Mul (x, w)
            z = Abs (y)
        }
    """)
    value = numpy_helper.from_array(np.array([1 << 16]), "size")
    model.graph.initializer.append(value)
    del model.graph.input[1:]
    compiled = plugin.compile_model(read_model(model), {"GPU_MEMORY_LIMIT": 8 << 20})
    used_nbytes = plugin.get_property("GPU_MEMORY_USED")
    assert used_nbytes >= 1 << 18
    for rows in (1, 1000, 1, 1, 1, 1000, 1):
        x = np.full((rows, 1), -1, np.float32)
        if rows == 1:
            assert compiled({"x": x})["z"].sum() == 1 << 16
        else:
            with pytest.raises(DeviceMemoryError):
                compiled({"x": x})
    compiled.close()
    assert plugin.get_property("GPU_MEMORY_USED") < used_nbytes


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 6, 9, 8), (6, 1, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((1, 4, 9, 7), (8, 1, 2, 3), {"dilations": [2, 1]}),
        ((3, 5, 6, 6), (5, 1, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    ],
)
def test_depthwise_convolution_equals_onnxruntime(
    plugin,
    dtype,
    shape,
    weights,
    attributes,
):
    random = np.random.default_rng(0)
    x, w, b = (random.normal(size=size) for size in (shape, weights, weights[0]))
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=shape[1], **attributes)

    def build(dtype: type) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        inputs, values = {"x": x.astype(dtype)}, {"w": w.astype(dtype), "b": b.astype(dtype)}
        return make_model([node], inputs, ["y"], values), inputs

    model, inputs = build(dtype)
    (y,) = plugin.compile_model(read_model(model))(inputs).values()
    # ONNX Runtime has no convolution of doubles.
    (expected,) = run_onnxruntime(*build(np.float32 if dtype is np.float64 else dtype))
    tolerance = 1e-2 if dtype is np.float16 else 1e-5
    assert y.dtype == dtype
    np.testing.assert_allclose(y, expected, tolerance, tolerance)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize(
    ("op_type", "attributes"),
    [
        ("RNN", {}),
        ("GRU", {}),
        ("GRU", {"linear_before_reset": 1}),
        ("LSTM", {}),
        ("LSTM", {"clip": 0.5, "input_forget": 1}),
    ],
)
def test_recurrent_layer_equals_onnxruntime(plugin, op_type, attributes, direction):
    """Three runs: the second one records a CUDA graph, the third launches it."""
    random = np.random.default_rng(0)
    gates, directions = {"RNN": 1, "GRU": 3, "LSTM": 4}[op_type], 1 + (direction == "bidirectional")
    hidden, size = 16, 8
    shapes = {
        "w": (gates * hidden, size),
        "r": (gates * hidden, hidden),
        "b": (2 * gates * hidden,),
    }
    weights = {
        name: random.normal(size=(directions, *shape)).astype(np.float32) / 2
        for name, shape in shapes.items()
    }
    inputs = {
        "x": random.normal(size=(12, 3, size)).astype(np.float32),
        "lengths": np.array([12, 1, 7], np.int32),
    }
    node = helper.make_node(
        op_type,
        ["x", "w", "r", "b", "lengths"],
        ["y", "y_h"],
        hidden_size=hidden,
        direction=direction,
        **attributes,
    )
    model = make_model([node], inputs, ["y", "y_h"], weights)
    expected = run_onnxruntime(model, inputs)
    compiled = plugin.compile_model(read_model(model))
    for _ in range(3):
        for result, values in zip(compiled(inputs).values(), expected, strict=True):
            np.testing.assert_allclose(result, values, 1e-5, 1e-5)


def test_closed_model_returns_its_memory_to_the_card(plugin):
    import cupy

    pool = cupy.get_default_memory_pool()
    x, w = np.ones((1, 1024), np.float32), np.ones((1024, 1 << 16), np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = read_model(make_model([node], {"x": x}, ["y"], {"w": w}))
    compiled = plugin.compile_model(model)
    compiled(x)
    used_nbytes = pool.total_bytes()
    compiled.close()
    assert used_nbytes - pool.total_bytes() >= w.nbytes
