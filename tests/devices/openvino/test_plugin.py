"""Device OV: refusals, exact integers, memory, properties, executed nodes and blobs."""

import subprocess
import sys
import threading

import numpy as np
import onnx
import pytest
from onnx import parser

import hetero
from benchmarks.small_networks import SMALL_NETWORKS
from hetero.devices import read_model
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import (
    BlobError,
    PropertyError,
    UnknownDeviceError,
)
from hetero.devices.model.light_models import light_model_inputs
from hetero.devices.plugin.program import Payload, RunContext
from tests.support.networks import model as parsed
from tests.support.small_models import flattening


@pytest.fixture(scope="module")
def plugin():
    pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    from hetero.devices.openvino.plugin import OpenVinoPlugin

    return OpenVinoPlugin()


def refusal(plugin, model, **config):
    (refusals,) = plugin.query_model(model, config).unsupported.values()
    ((device, reason),) = refusals.items()
    assert device == "OV.CPU"
    return reason


@pytest.mark.parametrize(
    ("body", "opset", "code", "text"),
    [
        ("(float[2] x) => (float[2] y) {y = Relu(x)}", 6, "opset", "sets from 7 on"),
        ("(float[2] x) => (float[2] y) {y = x.y.Odd(x)}", 17, "no_kernel", "x.y"),
        ("(string[2] x) => (string[2] y) {y = Identity(x)}", 17, "dtype", "string"),
        (
            "(seq(float[2]) x) => (float[N] y) {y = ConcatFromSequence<axis=0>(x)}",
            17,
            "dtype",
            "seq",
        ),
        ("(bfloat16[2] x) => (bfloat16[2] y) {y = Abs(x)}", 17, "dtype", "bfloat16"),
        ("(double[2] x) => (double[2] y) {y = Abs(x)}", 17, "dtype", "double"),
        ("(int64[2] x) => (int64[2] y) {y = Add(x, x)}", 17, "dtype", "in 32 bits"),
        ("(float[2] x) => (int64[2] y) {y = Cast<to = 7>(x)}", 17, "policy", "32 bits"),
        ("(uint8[2] x) => (uint8[2] y) {y = Add(x, x)}", 17, "dtype", "not exact"),
        (
            "(float[0] x) => (float[1] y) {y = ReduceMax<keepdims=1>(x)}",
            17,
            "policy",
            "without elem",
        ),
        (
            "(float[2] x, int64[1] a) => (float[M,N] y) {y = Unsqueeze(x, a)}",
            17,
            "dynamic_shape",
            "rank of 'y' is unknown",
        ),
        ("(float[1,4,4,4] x) => (float[1,4,4,4] y) {y = Det(x)}", 17, "no_kernel", "Det"),
    ],
)
def test_refusal_code_and_message(plugin, body, opset, code, text):
    reason = refusal(plugin, parsed(body, opset))
    assert (reason.code, text in reason.message) == (code, True), reason


@pytest.mark.parametrize(
    ("body", "feeds", "want"),
    [
        ("(float[2] x) => (float[2] y) {y = Dropout(x)}", [[1, 2]], [1, 2]),
        ("(float[2] x) => (float[2] y) {y = Max(x)}", [[1, 2]], [1, 2]),
        ("(float[2] x) => (float[2] y) {h = Neg(x) y = Dropout(h)}", [[1, 2]], [-1, -2]),
        ("(float[2] x) => (float[2] y) {h = Softsign(x) y = Add(h, x)}", [[1, -1]], [1.5, -1.5]),
        ("(float[2,3] x) => (int64[2] y) {y = Shape(x)}", [np.zeros((2, 3))], [2, 3]),
        ("(float[N] x) => (float[N] y) {y = Abs(x)}", [np.zeros(0)], np.zeros(0)),
        ("(float x) => (float y) {y = Neg(x)}", [2], -2),
        (
            "(float[N,2] x) => (float[N,M] y) {y = Flatten<axis=1>(x)}",
            [np.ones((0, 2))],
            np.ones((0, 2)),
        ),
        (
            "(float[2,3] x, int64[N] i) => (float[2,N] y) {y = Gather<axis=1>(x, i)}",
            [np.arange(6).reshape(2, 3), [-1, 0]],
            [[2, 0], [5, 3]],
        ),
    ],
)
def test_folded_renamed_and_decomposed_nodes_run(plugin, body, feeds, want):
    """The query lists them by their own names, and the compiled model runs right."""
    model = parsed(body)
    support = plugin.query_model(model)
    assert list(support) == list(model.node_names)
    compiled = plugin.compile_model(model)
    result = compiled(feeds)["y"]
    assert result.dtype == model.outputs[0].dtype
    np.testing.assert_allclose(result, want, rtol=1e-6)
    again = plugin.import_model(compiled.export_model(), model)
    np.testing.assert_array_equal(again(feeds)["y"], result)


