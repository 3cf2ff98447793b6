"""Device ORT: refusals, ONNX versions, weights, errors, cancellation, memory and threads."""

import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from hetero.devices import read_model
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import (
    BlobError,
    InferenceError,
    RequestCancelledError,
)
from hetero.devices.model.light_models import light_model_inputs, light_model_outputs
from hetero.devices.plugin.program import Payload, RunContext

pytest.importorskip("onnxruntime")
from hetero.devices.ort.plugin import ORTPlugin
from hetero.devices.ort.provider import built_in_providers
from hetero.devices.ort.versions import newest_opset
from tests.support.networks import model as parsed
from tests.support.small_models import onnxruntime_session

PLUGIN = ORTPlugin()


def resident_nbytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_ns():
    """Return the processor time of each thread of this process."""
    stats = {path.parent.name: path for path in Path("/proc/self/task").glob("*/schedstat")}
    return {thread: int(path.read_text().split()[0]) for thread, path in stats.items()}


def refusal(model):
    (refusals,) = PLUGIN.query_model(model).unsupported.values()
    ((device, reason),) = refusals.items()
    assert device == "ORT.0"
    return reason


@pytest.mark.parametrize(
    ("body", "opset", "code", "text"),
    [
        ("(float[2] x) => (float[2] y) {y = Relu(x)}", 6, "opset", "from 7 on"),
        ("(bfloat16[2] x) => (bfloat16[2] y) {y = Add(x, x)}", 17, "dtype", "bfloat16"),
        ("(float[2] x) => (float[2] y) {y = x.y.Odd(x)}", 17, "no_kernel", "Odd"),
        ("(float[2] x) => (float[2] y) {y = Nope(x)}", 17, "no_kernel", "Nope"),
        ("(int16[2,2] x) => (int16[2,2] y) {y = MatMul(x, x)}", 17, "dtype", "MatMul"),
        pytest.param(
            "(uint32[2] x) => (uint32[2] y) {y = Mod(x, x)}",
            28,
            "opset",
            "newer than",
            marks=pytest.mark.skipif(newest_opset("") >= 28, reason="onnxruntime has it"),
        ),
        ("(float[2] x) => (float[2] y) {y = Elu<nope = 1>(x)}", 17, "attribute", "nope"),
    ],
)
def test_refusal_code_and_message(body, opset, code, text):
    reason = refusal(parsed(body, opset))
    assert reason.code == code
    assert text in reason.message


def test_query_refuses_every_unsupported_node():
    model = parsed(
        "(float[2] x) => (float[2] y) {a = x.y.Odd(x) b = Relu(a) c = x.y.Even(b) y = Relu(c)}"
    )
    # Values after an unknown operator have no type, so ONNX Runtime cannot take their readers.
    assert list(PLUGIN.query_model(model).unsupported) == ["a", "b", "c", "y"]
    typed = parsed(
        "(float[2] x) => (float[2] y) <float[2] a, float[2] b, float[2] c>"
        " {a = x.y.Odd(x) b = Relu(a) c = x.y.Even(b) y = Relu(c)}"
    )
    support = PLUGIN.query_model(typed)
    assert list(support) == ["b", "y"]
    assert list(support.unsupported) == ["a", "c"]


def test_operator_without_a_kernel_is_decomposed():
    model = parsed("(float[2] x) => (float[2] y) {y = Mish(x)}", opset=18)
    support = PLUGIN.query_model(model)
    assert support["y"] == "ORT.0"
    assert support.notes["y"].startswith("decomposed into")
    x = np.float32([-1, 2])
    want = x * np.tanh(np.log1p(np.exp(x)))
    np.testing.assert_allclose(PLUGIN.compile_model(model)(x)["y"], want, rtol=1e-5)


@pytest.mark.skipif(bool(built_in_providers()), reason="this onnxruntime cannot list its kernels")
def test_float16_computed_in_float32_has_a_note():
    model = parsed("(float16[2,2] x) => (float16[2,2] y) {y = MatMul(x, x)}")
    support = PLUGIN.query_model(model)
    assert "float32" in support.notes["y"]


