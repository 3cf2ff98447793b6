"""Device GPU on emulated arrays: copies, waits, refusals, memory limits and remote tensors."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from hetero.devices.conformance.onnx_suite import backend_cases, outcome
from hetero.devices.errors import DeviceMemoryError
from hetero.devices.gpu import convolution
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.install_command import install_command
from hetero.devices.plugin.registry import load_plugins
from tests.backend_suite.expected_failures import may_pass, read_expected_failures
from tests.emulated_gpu.array import WAITS, contents_of, wrap
from tests.emulated_gpu.backend import COPIES, RELEASES
from tests.emulated_gpu.memory import Memory
from tests.emulated_gpu.plugin import EmulatedGPUPlugin
from tests.support.core_fixtures import core_fixture
from tests.support.random_affinity import random_affinity
from tests.support.small_models import make_model, run_onnxruntime
from tests.support.stateful_models import running_sum

FOLDER = Path(__file__).parents[2] / "backend_suite"
SPEC = "tests.emulated_gpu.plugin:EmulatedGPUPlugin"
X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def plugin():
    gc.collect()  # arrays of other tests would count
    return EmulatedGPUPlugin()


def parsed(text: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]>\n{text}')


RESHAPING = parsed("""
    flat (float[N, 4] x, int64[1] axes) => (float[M] y)
    <int64 zero = {0}, int64[1] first = {0}, int64[1] minus = {-1}, float[4] weight = {1, 2, 3, 4}>
    {
        shape = Shape (x)
        rows = Gather (shape, zero)
        row = Unsqueeze (rows, first)
        sizes = Concat <axis = 0> (row, minus)
        scaled = Mul (x, weight)
        reshaped = Reshape (scaled, sizes)
        y = ReduceSum <keepdims = 0> (reshaped, axes)
    }
