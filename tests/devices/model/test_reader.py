"""Reading models: external weights, invalid models, pickling and lazy loading."""

import copy
import io
import pickle
import threading

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero.devices import read_model
from hetero.devices.errors import ExternalDataError, ModelError, ModelNotFoundError
from hetero.devices.model.constant_nodes import lift_constant_nodes
from hetero.devices.model.element_type import DTYPES
from hetero.devices.model.lazy_model import LazyModel
from hetero.devices.model.model import Constant

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


def parse(text):
    return onnx.parser.parse_model(HEADER + text)


def external(element_type, dims, location="w.bin", **entries):
    """Return the weight `w` as a tensor with external contents."""
    tensor = TensorProto(name="w", dims=dims, data_type=element_type)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def weight_file(folder, tensor):
    """Write a model with one weight, which is also its output."""
    model = parse("g () => (float w) { }")
    model.graph.initializer.append(tensor)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (external(TensorProto.STRING, [8]), "strings must be inline"),
        (external(0, [8]), "element type 0"),
        (external(99, [8]), "element type 99"),
        (external(TensorProto.FLOAT, [2**32, 2**32]), "the file has 64"),
        (external(TensorProto.FLOAT, [2**62, 4], length=64), "bytes for shape"),
        (external(TensorProto.FLOAT, [-16]), "sizes of 0 or more"),
        (external(TensorProto.FLOAT, [-1, -16]), "sizes of 0 or more"),
        (external(TensorProto.FLOAT, [2**62, 2**62, 0]), "do not match shape"),
        (external(TensorProto.FLOAT, [16], offset=-64), "the file has 64"),
        (external(TensorProto.FLOAT, [16], offset=2**70), "the file has 64"),
        (external(TensorProto.FLOAT, [16], length=-64), "bytes for shape"),
        (external(TensorProto.FLOAT, [16], length=2**70), "bytes for shape"),
        (external(TensorProto.FLOAT, [16], offset="1e1"), "not a number"),
        (external(TensorProto.FLOAT, [16], "n" * 5000), "cannot be opened"),
        (external(TensorProto.FLOAT, [16], "loop.bin"), "cannot be opened|does not exist"),
    ],
)
def test_invalid_external_weight_raises(tmp_path, tensor, message):
    (tmp_path / "w.bin").write_bytes(bytes(range(1, 65)))
    (tmp_path / "loop.bin").symlink_to(tmp_path / "loop.bin")
    with pytest.raises(ModelError, match=message):
        read_model(weight_file(tmp_path, tensor))


def test_weight_beside_the_target_of_a_linked_model(tmp_path):
    """Download caches link a model's file to another folder."""
    links, files = tmp_path / "links", tmp_path / "files"
    links.mkdir()
    files.mkdir()
    (files / "w.bin").write_bytes(bytes(64))
    for location, message in (("w.bin", ""), ("../files/w.bin", "inside the model's folder")):
        path = weight_file(files, external(TensorProto.FLOAT, [16], location))
        (links / "w.bin").unlink(missing_ok=True)
        (links / "w.bin").symlink_to(files / "w.bin")
        (links / "m.onnx").unlink(missing_ok=True)
        (links / "m.onnx").symlink_to(path)
        if message:
            with pytest.raises(ModelError, match=message):
                read_model(links / "m.onnx")
        else:
            assert read_model(links / "m.onnx").constants["w"].array.shape == (16,)


@pytest.mark.sampled(4, "offset", "element_type")
@pytest.mark.parametrize("offset", [0, 1, 3, 8])
@pytest.mark.parametrize("element_type", sorted(set(DTYPES) - {TensorProto.STRING}))
def test_external_weight_equals_inline_weight(tmp_path, element_type, offset):
    array = np.float32([[1, 1, 2], [2, 1, 1]]).astype(DTYPES[element_type])
    inline = numpy_helper.from_array(array, "w")
    (tmp_path / "w.bin").write_bytes(bytes(offset) + inline.raw_data + b"more")
    path = weight_file(tmp_path, external(element_type, [2, 3], offset=offset))
    weight = read_model(path).constants["w"].array
    assert weight.dtype == array.dtype
    assert weight.flags.aligned
    assert not weight.flags.writeable
    np.testing.assert_array_equal(weight, array)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.int4, ml_dtypes.float6_e2m3fn])