def test_newer_opset_with_unchanged_operators_runs():
    model = parsed(
        "(float[2] x) => (float[2] y) {h = Relu(x) y = Add(h, x)}",
        opset=onnx.defs.onnx_opset_version(),
        ir=onnx.IR_VERSION,
    )
    x = np.float32([-1, 2])
    np.testing.assert_array_equal(PLUGIN.compile_model(model)(x)["y"], [-1, 4])


def test_body_with_captures_runs():
    model = parsed(
        "(bool c, float[2] x) => (float[2] y) {k = Add(x, x) y = If (c) <"
        "then_branch = t () => (float[2] a) {a = Add(k, x)},"
        "else_branch = e () => (float[2] b) {b = Identity(k)}>}"
    )
    compiled = PLUGIN.compile_model(model)
    x = np.float32([1, 2])
    np.testing.assert_array_equal(compiled([np.array(True), x])["y"], x * 3)
    np.testing.assert_array_equal(compiled([np.array(False), x])["y"], x * 2)


def test_model_functions_run():
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        g (bool c, float[2] x) => (float[2] y, float[2] z) {
          y = my.twice(x)
          z = If (c) <then_branch = t () => (float[2] a) {a = my.twice(y)},
                      else_branch = e () => (float[2] b) {b = Identity(x)}>
        }
        <opset_import: ["" : 17], domain: "my"> twice (v) => (w) {w = Add(v, v)}"""
    )
    model = read_model(proto)
    assert not PLUGIN.query_model(model).unsupported
    result = PLUGIN.compile_model(model)([True, np.float32([1, 2])])
    np.testing.assert_array_equal(result["y"], [2, 4])
    np.testing.assert_array_equal(result["z"], [4, 8])


def test_contrib_operators_run():
    model = read_model(
        parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[N,2] x)'
            " => (float[N,2] y)"
            " {a = com.microsoft.QuickGelu<alpha = 1.0>(x) b = Relu(a) y = Add(b, x)}"
        )
    )
    assert list(PLUGIN.query_model(model)) == ["a", "b", "y"]
    x = np.float32([[-1, 2]])
    want = np.maximum(x / (1 + np.exp(-x)), 0) + x
    np.testing.assert_allclose(PLUGIN.compile_model(model)(x)["y"], want, rtol=1e-5)


def test_squeezenet_results_profile_and_export():
    model = read_model("light:squeezenet")
    subject = PluginSubject(PLUGIN)
    compiled = subject.compile_model(model, {"PERF_COUNT": True, "INFERENCE_NUM_THREADS": 1})
    result = compiled(light_model_inputs(model))
    (want,) = light_model_outputs("light:squeezenet")
    np.testing.assert_allclose(result[0], want, rtol=1e-3, atol=1e-5)

    runtime = compiled.get_runtime_model()
    fused = next(n for n in runtime.nodes if n.op_type == "Conv")
    kinds = {
        model.nodes[model.index_of[name]].op_type
        for name in fused.metadata["originalLayersNames"].split(",")
    }
    assert {"Conv", "Relu"} <= kinds
    assert all(float(n.metadata["execTimeMcs"]) >= 0 for n in runtime.nodes)

    again = PLUGIN.import_model(compiled.export_model(), model)
    np.testing.assert_allclose(again(light_model_inputs(model))[0], want, rtol=1e-3, atol=1e-5)


def test_load_rejects_payload_of_another_version():
    model = parsed("(float[2] x) => (float[2] y) {y = Relu(x)}")
    payload = PLUGIN.compile_model(model).export_model()
    other = Payload({**payload.header, "version": "0.1"}, payload.tensors)
    with pytest.raises(BlobError, match=r"0\.1"):
        PLUGIN.import_model(other, model)
    with pytest.raises(BlobError):
        PLUGIN.import_model(Payload({**payload.header, "model": b"\x00garbage"}, {}), model)


def test_int4_weights_run():
    weight = helper.make_tensor("w", onnx.TensorProto.INT4, [2], [3, -4])
    scale = helper.make_tensor("s", onnx.TensorProto.FLOAT, [], [0.5])
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["d"])
    add = helper.make_node("Add", ["d", "x"], ["y"])
    ports = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2]) for n in "xy"]
    graph = helper.make_graph([node, add], "g", ports[:1], ports[1:], [weight, scale])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    np.testing.assert_array_equal(PLUGIN.compile_model(model)(np.zeros(2))["y"], [1.5, -2])


def test_external_weights_run(tmp_path):
    weight = np.arange(40_000, dtype=np.float32).reshape(200, 200)
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[1,200] x, float[200,200] w)'
        " => (float[1,200] y) {y = MatMul(x, w)}"
    )
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save_model(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.bin")
    compiled = PLUGIN.compile_model(read_model(tmp_path / "m.onnx"))
    x = np.ones((1, 200), np.float32)
    np.testing.assert_allclose(compiled(x)["y"], x @ weight, rtol=1e-5)


def test_sequence_and_string_ports_run():
    model = parsed(
        "(seq(float[N]) s, string[2] t) => (float[M] y, string[2] u)"
        " {y = ConcatFromSequence<axis = 0>(s) u = Identity(t)}"
    )
    result = PLUGIN.compile_model(model)({"s": [np.float32([1]), [2, 3]], "t": ["a", "β"]})
    np.testing.assert_array_equal(result["y"], [1, 2, 3])
    assert result["u"].tolist() == ["a", "β"]


def test_run_error_names_node_and_reason():
    model = parsed(
        "(float[2] x, int64[1] i) => (float[1] y) {[the_gather] y = Gather<axis = 0>(x, i)}"
    )
    compiled = PLUGIN.compile_model(model)
    with pytest.raises(InferenceError, match=r"the_gather.*out of"):
        compiled([np.float32([1, 2]), np.array([9])])
    assert compiled([np.float32([1, 2]), np.array([1])])["y"] == [2]


def test_cancel_stops_a_long_run():
    model = parsed(
        "(int64 n, float[2] x) => (float[2] y) {t = Constant<value = bool {1}>()"
        " y = Loop (n, t, x) <body = b (int64 i, bool c, float[2] v) => (bool d, float[2] w)"
        " {d = Identity(c) w = Add(v, v)}>}"
    )
    compiled = PluginSubject(PLUGIN).compile_model(model)
    request = compiled.create_infer_request()
    request.start_async({"n": 10**12, "x": [1.0, 2.0]})
    assert not request.wait_for(50)
    stopper = threading.Thread(target=request.cancel)
    stopper.start()
    with pytest.raises(RequestCancelledError):
        request.wait()
    stopper.join()
    np.testing.assert_array_equal(request.infer({"n": 2, "x": [1.0, 2.0]})["y"], [4, 8])


BIG = np.arange(1500, dtype=np.float32)


@pytest.mark.parametrize(
    "graph",
    [
        "(float[N] x) => (float[N] y) {y = Abs(x)}",
        "(float[N] x) => (float[N] y) {dead = Neg(w) y = Abs(x)}",
        "(float[N] x) => (float[N] y, float[1500] w) {y = Abs(x)}",
        "(float[N] x) => (float[N] y, float[1500] w) {h = Sub(w, w) z = Abs(x) y = Add(z, h)}",
        (
            "(float[N] x) => (float[N] y) {one = Constant<value_int = 1>() c = Cast<to = 9>(one) "
            "y = If(c) <then_branch = a () => (float[N] p) {h = Sub(w, w) p = Sub(h, x)},"
            "else_branch = b () => (float[N] q) {q = Neg(w)}>}"
        ),
        "(float[N] x) => (float[N] y) {k = Shape(w) h = Abs(x) y = Reshape(h, k)}",
        "(float[N] x) => (float[N] y) {n = Identity(w) y = Abs(x)}",
    ],
    ids=["unread", "dead", "output", "read and output", "in a branch", "shape", "identity"],
)
@pytest.mark.parametrize("kind", ["initializer", "node"])
def test_large_constants_with_any_reader_run(graph, kind):
    weight = onnx.numpy_helper.from_array(BIG, "w")
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g ' + graph.replace("(", "(float[1500] w, ", 1)
    )
    del proto.graph.input[0]
    if kind == "initializer":
        proto.graph.initializer.append(weight)
    else:
        proto.graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weight))
    model = read_model(proto)
    unsupported = PLUGIN.query_model(model).unsupported
    if unsupported and "before 1.25" in str(unsupported):
        pytest.skip("this onnxruntime loses weights that bodies read")
    assert not unsupported
    compiled = PLUGIN.compile_model(model)
    payload = compiled.export_model()
    for model_form in (compiled, PLUGIN.import_model(payload, model)):
        results = model_form({"x": -BIG})
        np.testing.assert_array_equal(results["y"], BIG)
        if "w" in results:
            np.testing.assert_array_equal(results["w"], BIG)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_long_chain_frees_intermediate_values():
    nodes = "".join(f"v{i + 1} = Neg(v{i}) " for i in range(40))
    model = parsed(f"(float[1048576] v0) => (float[1048576] v40) {{{nodes}}}")
    compiled = PLUGIN.compile_model(model, {"DISABLE_TRANSFORMATIONS": True})
    before = resident_nbytes()
    compiled([np.ones(2**20, np.float32)])
    assert resident_nbytes() - before < 20 * 2**22


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's /proc")
def test_idle_session_threads_sleep():
    before = processor_ns()
    compiled = PLUGIN.compile_model(parsed("(float[2] x) => (float[2] y) {y = Relu(x)}"))
    time.sleep(0.1)
    new_threads_ns = [ns for thread, ns in processor_ns().items() if thread not in before]
    compiled.close()
    assert sum(new_threads_ns) < 10e6


def test_run_error_is_not_printed_to_stderr(capfd):
    model = parsed("(float[1] x, int64[1] times) => (float[n] y) { y = Tile(x, times) }")
    compiled = PLUGIN.compile_model(model, {})
    with pytest.raises(InferenceError, match="Tile"):
        compiled.run([np.float32([1]), np.int64([2**40])])
    assert capfd.readouterr().err == ""


def test_body_with_the_names_of_query_values_is_supported():
    """A query renames a node's values; names in its bodies must stay distinct."""
    model = parsed(
        "(int64 n, bool c, float[2] x) => (float[2] y)"
        " {y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) => (bool co, float[2] v1)"
        " {co = Identity(ci) v1 = Add(v, v)}>}"
    )
    assert not PLUGIN.query_model(model).unsupported
    result = PLUGIN.compile_model(model)({"n": 3, "c": True, "x": [1.0, 2.0]})
    np.testing.assert_array_equal(result["y"], [8, 16])