""")


def test_run_copies_only_inputs_and_outputs(
    plugin,
):
    inputs = {"x": X, "axes": np.array([1])}
    compiled = plugin.compile_model(read_model(RESHAPING))
    for _ in range(2):
        COPIES.clear()
        WAITS.clear()
        result = compiled(inputs)
        assert dict(COPIES) == {"upload": 1, "download": 1}, "axes and shapes stay on the host"
        assert dict(WAITS) == {"download": 1}
        np.testing.assert_allclose(result["y"], (X * [1, 2, 3, 4]).sum(1))


def test_constants_are_copied_once_at_compilation(
    plugin,
):
    model = parsed("""
        filled (int64[2] shape, float[3, 4] x) => (float[a, b] y)
        <float[4] weight = {1, 2, 3, 4}>
        {
            base = ConstantOfShape <value = float[1] {2.5}> (shape)
            left = Mul (x, weight)
            right = Add (base, weight)
            y = Add (left, right)
        }
    """)
    COPIES.clear()
    compiled = plugin.compile_model(read_model(model))
    assert COPIES["upload"] == 2
    COPIES.clear()
    inputs = {"shape": np.array([3, 4]), "x": X}
    np.testing.assert_allclose(compiled(inputs)["y"], *run_onnxruntime(model, inputs))
    assert dict(COPIES) == {"upload": 1, "download": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("agraph (bfloat16[2] x) => (bfloat16[2] y) { y = Relu (x) }", "tensor(bfloat16)"),
        ("agraph (string[2] x) => (string[2] y) { y = Identity (x) }", "tensor(string)"),
        ("agraph (float[2] x) => (float8e5m2[2] y) { y = Cast <to = 19> (x) }", "float8e5m2"),
        (
            """agraph (bool c, float[2] x) => (float[2] y) {
                y = If (c) <
                    then_branch = then () => (float[2] t) {
                        narrow = Cast <to = 16> (x)
                        t = Cast <to = 1> (narrow)
                    },
                    else_branch = otherwise () => (float[2] e) { e = Identity (x) }
                >
            }""",
            "attribute 'to' of Cast is tensor(bfloat16)",
        ),
    ],
)
def test_unsupported_element_types_are_refused(plugin, text, message):
    support = plugin.query_model(read_model(parsed(text)), {"DISABLE_TRANSFORMATIONS": True})
    (refusals,) = support.unsupported.values()
    (refusal,) = refusals.values()
    assert refusal.code == "dtype"
    assert message in refusal.message


def test_scatter_with_mul_is_refused(plugin):
    def support(reduction: str) -> Any:
        node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction=reduction)
        inputs = {"x": X, "i": np.zeros((2, 1), np.int64), "u": X[:2]}
        return plugin.query_model(read_model(make_model([node], inputs, ["y"], opset=18)))

    assert not support("add").unsupported
    (refusal,) = support("mul").unsupported["y"].values()
    assert refusal.code == "attribute"


@pytest.mark.parametrize("device_id", ["0", "1"])
def test_program_runs_on_its_device(plugin, device_id):
    before = plugin.get_property("GPU_MEMORY_USED", device_id)
    compiled = plugin.compile_model(read_model(RESHAPING), {"DEVICE_ID": device_id})
    assert plugin.get_property("GPU_MEMORY_USED", device_id) - before == 16, "its weights"
    assert compiled({"x": X, "axes": np.array([1])})["y"].shape == (3,)
    assert compiled.device == f"EGPU.{device_id}"
    compiled.close()
    assert plugin.get_property("GPU_MEMORY_USED", device_id) == before


def test_run_reads_remote_tensor_of_its_device_in_place(plugin):
    compiled = plugin.compile_model(read_model(RESHAPING), {"DEVICE_ID": "1"})
    tensor = plugin.create_context({"DEVICE_ID": "1"}).from_host(X)
    other_tensor = plugin.create_context({"DEVICE_ID": "0"}).from_host(X)
    for value, copies in ((tensor, {"download": 1}), (other_tensor, {"upload": 1, "download": 2})):
        COPIES.clear()
        result = compiled({"x": value, "axes": np.array([1])})
        np.testing.assert_allclose(result["y"], (X * [1, 2, 3, 4]).sum(1))
        assert dict(COPIES) == copies


def wide(rows: int) -> onnx.ModelProto:
    """Return a model with 4 KiB of weights and `rows` times as much of intermediate values."""
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"]), helper.make_node("Abs", ["y"], ["z"])]
    inputs = {"x": np.ones((rows, 1), np.float32)}
    return make_model(nodes, inputs, ["z"], {"w": np.ones(1024, np.float32)})


def test_run_after_memory_error_works(plugin):
    compiled = plugin.compile_model(read_model(wide(1)), {"GPU_MEMORY_LIMIT": 64 << 10})
    with pytest.raises(DeviceMemoryError, match=r"EGPU\.0 .*Out of memory"):
        compiled.run([np.ones((100, 1), np.float32)])
    (z,) = compiled.run([np.ones((1, 1), np.float32)])
    assert z.shape == (1, 1024)


def test_constants_beyond_memory_limit_are_refused(plugin):
    model = read_model(wide(1))
    (refusal,) = plugin.query_model(model, {"GPU_MEMORY_LIMIT": 4095}).unsupported["y"].values()
    assert refusal.code == "memory"
    assert "4096 bytes" in refusal.message


def test_compilation_beyond_free_memory_raises(plugin, monkeypatch):
    tensor = plugin.create_context().from_host(np.ones(5000, np.uint8))
    used_nbytes = plugin.get_property("GPU_MEMORY_USED")
    monkeypatch.setitem(Memory.limits_nbytes, 0, used_nbytes + 1000)
    with pytest.raises(DeviceMemoryError, match="Close other models there"):
        plugin.compile_model(read_model(wide(1)))
    assert tensor.to_host().sum() == 5000


core = core_fixture("module", plugins=[SPEC])


def test_node_beyond_memory_runs_on_another_device(core):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Abs", ["y"], ["z"])]
    inputs = {"x": np.ones((1, 1024), np.float32)}
    model = make_model(nodes, inputs, ["z"], {"w": np.full((1024, 1), -1, np.float32)})
    core.set_property("EGPU", {"GPU_MEMORY_LIMIT": 4095})
    support = core.query_model(model, "HETERO:EGPU,CPU")
    assert dict(support) == {"y": "CPU", "z": "EGPU.0"}
    assert support.refusals["y"]["EGPU.0"].code == "memory"
    with core.compile_model(model, "HETERO:EGPU,CPU") as compiled:
        assert compiled(inputs)[0].item() == 1024
    core.set_property("EGPU", {"GPU_MEMORY_LIMIT": 0})


@pytest.mark.parametrize("seed", range(3))
def test_random_split_gives_equal_results(core, seed):
    proto = onnx.compose.add_prefix(RESHAPING, f"p{seed}_")
    inputs = {f"p{seed}_x": X, f"p{seed}_axes": np.array([1])}
    model = core.read_model(proto)
    pins = random_affinity(core, model, ["EGPU.0", "EGPU.1", "CPU"], seed)
    device = "HETERO:EGPU.0,EGPU.1,CPU"
    with core.compile_model(model, device, affinity=pins) as compiled:
        np.testing.assert_allclose(compiled(inputs)[0], *run_onnxruntime(proto, inputs))


def test_value_stays_on_device_between_its_stages(core):
    """Only values that another device reads are copied to the host."""
    model = parsed("""
        around (float[3, 4] x) => (float[3, 4] y) {
            a = Exp (x)
            small = ReduceMax <keepdims = 1> (a)
            root = Sqrt (small)
            y = Add (a, root)
        }
    """)
    pins = {"root": "CPU"}
    with core.compile_model(model, "HETERO:EGPU,CPU", affinity=pins) as compiled:
        assert [s.device for s in compiled.subgraphs] == ["EGPU.0", "CPU", "EGPU.0"]
        COPIES.clear()
        np.testing.assert_allclose(compiled(X)[0], *run_onnxruntime(model, {"x": X}), rtol=1e-5)
    assert dict(COPIES) == {"upload": 2, "download": 2}, "x and `root` in, `small` and y out"


def test_remote_tensor_is_copied_to_the_device_once(core):
    tensor = core.create_context("EGPU.1").from_host(X)
    inputs = {"x": tensor, "axes": np.array([1])}
    with (
        core.compile_model(RESHAPING, "EGPU.1") as gpu_model,
        core.compile_model(RESHAPING, "CPU") as cpu_model,
    ):
        COPIES.clear()
        results = [gpu_model(inputs)[0] for _ in range(3)]
        assert dict(COPIES) == {"download": 3}
        results.append(cpu_model(inputs)[0])
    for result in results:
        np.testing.assert_allclose(result, (X * [1, 2, 3, 4]).sum(1))
    np.testing.assert_array_equal(tensor.to_host(), X)


def test_remote_tensor_beyond_memory_raises(core, monkeypatch):
    used_nbytes = EmulatedGPUPlugin.open_backend().used_nbytes("1")
    monkeypatch.setitem(Memory.limits_nbytes, 1, used_nbytes + 1000)
    with pytest.raises(DeviceMemoryError, match=r"EGPU\.1 has no room.* 5000 bytes"):
        core.create_context("EGPU.1").from_host(np.ones(5000, np.uint8))


def test_state_stays_on_device_between_runs(core):
    with core.compile_model(running_sum(), "EGPU", states={"before": "after"}) as compiled:
        request = compiled.create_infer_request()
        x = np.ones(3, np.float32)
        assert [request.infer(x)[0][0] for _ in range(3)] == [2, 4, 6]
        COPIES.clear()
        assert [request.infer(x)[0][0] for _ in range(3)] == [8, 10, 12]
        assert dict(COPIES) == {"upload": 3, "download": 3, "graph launch": 3}, "x in and y out"
        (state,) = request.query_state()
        np.testing.assert_array_equal(state.state.data, x * 6)


def test_device_without_cupy_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.delitem(sys.modules, "hetero.devices.gpu.cupy_backend", raising=False)
    (entry,) = load_plugins(["hetero.devices.gpu.plugin:GPUPlugin"], entry_points=False).values()
    assert entry.name == "GPU"
    assert install_command("gpu") in str(entry.error)


def test_device_without_gpu_is_listed_with_its_error():
    cupy = pytest.importorskip("cupy", reason="needs hetero[gpu]")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError:
        count = 0
    if count:
        pytest.skip("this machine has a GPU")
    (entry,) = load_plugins(["hetero.devices.gpu.plugin:GPUPlugin"], entry_points=False).values()
    assert "finds no CUDA device" in str(entry.error)


#: Lower bound of the cases that pass, of the 2,033 of onnx 1.23.
MINIMUM_PASSES = 1700


@pytest.mark.slow
def test_onnx_backend_suite_cases_pass():
    """Supported cases pass, except those that fail on the CPU device too."""
    expected_failures = read_expected_failures(FOLDER / "expected_failures_cpu.txt")
    plugin = EmulatedGPUPlugin()
    outcomes = {case.name: outcome(plugin, case, {}) for case in backend_cases()}
    errors = {n: result for n, result in outcomes.items() if result not in ("refused", "passed")}
    assert {n: error for n, error in errors.items() if n not in expected_failures} == {}
    assert not {
        n
        for n, result in outcomes.items()
        if result == "passed" and n in expected_failures and not may_pass(expected_failures[n])
    }
    assert list(outcomes.values()).count("passed") >= MINIMUM_PASSES


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.int8, np.bool_])
def test_scatter_reduces_types_of_atomic_operations_only(plugin, dtype):
    node = helper.make_node("ScatterND", ["x", "i", "u"], ["y"], reduction="max")
    x = np.arange(12).reshape(3, 4).astype(dtype)
    inputs = {"x": x, "i": np.array([[1], [1]]), "u": x[:2]}
    model = make_model([node], inputs, ["y"], opset=18)
    unsupported = plugin.query_model(read_model(model)).unsupported
    if dtype in (np.float32, np.int32, np.int64):
        (y,) = plugin.compile_model(read_model(model))(inputs).values()
        np.testing.assert_array_equal(y, *run_onnxruntime(model, inputs))
    else:
        (refusal,) = unsupported["y"].values()
        assert refusal.code == "dtype"
        assert "reduce double, float" in refusal.message


def test_unique_runs_on_the_host(plugin):
    model = parsed("agraph (float[3, 4] x) => (float[n, 4] y) { y = Unique <axis = 0> (x) }")
    note = plugin.query_model(read_model(model)).notes["y"]
    assert note == "runs on the host: its inputs are copied there"


@pytest.mark.parametrize(
    ("shape", "weights", "attributes"),
    [
        ((2, 3, 9, 8), (4, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
        ((2, 6, 7, 7), (4, 3, 3, 3), {"group": 2, "dilations": [2, 1]}),
        ((1, 3, 7, 7), (4, 3, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
        ((3, 4, 5), (4, 1, 2), {"group": 4}),
        ((1, 2, 4, 5, 6), (3, 2, 2, 2, 2), {"strides": [1, 2, 3]}),
        ((2, 3, 5, 5), (4, 3, 1, 1), {"strides": [2, 2]}),
        ((0, 3, 5, 5), (4, 3, 3, 3), {}),
    ],
)
def test_convolution_launches_few_kernels_and_is_right(
    plugin,
    monkeypatch,
    shape,
    weights,
    attributes,
):
    random = np.random.default_rng(0)
    inputs = {"x": random.normal(size=shape).astype(np.float32)}
    values = {
        "w": random.normal(size=weights).astype(np.float32),
        "b": random.normal(size=weights[0]).astype(np.float32),
    }
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)
    model = make_model([node], inputs, ["y"], values)
    for column_nbytes in (1 << 29, 1):  # all images at once, and one after the other
        monkeypatch.setattr(convolution, "_COLUMN_NBYTES", column_nbytes)
        (y,) = plugin.compile_model(read_model(model))(inputs).values()
        (expected,) = run_onnxruntime(model, inputs)
        np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-5)


def test_memory_limit_applies_to_its_model_only(plugin):
    limited = plugin.compile_model(read_model(wide(1)), {"GPU_MEMORY_LIMIT": 64 << 10})
    unlimited = plugin.compile_model(read_model(wide(100)))
    inputs = [np.ones((100, 1), np.float32)]
    (z,) = unlimited.run(inputs)
    assert z.shape == (100, 1024)
    with pytest.raises(DeviceMemoryError):
        limited.run(inputs)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_remainder_by_infinity_is_the_dividend(plugin, dtype):
    """CuPy's own remainder is NaN there."""
    values = np.array([-np.inf, -3, -0.0, 0.0, 2.5, np.inf, np.nan], dtype)
    a, b = np.meshgrid(values, values)
    node = helper.make_node("Mod", ["a", "b"], ["y"])
    model = make_model([node], {"a": a, "b": b}, ["y"], opset=28)
    (y,) = plugin.compile_model(read_model(model))({"a": a, "b": b}).values()
    with np.errstate(all="ignore"):
        expected = np.remainder(a, b)
    np.testing.assert_array_equal(y, expected)
    np.testing.assert_array_equal(np.signbit(y[y == 0]), np.signbit(expected[y == 0]))