def test_model_saved_with_external_weights_round_trips(tmp_path, monkeypatch, dtype):
    array = np.resize(np.arange(4), 5000).astype(np.float32).astype(dtype)
    model = read_model(parse("g () => (float w) <float w = {0}> { }"))
    model = model.replace(constants={"w": Constant("w", array)})
    monkeypatch.setattr("hetero.devices.model.model.PROTOBUF_NBYTES", 5000)
    model.save(tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx.data").stat().st_size == len(numpy_helper.from_array(array).raw_data)
    np.testing.assert_array_equal(read_model(tmp_path / "m.onnx").constants["w"].array, array)


def test_saved_model_has_its_optional_inputs(tmp_path):
    model = read_model(
        parse("g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> {\ny = Add(x, w) }")
    )
    model.save(tmp_path / "m.onnx")
    copy = read_model(tmp_path / "m.onnx")
    assert copy.optional_inputs == model.optional_inputs
    assert [port.name for port in copy.optional_inputs] == ["w"]
    assert copy.content_hash == model.content_hash
    assert pickle.loads(pickle.dumps(model)).optional_inputs == model.optional_inputs


TENSOR = numpy_helper.from_array(np.float32([1, 2]), "w")


def constant(**attributes):
    model = parse("g () => (float[N] y) { k = Constant<value_float=1.0>() y = Identity(k) }")
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(
        helper.make_attribute(name, value) for name, value in attributes.items()
    )
    return model


def with_element_type(number, place):
    model = parse("""g (bool c, float[2] x) => (float[2] y)
        <float[2] w = {1, 2}, float[2] t> {
        t = Add(x, w)
        y = If(c) <then_branch = b () => (float[2] o)
                   <float[2] k = {3, 4}> { o = Add(t, k) },
                   else_branch = b () => (float[2] o) { o = Constant<value = float[2] {1, 2}>() }>
    }""")
    graph, (then, other) = model.graph, (a.g for a in model.graph.node[1].attribute)
    {
        "input": graph.input[1].type.tensor_type,
        "output": graph.output[0].type.tensor_type,
        "value_info": graph.value_info[-1].type.tensor_type,
        "initializer": graph.initializer[0],
        "body": then.initializer[0],
        "attribute": other.node[0].attribute[0].t,
    }[place].__setattr__(
        "data_type" if place in ("initializer", "body", "attribute") else "elem_type", number
    )
    return model


@pytest.mark.parametrize("number", [0, 77])
@pytest.mark.parametrize("place", ["initializer", "body", "attribute"])
def test_tensor_of_undefined_element_type_raises(place, number):
    with pytest.raises(ModelError, match=f"ONNX does not define element type {number}"):
        read_model(with_element_type(number, place))


@pytest.mark.parametrize("place", ["input", "output", "value_info"])
def test_value_of_undefined_element_type_raises(place):
    with pytest.raises(ModelError, match="ONNX does not define element type 77"):
        read_model(with_element_type(77, place))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (constant(), "exactly one value"),
        (constant(value=TENSOR, value_float=2.0), "exactly one value"),
        (constant(colour="red"), "exactly one value"),
        (constant(value=TensorProto(data_type=1, dims=[3], raw_data=b"abc")), "do not match"),
        (constant(value=TensorProto(data_type=1, dims=[-1], raw_data=bytes(8))), "0 or more"),
        (constant(value=TensorProto(data_type=8, dims=[1], string_data=[b"\xff"])), "do not match"),
    ],
    ids=["none", "two", "unknown", "short", "negative", "not_utf8"],
)
def test_invalid_constant_node_raises(model, message):
    with pytest.raises(ModelError, match=message):
        lift_constant_nodes(read_model(model))


@pytest.mark.parametrize("name", ["g", "x", "t1", "Relu"])
def test_name_that_is_not_utf8_raises(name):
    data = parse("g (float[2] x) => (float[2] t1) { t1 = Relu(x) }").SerializeToString()
    with pytest.raises(ModelError, match="is not UTF-8"):
        read_model(data.replace(name.encode(), b"\xff" * len(name)))


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ("(float[2] x) => ()", "no outputs"),
        ("(float[2] x, float[2] x) => (float[2] y)", "unique input names"),
    ],
    ids=["no_outputs", "duplicate_inputs"],
)
def test_invalid_ports_raise(ports, message):
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g {ports} {{ y = Abs(x) }}'
    )
    with pytest.raises(ModelError, match=message):
        read_model(model)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("o = Relu(a) p = Relu(q)", "reads"),
        ("p = Relu(o) o = Relu(a)", "topological order"),
        ("a = Relu(a) o = Relu(a)", "both write 'a'"),
        ("p = Relu(a)", "no node computes output 'o'"),
    ],
)
def test_invalid_function_raises(text, message):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]>\n'
        "g (float[2] x) => (float[2] y) { y = own.F(x) }\n"
        f'<domain: "own", opset_import: ["": 17]>\nF (a) => (o) {{ {text} }}'
    )
    with pytest.raises(ModelError, match=message):
        read_model(model)