def test_equal_outputs_do_not_share_memory(plugin):
    model = parsed(
        "(float[2] x) => (float[2] a, float[2] b, float[2] c, float[2] x)"
        " {a = Neg(x) b = Dropout(a) c = Dropout(x)}"
    )
    result = plugin.compile_model(model)([np.float32([1, 2])])
    result["a"][:] = 7
    for name, want in (("b", [-1, -2]), ("c", [1, 2]), ("x", [1, 2])):
        np.testing.assert_array_equal(result[name], want)


def test_run_does_not_copy_inputs_and_outputs(plugin, monkeypatch):
    import openvino

    tensors = []
    create_tensor = openvino.Tensor

    def recording_tensor(*arguments, **options):
        tensors.append(create_tensor(*arguments, **options))
        return tensors[-1]

    compiled = plugin.compile_model(parsed("(float[4] x) => (float[4] y) {y = Neg(x)}"))
    x = np.ones(4, np.float32)
    x.setflags(write=False)
    monkeypatch.setattr(openvino, "Tensor", recording_tensor)
    (y,) = compiled.run([x])
    for array in (x, y):
        assert [np.shares_memory(tensor.data, array) for tensor in tensors].count(True) == 1
    np.testing.assert_array_equal(y, -x)


def test_narrow_integers_option_allows_int64_arithmetic(plugin):
    model = parsed("(int64[2] x) => (int64[2] y) {y = Add(x, x)}")
    narrow = {"OV_NARROW_INTEGERS": True}
    assert not plugin.query_model(model, narrow).unsupported
    assert plugin.compile_model(model, narrow)([[1, 2]])["y"].tolist() == [2, 4]


#: Nodes over 64-bit integers `a` and `b`, and `c` of 1 to 99, exact up to 30 bits.
IN_32_BITS = (
    "y = Add(a, c)",
    "y = Sub(a, c)",
    "y = Mul(c, c)",
    "y = Neg(a)",
    "y = Abs(a)",
    "y = Sign(a)",
    "y = Max(a, b)",
    "y = Min(a, b)",
    "y = Concat<axis=0>(a, b)",
    "t = Equal(a, c) y = Where(t, a, b)",
    "z = Constant<value_int=0>() o = Constant<value_int=1>() t = Size(a) y = Range(z, t, o)",
)
#: Nodes that OpenVINO computes in floats, exact up to 23 bits.
IN_FLOATS = (
    "y = Div(a, c)",
    "y = Mod(a, c)",
    "y = Mod<fmod=1>(a, c)",
    "y = Clip(a, n)",
    "t = Trilu(m) y = Reshape(t, k)",
    "t = Less(a, b) y = Where(t, a, c)",
    "t = Equal(a, b) y = Where(t, a, c)",
    "t = GreaterOrEqual(a, b) y = Where(t, a, c)",
)


@pytest.mark.parametrize(
    ("body", "bits"), [*((b, 30) for b in IN_32_BITS), *((b, 23) for b in IN_FLOATS)]
)
def test_integers_proven_to_fit_are_exact(core, body, bits):
    """Compare random values up to the proven limit with device CPU, which computes in 64 bits."""
    limit = 2**bits - 1
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (int64[40] p, int64[40] q, int64[40] r)'
        f" => (int64[M] y) <int64 lo = {{-{limit}}}, int64 hi = {{{limit}}}, int64 u = {{1}},"
        " int64 v = {99}, int64 n = {-3}, int64[2] s = {8, 5}, int64[1] k = {-1}>"
        " {a = Clip(p, lo, hi) b = Clip(q, lo, hi) c = Clip(r, u, v) m = Reshape(a, s)"
        f" {body}}}"
    )
    model = read_model(proto)
    names = [node.name for node in model.nodes if node.name not in ("a", "b", "c")]
    support = core.query_model(model, "HETERO:OV,CPU")
    assert [support[name] for name in names] == ["OV.CPU"] * len(names), support.refusals
    rng = np.random.default_rng(len(body))
    p = rng.integers(-limit, limit, 40, endpoint=True)
    q = np.where(rng.random(40) < 0.5, p + rng.integers(-1, 2, 40), -p)
    feeds = {"p": p, "q": q, "r": rng.integers(1, 99, 40)}
    actual = core.compile_model(model, "HETERO:OV,CPU")(feeds)["y"]
    np.testing.assert_array_equal(actual, core.compile_model(model, "CPU")(feeds)["y"])


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integers_that_round_to_equal_floats_are_refused(core, kind):
    model = parsed(f"({kind}[N] a, {kind}[N] b) => (bool[N] y) {{y = Less(a, b)}}")
    assert dict(core.query_model(model, "HETERO:OV,CPU")) == {"y": "CPU"}
    a = np.array([2**26, 2**30, 5], kind)
    actual = core.compile_model(model, "HETERO:OV,CPU")({"a": a, "b": a + 1})["y"]
    assert actual.tolist() == [True] * 3
    small = parsed(f"({kind}[N] a) => (bool[N] y) <{kind} b = {{7}}> {{y = Less(a, b)}}")
    device = core.query_model(small, "HETERO:OV,CPU")["y"]
    assert device == ("OV.CPU" if kind == "int32" else "CPU")