def test_seed_draws_the_numbers_of_the_cpu(core):
    model = parsed("agraph (float[9] x) => (float[9] y) { y = RandomNormalLike <seed = 7.0> (x) }")
    results = []
    for device in ("EGPU", "CPU"):
        with core.compile_model(model, device) as compiled:
            results.append(compiled(np.zeros(9, np.float32))[0])
    np.testing.assert_array_equal(*results)


def test_column_blocks_cover_each_output_row_once(monkeypatch):
    shape = (4, 3, 3, 5, 7, 6)  # C, kernel, N, output
    for nbytes in (1, 4 * 9 * 6 * 4 * 2, 4 * 9 * 7 * 6 * 4 * 2, 1 << 29):
        monkeypatch.setattr(convolution, "_COLUMN_NBYTES", nbytes)
        cover = np.zeros((5, 7), int)
        for images, rows in convolution._parts(shape, 4, 2):
            cover[images, rows] += 1
            size = cover[images, rows].size * 4 * 9 * 6 * 4
            assert size <= max(nbytes, 4 * 9 * 6 * 4)
        assert (cover == 1).all()


def test_closed_model_releases_unused_memory(plugin):
    compiled = plugin.compile_model(read_model(RESHAPING))
    before = RELEASES["0"]
    compiled.close()
    assert RELEASES["0"] > before