@pytest.mark.parametrize("wrap", [io.BytesIO, lambda data: memoryview(data), bytearray])
def test_read_model_accepts_open_files_and_buffers(wrap):
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert read_model(wrap(model.SerializeToString())).node_names == ("y",)


def test_invalid_source_raises(tmp_path):
    for source in (3, io.StringIO("text")):
        with pytest.raises(TypeError, match="a path, bytes, a binary file"):
            read_model(source)
    for path in ("n" * 5000, tmp_path):
        with pytest.raises(ModelNotFoundError):
            read_model(path)


def test_size_of_minus_one_is_unknown():
    model = parse("g (float[2] x) => (float[2] y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert read_model(model).inputs[0].shape == (None,)


@pytest.mark.parametrize("is_lazy", [False, True])
def test_model_pickles_and_copies(tmp_path, is_lazy):
    tensor = external(TensorProto.FLOAT, [16])
    (tmp_path / "w.bin").write_bytes(bytes(64))
    model = read_model(weight_file(tmp_path, tensor))
    original = model
    if is_lazy:
        original = LazyModel(model.name, model.inputs, model.outputs, lambda: model)
    assert copy.deepcopy(original).content_hash == original.content_hash
    unpickled = pickle.loads(pickle.dumps(original))
    assert unpickled.content_hash == model.content_hash
    assert not unpickled.constants["w"].array.flags.writeable


def test_lazy_model_loads_once_for_concurrent_threads():
    model = read_model(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"))
    loading, release, loads = threading.Event(), threading.Event(), []

    def load():
        loads.append(1)
        loading.set()
        assert release.wait(300)
        return model

    lazy = LazyModel(model.name, model.inputs, model.outputs, load)
    values = []
    first = threading.Thread(target=lambda: values.append(lazy.constants))
    second = threading.Thread(target=lambda: values.append(lazy.nodes))
    first.start()
    assert loading.wait(300)
    second.start()
    second.join(0.05)  # gives the second thread time to call `load`
    release.set()
    for thread in (first, second):
        thread.join(300)
    assert loads == [1]
    assert len(values) == 2


def test_lazy_model_raises_load_error_on_each_access():
    model = read_model(parse("g (float[2] x) => (float[2] y) { y = Relu(x) }"))

    def load():
        raise ExternalDataError("no such file")

    lazy = LazyModel(model.name, model.inputs, model.outputs, load)
    for _ in range(2):
        with pytest.raises(ExternalDataError, match="no such file"):
            _ = lazy.constants


@pytest.mark.parametrize("version", [-1, 2**31, 2**63 - 1])
@pytest.mark.parametrize("place", ["model", "function"])
def test_invalid_opset_version_raises(place, version):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "own": 1]>\n'
        "g (float[2] x) => (float[2] y) { y = own.F(x) }\n"
        '<domain: "own", opset_import: ["": 17, "other": 1]>\nF (a) => (o) { o = Relu(a) }'
    )
    imports = model.opset_import if place == "model" else model.functions[0].opset_import
    imports[1].version = version
    with pytest.raises(ModelError, match=f"opset {version}"):
        read_model(model)


def test_weight_shape_overrides_declared_shape():
    """ONNX Runtime's model builder also declares weights as values, without a shape."""
    proto = parse("g (int64[N] i) => (float[N, 3] y) <float w> {y = Gather(w, i)}")
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((5, 3), np.float32), "w"))
    model = read_model(proto)
    assert (model.spec("w").shape, model.spec("y").shape) == ((5, 3), ("N", 3))


def test_light_model_has_the_name_that_was_requested():
    """Its graph has another name, ``squeezenet_old``."""
    assert read_model("light:squeezenet").name == "squeezenet"


def test_size_limit_is_the_largest_size(tmp_path, monkeypatch):
    data = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }").SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    monkeypatch.setattr("hetero.devices.model.reader.PROTOBUF_NBYTES", len(data))
    for source in (data, path):
        assert read_model(source).node_names == ("y",)
    monkeypatch.setattr("hetero.devices.model.reader.PROTOBUF_NBYTES", len(data) - 1)
    for source in (data, path):
        with pytest.raises(ModelError, match=str(len(data) - 1)):
            read_model(source)


@pytest.mark.parametrize("field", ["graph", "opset_import", "both"])
def test_model_without_graph_or_without_opset_and_nodes_is_refused(field):
    model = parse("g (float[2] x) => (float[2] y) { y = Neg(x) }")
    if field != "opset_import":
        model.ClearField("graph")
    else:
        del model.graph.node[:]
    if field != "graph":
        model.ClearField("opset_import")
    with pytest.raises(ModelError, match="not an ONNX model"):
        read_model(model.SerializeToString() or b"\0")