def test_decoder_with_open_lengths_runs_on_openvino_alone(core):
    """The model computes positions with Range, shapes from products of lengths, and a mask."""
    model = read_model(SMALL_NETWORKS["small-gpt"]())
    assert set(core.query_model(model, "HETERO:OV,CPU").values()) == {"OV.CPU"}
    compiled = core.compile_model(
        model, "HETERO:OV,CPU", affinity={"op:Shape": "CPU", "op:Range": "CPU"}
    )
    assert {s.device for s in compiled.subgraphs} == {"OV.CPU", "CPU"}
    ids = {"ids": np.arange(14).reshape(2, 7)}
    want = core.compile_model(model, "CPU")(ids)[0]
    np.testing.assert_allclose(compiled(ids)[0], want, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(core.compile_model(model, "OV")(ids)[0], want, rtol=1e-3, atol=1e-4)


def test_run_rejects_axis_beyond_the_proven_length(plugin):
    model = parsed(
        "(float[N] x, float[M] z) => (bool[1] y) {a = Shape(x) b = Shape(z) y = Less(a, b)}"
    )
    compiled = plugin.compile_model(model)
    again = plugin.import_model(compiled.export_model(), model)
    for run in (compiled, again):
        assert run([np.zeros(3), np.zeros(4)])["y"].tolist() == [True]
        with pytest.raises(hetero.InferenceError, match=r"up to 4194304, got \[4194305\].*Reshape"):
            run([np.zeros(3), np.zeros(2**22 + 1)])


#: Positions computed from a mask, as in decoders, and ids without any bound.
MASKED = parsed(
    "(int64[B,N] mask, int64[N] ids) => (int64[B,N] y, int64[N] next) <int64 one = {1}> "
    "{a = CumSum(mask, one) b = Sub(a, one) y = Mul(b, mask) next = Add(ids, one)}"
)


def test_run_on_openvino_alone_rejects_large_inputs(core):
    mask = np.array([[1, 1, 0, 1], [0, 0, 1, 1]])
    feeds = {"mask": mask, "ids": np.array([2**24, 5, -(2**24), 0])}
    compiled = core.compile_model(MASKED, "OV")
    again = core.import_model(compiled.export_model())
    for run in (compiled, again):
        np.testing.assert_array_equal(run(feeds)["y"], (mask.cumsum(1) - 1) * mask)
        np.testing.assert_array_equal(run(feeds)["next"], feeds["ids"] + 1)
        with pytest.raises(hetero.InferenceError, match=r"'mask': .* got values from 0 to 2\d{9};"):
            run(feeds | {"mask": mask * 2**31})
        with pytest.raises(hetero.InferenceError, match=r"'ids': .* got values from -2\d{9} to 0;"):
            run(feeds | {"ids": np.array([-(2**31) - 7, 0, 0, 0])})


def test_priority_list_prefers_devices_without_checks(core):
    assert set(core.query_model(MASKED, "HETERO:OV,CPU").values()) == {"CPU"}
    checked = {"OV_NARROW_INTEGERS": "CHECKED"}
    assert set(core.query_model(MASKED, "HETERO:OV,CPU", checked).values()) == {"OV.CPU"}
    unsupported = core.query_model(MASKED, "OV", {"OV_NARROW_INTEGERS": False}).unsupported
    assert {r["OV.CPU"].remedy for r in unsupported.values()} == {"OV_NARROW_INTEGERS=CHECKED"}


def test_model_with_hidden_weights_runs(plugin):
    weight = onnx.numpy_helper.from_array(np.ones((300, 40), np.float32), "w")
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,300] x, float[300,40] w)'
        " => (float[N,40] y) {y = MatMul(x, w)}"
    )
    del proto.graph.input[1]
    proto.graph.initializer.append(weight)
    model = read_model(proto)
    assert not plugin.query_model(model).unsupported
    result = plugin.compile_model(model)(np.ones((2, 300), np.float32))["y"]
    np.testing.assert_allclose(result, np.full((2, 40), 300), rtol=1e-6)