def test_mapped_weights_give_equal_results():
    weights = np.random.default_rng(1).standard_normal((70, 50), dtype=np.float32)
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[3, 70] x) => (float[3, 50] y) { y = MatMul(x, w) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    x = np.random.default_rng(2).standard_normal((3, 70), dtype=np.float32)
    for config in ({}, {"ORT_MAPPED_WEIGHTS": True}):
        compiled = PLUGIN.compile_model(read_model(model), config)
        np.testing.assert_allclose(compiled([x])[0], x @ weights, rtol=1e-4, atol=1e-4)


def test_product_of_dequantised_weights_is_computed_in_float32():
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 127, (64, 64)).astype(np.int8)
    proto = parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[3,64] x) => (float[3,64] y)
        <float s = {0.02}> {d = DequantizeLinear(w, s) y = MatMul(x, d)}"""
    )
    proto.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    x = rng.standard_normal((3, 64)).astype(np.float32)
    (y,) = PLUGIN.compile_model(read_model(proto))({"x": x}).to_tuple()
    np.testing.assert_allclose(y, x.astype(np.float64) @ (weights * 0.02), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("output", ["float[c] s", "float s"])
def test_loop_without_iterations_has_the_sizes_of_its_body(output):
    """ONNX Runtime sets the open sizes of its scan outputs to 0."""
    model = parsed(
        f"""(int64 n, bool c, float[m] x) => (float[k,l] y) {{y = Loop(n, c) <body = b
        (int64 i, bool ci) => (bool co, {output}) {{co = Identity(ci) s = Neg(x)}}>}}"""
    )
    compiled = PLUGIN.compile_model(model)
    inputs = {"c": np.bool_(True), "x": np.float32([1, 2])}
    for iterations in (3, 0, 0):
        results = compiled({"n": np.int64(iterations), **inputs})
        assert results["y"].shape == (iterations, 2)


@pytest.mark.parametrize(
    "pool",
    [
        "MaxPool<kernel_shape = [2, 2]>",
        "MaxPool<kernel_shape = [2, 2], pads = [0, 1, 1, 0]>",
        "AveragePool<kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1, count_include_pad=1>",
        "AveragePool<kernel_shape = [2, 2], pads = [0, 1, 1, 0], count_include_pad = 1>",
    ],
)
def test_pool_of_padded_values_is_not_joined_with_the_padding(pool):
    """The padding of a MaxPool is less than all values, that of Pad is 0."""
    model = parsed(
        f"""(float[1,2,5,5] x) => (float[a,b,c,d] y) <int64[8] p = {{0, 0, 1, 1, 0, 0, 1, 1}}>
        {{padded = Pad(x, p) y = {pool}(padded)}}"""
    )
    x = np.random.default_rng(0).standard_normal((1, 2, 5, 5)).astype(np.float32) - 1
    (expected,) = onnxruntime_session(model.to_bytes(), as_written=True).run(None, {"x": x})
    np.testing.assert_allclose(PLUGIN.compile_model(model)({"x": x})["y"], expected, rtol=1e-5)


def test_values_are_rounded_to_both_of_two_steps():
    """A value between two steps of 0.03 is rounded to a step of 0.1 first."""
    model = parsed(
        """(float[8] x) => (float[8] y) <float s = {0.1}, int8 z = {0}, float t = {0.03}>
        {a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
        c = QuantizeLinear(b, t, z) y = DequantizeLinear(c, t, z)}"""
    )
    x = np.linspace(-1, 1, 8, dtype=np.float32)
    (expected,) = onnxruntime_session(model.to_bytes(), as_written=True).run(None, {"x": x})
    np.testing.assert_allclose(PLUGIN.compile_model(model)({"x": x})["y"], expected, rtol=1e-5)


#: Prints the growth of the private address space at each step of a session's life, in MiB. It runs
#: in a process of its own, because other tests may change how the C library frees memory.
ARENA_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from onnx import parser
from hetero.devices import read_model
from hetero.devices.ort.plugin import ORTPlugin

def private_nbytes():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(dict(line.split(":", 1) for line in lines)["VmData"].split()[0])

model = read_model(parser.parse_model('<ir_version: 8, opset_import: ["": 17]>' + sys.argv[1]))
x = np.ones(model.inputs[0].shape, np.float32)
before_nbytes = private_nbytes()
compiled = ORTPlugin().compile_model(model, {"ORT_ARENA_NBYTES": int(sys.argv[2]) << 20})
growth = [private_nbytes() - before_nbytes]
for _ in range(2):
    compiled([x])
growth.append(private_nbytes() - before_nbytes)
compiled.close()
growth.append(private_nbytes() - before_nbytes)
print(*(nbytes / 2**20 for nbytes in growth))
"""


