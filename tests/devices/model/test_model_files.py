"""Unusual and hostile models through every device: correct results, or an error and no crash."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import hetero
from hetero.devices import read_model
from hetero.devices.errors import ModelError, UnsupportedNodesError
from hetero.devices.model.type_inference import infer_types
from tests.support.core_fixtures import core_fixture

DEVICES = ("CPU", "ORT", "HETERO:CPU,ORT", "HETERO:ORT,CPU")


core = core_fixture("module")


def parse(text: str, opsets: str = '"": 17') -> onnx.ModelProto:
    return onnx.parser.parse_model(f"<ir_version: 8, opset_import: [{opsets}]>\n{text}")


def run_onnxruntime(path: Path, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray] = session.run(None, inputs)
    return outputs


def alternating(model: hetero.Model, device: str) -> dict[str, str] | None:
    """Return pins that cut the model after each node, if `device` is a list of two devices."""
    names = device.partition(":")[2].split(",")
    return {n: names[i % 2] for i, n in enumerate(model.node_names)} if len(names) > 1 else None


# External tensors of subgraphs, Constant nodes and functions.

MODELS = {
    "body": """g (bool c, float[64] x) => (float[64] y) {
        t = Neg(x)
        u = If(c) <then_branch = b () => (float[64] o) <float[64] w = {W}> { o = Add(t, w) },
                   else_branch = b () => (float[64] o) {
                       k = Constant<value = float[64] {W}>() o = Mul(t, k) }>
        y = Abs(u)
    }""",
    "constant": """g (bool c, float[64] x) => (float[64] y) {
        w = Constant<value = float[64] {W}>()
        t = Mul(x, w)
        y = Where(c, t, w)
    }""",
    "function": """g (bool c, float[64] x) => (float[64] y) { t = own.F(x) y = Where(c, t, x) }
        <domain: "own", opset_import: ["": 17]>
        F (a) => (o) { w = Constant<value = float[64] {W}>() o = Mul(a, w) }""",
}


def write(path: Path, name: str, seed: int) -> None:
    """Write a model with random weights in external files in the same folder."""
    weights = np.random.default_rng(seed).standard_normal(64, np.float32).tolist()
    text = MODELS[name].replace("{W}", "{" + ", ".join(map(str, weights)) + "}")
    model = parse(text, '"": 17, "own": 1')
    for i, tensor in enumerate(tensors(model)):
        array = onnx.numpy_helper.to_array(tensor)
        (path.parent / f"w{i}").write_bytes(array.tobytes())
        fields = {"name": tensor.name, "data_type": tensor.data_type, "dims": tensor.dims}
        tensor.CopyFrom(TensorProto(**fields, data_location=TensorProto.EXTERNAL))
        tensor.external_data.add(key="location", value=f"w{i}")
    path.write_bytes(model.SerializeToString())


def tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    attributes = [
        a
        for nodes in (model.graph.node, *(f.node for f in model.functions))
        for n in nodes
        for a in n.attribute
    ]
    for attribute in attributes:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield from attribute.g.initializer
            yield from (a.t for n in attribute.g.node for a in n.attribute)
        else:
            yield attribute.t


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_external_tensor_of_node_equals_onnxruntime(core, tmp_path, name, device):
    path = tmp_path / "m.onnx"
    write(path, name, 0)
    model = core.read_model(path)
    feeds = [
        {"c": np.asarray(c), "x": np.linspace(-1, 1, 64, dtype=np.float32)} for c in (True, False)
    ]
    expected = [run_onnxruntime(path, inputs) for inputs in feeds]
    for file in tmp_path.iterdir():
        file.unlink()
    compiled = core.compile_model(model, device, affinity=alternating(model, device))
    imported = core.import_model(compiled.export_model())
    for inputs, outputs in zip(feeds, expected, strict=True):
        for program in (compiled, imported):
            np.testing.assert_allclose(program(inputs)[0], outputs[0], rtol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_changed_external_tensor_misses_the_cache(core, tmp_path, name):
    path, config = tmp_path / "m.onnx", {"CACHE_DIR": str(tmp_path / "cache")}
    hits = []
    for seed in (0, 1, 0):
        write(path, name, seed)
        compiled = core.compile_model(path, "CPU", config)
        x = np.linspace(-1, 1, 64, dtype=np.float32)
        inputs = {"c": np.asarray(True), "x": x}
        expected = run_onnxruntime(path, inputs)
        np.testing.assert_allclose(compiled(inputs)[0], expected[0], rtol=1e-6)
        hits.append(compiled.get_property("LOADED_FROM_CACHE"))
    assert hits == [False, False, True]


# Loops with results of unknown rank.


@pytest.mark.parametrize("device", DEVICES)
def test_loop_result_of_undeclared_rank_equals_onnxruntime(core, tmp_path, device):
    proto = parse("""g (float[2] x) => (float y, float z) <int64 n = {3}> {
        y = Loop(n, "", x) <body = b (int64 i, bool c, float v) => (bool d, float o) {
            one = Constant<value_float = 1.0>() d = Identity(c) o = Add(v, one) }>
        z = Neg(y)
    }""")
    for port in (*proto.graph.output, proto.graph.node[0].attribute[0].g.input[2]):
        port.type.tensor_type.ClearField("shape")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    model = core.read_model(path)
    compiled = core.compile_model(model, device, affinity=alternating(model, device))
    inputs = {"x": np.float32([1, 2])}
    for output, expected in zip(
        compiled(inputs).values(), run_onnxruntime(path, inputs), strict=True
    ):
        np.testing.assert_array_equal(output, expected)
    assert [port.shape for port in compiled.outputs] == [None, None]


# Values that crash or stall ONNX's native shape inference.


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (-1, 2**31 - 1, 2**31 - 1),
        (0, 2**63 - 1, 2**63 - 1),
        # onnx's shape inference takes seconds for this one.
        pytest.param(2, -(2**63), -(2**63), marks=pytest.mark.slow),
        (-1, -(2**31), -(2**31)),
        (1, 3, 2**31),
    ],
)
def test_slice_with_huge_step_equals_numpy(core, tmp_path, device, start, end, step):
    bounds = {"s": start, "e": end, "a": 0, "t": step}
    weights = ", ".join(f"int64[1] {name} = {{{value}}}" for name, value in bounds.items())
    model = core.read_model(
        parse(
            f"g (int64[3] x) => (int64[n] y) <{weights}> "
            "{ v = Abs(x) w = Slice(v, s, e, a, t) y = Neg(w) }"
        )
    )
    compiled = core.compile_model(model, device, affinity=alternating(model, device))
    x = np.int64([5, 6, 7])
    np.testing.assert_array_equal(compiled({"x": x})[0], -x[start:end:step])


def test_model_that_crashes_onnx_inference_raises(core):
    text = """g (float[4,4] x, int64[3] i) => (float y) {
        y = GatherND<batch_dims = -2147483649>(x, i)
    }"""
    with pytest.raises(ModelError, match="crashes or does not terminate"):
        core.compile_model(parse(text), "CPU")


def test_inference_of_long_vector_stays_within_memory_limit():
    graph = infer_types(parse("g (float[2147483647] x) => (float[n] y) { t = Abs(x) y = Neg(t) }"))
    shape = graph.value_info[0].type.tensor_type.shape
    assert [d.dim_value for d in shape.dim] == [2**31 - 1]


@pytest.mark.parametrize(
    ("graph", "name"), [("main_graph", "encoder"), ("", "encoder"), ("g", "g")]
)
def test_default_graph_name_becomes_file_name(core, tmp_path, graph, name):
    proto = parse("g (float[N] x) => (float[N] y) {y = Relu(x)}")
    proto.graph.name = graph
    onnx.save(proto, tmp_path / "encoder.onnx")
    model = read_model(tmp_path / "encoder.onnx")
    assert model.name == name
    assert read_model(proto).name == (graph or "graph")
    assert model.content_hash == read_model(proto).content_hash
    with pytest.raises(UnsupportedNodesError, match=f"model '{name}'"):
        core.compile_model(model, "NULL", {"NULL_DYNAMIC_SHAPES": False})


def test_external_length_of_zero_is_the_rest_of_the_tensor(tmp_path):
    model = parse("g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}> {y = Add(x, w)}")
    (weights,) = model.graph.initializer
    (tmp_path / "w.bin").write_bytes(np.arange(1, 5, dtype=np.float32).tobytes())
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", "0")):
        weights.external_data.add(key=key, value=value)
    onnx.save(model, tmp_path / "model.onnx")
    (array,) = (c.array for c in read_model(tmp_path / "model.onnx").constants.values())
    np.testing.assert_array_equal(array, [1, 2, 3, 4])


def test_openvinos_own_format_is_named(tmp_path):
    path = tmp_path / "model.xml"
    path.write_text('<?xml version="1.0"?>\n<net name="g" version="11"><layers/></net>')
    with pytest.raises(ModelError, match=r"OpenVINO's IR format.*Read the ONNX model"):
        read_model(path)


def test_onnxruntimes_own_format_is_named(tmp_path):
    path = tmp_path / "model.ort"
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.add_session_config_entry("session.save_model_format", "ORT")
    model = parse("g (float[4] x) => (float[4] y) {y = Neg(x)}")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    with pytest.raises(ModelError, match="ONNX Runtime's own format"):
        read_model(path)