@pytest.mark.parametrize(
    ("attributes", "num_cells"), [({}, 2 * 5), ({"clip": 9.0}, 0), ({"input_forget": 1}, 0)]
)
def test_lstm_uses_the_cell_of_the_library(
    plugin,
    monkeypatch,
    attributes,
    num_cells,
):
    calls = []

    def cell(gates: Any, product: Any, c: Any) -> tuple[Any, Any]:
        i, o, f, g = np.split(contents_of(gates) + contents_of(product), 4, axis=1)
        sigmoid_i, sigmoid_o, sigmoid_f = (1 / (1 + np.exp(-x)) for x in (i, o, f))
        new_c = sigmoid_f * contents_of(c) + sigmoid_i * np.tanh(g)
        calls.append(new_c.shape)
        return wrap(sigmoid_o * np.tanh(new_c)), wrap(new_c)

    monkeypatch.setattr(plugin.backend.xp, "lstm_cell", cell)
    random = np.random.default_rng(0)
    weights = {
        name: random.normal(size=(2, *shape)).astype(np.float32)
        for name, shape in {"w": (12, 4), "r": (12, 3), "b": (24,)}.items()
    }
    x = random.normal(size=(5, 2, 4)).astype(np.float32)
    node = helper.make_node(
        "LSTM",
        ["x", "w", "r", "b"],
        ["y"],
        hidden_size=3,
        direction="bidirectional",
        **attributes,
    )
    model = make_model([node], {"x": x}, ["y"], weights)
    (result,) = plugin.compile_model(read_model(model))({"x": x}).values()
    (expected,) = run_onnxruntime(model, {"x": x})
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    assert calls == [(2, 3)] * num_cells