def arena_growth(network: str, arena_mib: int) -> list[float]:
    """Return the growth in MiB after the compilation, after two runs and after the end."""
    command = [sys.executable, "-c", ARENA_PROGRAM, network, str(arena_mib)]
    output = subprocess.run(command, capture_output=True, check=True)
    return list(map(float, output.stdout.split()))


def test_arena_joins_small_blocks_to_a_large_one():
    """Two values of 4 MiB are live at once, and later one of 8 MiB."""
    network = """g (float[1048576] x) => (float[1] y) <int64[1] size = {2097152}> {
        a = Sin(x) b = Cos(a) c = ReduceSum(b) d = Expand(c, size) y = ReduceSum(d)}"""
    compiled, default, _ = arena_growth(network, 0)
    assert default - compiled > 15
    compiled, sized, remaining = arena_growth(network, 9)
    assert sized - compiled < 10
    assert remaining - compiled < 1  # the arena ends with its session


def test_small_value_uses_the_rest_of_a_block():
    """Values of 6 and 3 MiB are live at once."""
    network = """g (float[2, 786432] x) => (float[1, 1] y) <int64[1] axis = {0}> {
        a = Sin(x) b = ReduceSum(a, axis) y = ReduceSum(b) }"""
    compiled, ran, _ = arena_growth(network, 10)
    assert ran - compiled < 11