def test_squeezenet_is_supported_and_shows_fusions(plugin):
    model = read_model("light:squeezenet")
    assert not plugin.query_model(model).unsupported
    subject = PluginSubject(plugin)
    compiled = subject.compile_model(model, {"INFERENCE_NUM_THREADS": 1, "PERF_COUNT": True})
    compiled(light_model_inputs(model))
    nodes = compiled.get_runtime_model().nodes
    covered = [node.metadata["originalLayersNames"].split(",") for node in nodes]
    kinds = [{model.nodes[model.index_of[n]].op_type for n in names if n} for names in covered]
    assert any({"Conv", "Relu"} <= kind for kind in kinds)
    timed = [n for n in nodes if n.metadata["execTimeMcs"] != "not_executed"]
    assert len(timed) > 30


def test_profiled_run_records_node_times(plugin):
    compiled = plugin.compile_model(parsed("(float[2] x) => (float[2] y) {y = Neg(x)}"))
    context = RunContext(profile=True)
    compiled.run([np.float32([1, 2])], context)
    assert set(context.node_times_s) <= {node.name for node in compiled.executed_nodes()}
    assert context.node_times_s


def test_plugin_has_properties_of_openvino(plugin):
    assert plugin.get_property("EXECUTION_MODE_HINT") == "ACCURACY"
    assert plugin.get_property("DEVICE_TYPE", "CPU") == "INTEGRATED"
    assert "EXPORT_IMPORT" in plugin.get_property("OPTIMIZATION_CAPABILITIES", "CPU")
    assert plugin.properties["ENABLE_HYPER_THREADING"].type is bool
    assert "THROUGHPUT" in plugin.properties["PERFORMANCE_HINT"].choices
    with pytest.raises(PropertyError, match="LATENCY"):
        plugin.set_property({"PERFORMANCE_HINT": "SLOW"})
    with pytest.raises(UnknownDeviceError, match="CPU"):
        plugin.get_property("DEVICE_TYPE", "GPU.7")


def test_compile_options_are_passed_to_openvino(plugin, monkeypatch):
    from hetero.devices.openvino import plugin as module

    passed_options = {}

    class Core:
        def compile_model(self, source, device, options):
            passed_options.update(options, device=device)
            return real_core.compile_model(source, device, options)

    real_core = module.core()
    monkeypatch.setattr(module, "core", Core)
    model = parsed("(float[2] x) => (float[2] y) {y = Neg(x)}")
    options = {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "throughput"}
    plugin.compile_model(model, options).close()
    expected = options | {"PERFORMANCE_HINT": "THROUGHPUT", "EXECUTION_MODE_HINT": "ACCURACY"}
    assert passed_options == expected | {
        "device": "CPU",
        "PERF_COUNT": False,
        "ENABLE_CPU_PINNING": False,
    }


def test_supported_properties_are_read_once(plugin, monkeypatch):
    import openvino

    """Each read of SUPPORTED_PROPERTIES leaks memory in OpenVINO."""
    names = []
    get_property = openvino.Core.get_property

    def recording_get_property(core, device, name):
        names.append(name)
        return get_property(core, device, name)

    model = parsed("(float[2] x) => (float[2] y) {y = Relu(x)}")
    plugin.compile_model(model)
    monkeypatch.setattr(openvino.Core, "get_property", recording_get_property)
    plugin.compile_model(model)
    assert plugin.full_name("CPU")
    assert names
    assert "SUPPORTED_PROPERTIES" not in names


def test_throughput_hint_sets_the_maximum_of_streams(plugin):
    model = parsed("(float[2] x) => (float[2] y) {y = Neg(x)}")
    maximum = plugin.get_property("RANGE_FOR_STREAMS", "CPU")[-1]
    for options, streams in (({}, maximum), ({"NUM_STREAMS": 1}, 1)):
        compiled = plugin.compile_model(model, {"PERFORMANCE_HINT": "THROUGHPUT", **options})
        assert compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == streams