def test_process_with_an_arena_returns_freed_blocks(monkeypatch):
    calls = []
    monkeypatch.setattr("hetero.devices.ort.program.map_large_blocks", lambda: calls.append(1))
    model = parsed("(float[4] x) => (float[4] y) {y = Sin(x)}")
    for arena_nbytes, count in ((0, 0), (1000, 1)):
        PLUGIN.compile_model(model, {"ORT_ARENA_NBYTES": arena_nbytes})
        assert len(calls) == count


def test_arena_takes_no_memory_while_a_model_is_compiled():
    weights = ", ".join(["1.0"] * 16)
    network = f"""g (float[1, 2, 4, 4] x) => (float[1, 2, 5, 5] y)
        <float[2, 2, 2, 2] w = {{{weights}}}> {{ y = ConvTranspose(x, w) }}"""
    compiled, ran, _ = arena_growth(network, 100)
    assert compiled < 50 < ran


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Identity(x) z = Identity(y)",
        "y = Relu(x) z = Identity(y)",
        "y = Dropout(x) z = Cast<to = 1>(x)",
        "s = Shape(x) y = Reshape(x, s) z = Expand(x, s)",
        "y = Flatten<axis = 0>(x) z = Flatten(x)",
    ],
)
def test_outputs_are_new_memory_in_each_run(nodes):
    ports = "(float[1, 4] x) => (float[1, 4] y, float[1, 4] z)"
    text = f'<ir_version: 8, opset_import: ["": 17]> network {ports} {{ {nodes} }}'
    program = PLUGIN.compile_model(read_model(parser.parse_model(text)))._program
    assert program.returns_new_memory
    x = np.ones((1, 4), np.float32)
    arrays = [x, *program.run([x], RunContext()), *program.run([x], RunContext())]
    for one, other in itertools.combinations(arrays, 2):
        assert not np.shares_memory(one, other)
        assert one.flags.writeable


@pytest.mark.parametrize(("size", "is_copied"), [(4, True), (2**14, True), (2**14 + 1, False)])
def test_small_outputs_leave_the_arena(size, is_copied):
    network = f"network (float[{size}] x) => (float[{size}] y) {{ y = Neg(x) }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {network}')
    program = PLUGIN.compile_model(read_model(model))._program
    [y] = program.run([np.ones(size, np.float32)], RunContext())
    assert y.flags.owndata == is_copied
    assert y.tolist() == [-1] * size


def test_idle_program_keeps_no_context():
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    program = PLUGIN.compile_model(read_model(model))._program
    context = RunContext()
    num_references = sys.getrefcount(context)
    program.run([np.ones(2, np.float32)], context)
    assert sys.getrefcount(context) == num_references