def test_import_rejects_damaged_blob(plugin):
    model = parsed("(float[2] x) => (float[2] y) {y = Neg(x)}")
    payload = plugin.compile_model(model).export_model()
    tensors = {"#blob": np.zeros(64, np.uint8)}
    with pytest.raises(BlobError, match="incompatible"):
        plugin.import_model(Payload(payload.header, tensors), model)


def test_threads_share_compiled_model(plugin):
    compiled = plugin.compile_model(
        parsed("(float[N] x) => (float[N] y) {y = Neg(x)}"), {"NUM_STREAMS": 3}
    )
    wrong_results = []

    def work(k):
        for n in range(1, 30):
            x = np.full(n, k, np.float32)
            if not np.array_equal(compiled.run([x])[0], -x):
                wrong_results.append((k, n))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong_results == []


@pytest.fixture(scope="module")
def core(plugin):
    with hetero.Core(
        executor="inprocess", plugins=["hetero.devices.openvino.plugin:OpenVinoPlugin"]
    ) as core:
        yield core


def test_model_split_between_openvino_and_cpu(core):
    assert "OV.CPU" in core.available_devices
    model = parsed(
        "(float[2,3] x) => (float[2,3] y, int64[2] s)"
        " {a = Neg(x) b = Relu(a) c = Exp(b) y = Add(c, x) s = Shape(y)}"
    )
    x = np.float32([[1, -2, 3], [-4, 5, -6]])
    want = np.exp(np.maximum(-x, 0)) + x
    compiled = core.compile_model(model, "HETERO:OV.CPU,CPU", affinity={"b": "CPU"})
    assert [s.device for s in compiled.subgraphs] == ["OV.CPU", "CPU", "OV.CPU"]
    np.testing.assert_allclose(compiled(x)["y"], want, rtol=1e-5)
    again = core.import_model(compiled.export_model())
    np.testing.assert_allclose(again(x)["y"], want, rtol=1e-5)
    assert again(x)["s"].tolist() == [2, 3]


def test_computed_sizes_keep_the_rank(core):
    x = np.arange(-12, 12, dtype=np.float32).reshape(4, 2, 3)
    compiled = core.compile_model(flattening(), "OV")
    np.testing.assert_array_equal(compiled(x)["y"], np.maximum(-x.reshape(4, 6), 0))


def test_query_reports_refusal_of_node_on_other_device(core):
    model = parsed("(float[2,0] x) => (float[2,1] y) {a = Neg(x) y = ReduceMax<axes = [1]>(a)}")
    support = core.query_model(model, "HETERO:OV,CPU")
    assert dict(support) == {"a": "OV.CPU", "y": "CPU"}
    assert "extreme float" in support.refusals["y"]["OV.CPU"].message


def test_copy_of_strided_input_outlives_the_run(plugin, monkeypatch):
    program = sys.modules["hetero.devices.openvino.program"]

    class SpoilingArray(program._Writable):
        def __del__(self):
            self._array[...] = np.nan

    monkeypatch.setattr(program, "_Writable", SpoilingArray)
    x = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)
    model = parsed("(float[48, 64] x) => (float[48, 64] y) {y = Abs(x)}")
    compiled = plugin.compile_model(model)
    (y,) = compiled.run([x.T])
    np.testing.assert_array_equal(y, x.T)


def test_constants_that_replace_hidden_weights_keep_memory(plugin):
    """The query reads the constant: it would crash if the memory were free by then."""
    from hetero.devices.openvino.query import _replace_hidden_weights
    from hetero.devices.openvino.runtime import core

    model = parsed("(float[5000, 8] v0, int64[3] v1) => (float[3, 8] y) {y = Gather(v0, v1)}")
    converted_model = core().read_model(model.to_bytes())
    _replace_hidden_weights(converted_model, frozenset({"v0"}))
    later_arrays = [np.ones((5000, 8), np.float32) for _ in range(50)]
    contents = [
        np.asarray(operator.data)
        for operator in converted_model.get_ops()
        if operator.get_type_name() == "Constant" and operator.output(0).shape == (5000, 8)
    ]
    assert len(contents) == 1
    assert not contents[0].any(), f"{len(later_arrays)} later arrays took its memory"


def test_import_sends_no_usage_statistics(plugin):
    """OpenVINO's import sends them from a fork of the process, unless its module is missing."""
    program = """
import multiprocessing.process
multiprocessing.process.BaseProcess.start = lambda process: print("started", process)
import hetero.devices.openvino.plugin
from openvino.tools.ovc import telemetry_utils
print(telemetry_utils.tm.__name__)
"""
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert process.stdout == "openvino.tools.ovc.telemetry_stub\n"
