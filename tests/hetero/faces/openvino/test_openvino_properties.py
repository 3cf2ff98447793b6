"""Properties of OpenVINO's API: values of calls, and blobs and models as hints."""

from operator import attrgetter

import numpy as np
import onnx
import pytest

import hetero.openvino as face
from hetero.errors import BlobError, PropertyError

ov = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

#: Larger than the constants that a blob always contains.
WEIGHTS = np.arange(64 * 64, dtype=np.float32).reshape(64, 64) / 100


@pytest.fixture(scope="module")
def core():
    with face.Core("inprocess") as core:
        yield core


def matmul() -> bytes:
    x, y = (onnx.helper.make_tensor_value_info(n, 1, ["N", 64]) for n in "xy")
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = onnx.numpy_helper.from_array(WEIGHTS, "w")
    graph = onnx.helper.make_graph([node], "matmul", [x], [y], initializer=[weights])
    opset = [onnx.helper.make_opsetid("", 18)]
    data: bytes = onnx.helper.make_model(
        graph, opset_imports=opset, ir_version=8
    ).SerializeToString()
    return data


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("enable_profiling", True),
        ("enable_profiling", 0),
        ("cache_dir", "./cache"),
        ("auto_batch_timeout", np.uint32(37)),
        ("inference_num_threads", -8),
        ("weights_path", "./model.bin"),
        ("hint.num_requests", 8),
        ("hint.activations_scale_factor", 0.5),
        ("device.id", "0"),
        ("streams.num", 42),
    ],
)
def test_value_of_a_pair(name, value):
    pairs = [attrgetter(name)(module.properties)(value) for module in (face, ov)]
    assert pairs[0][0] == pairs[1][0]
    assert pairs[0][1].value == pairs[1][1].value == value
    assert pairs[0] == (pairs[1][0], value)


def test_pairs_are_options(core):
    names = face.properties
    hints = names.hint
    core.set_property(names.cache_dir(""))
    core.set_property("CPU", names.inference_num_threads(1))
    options = [
        names.enable_profiling(True),
        hints.num_requests(2),
        names.device.priorities("ORT", "CPU"),
        names.device.properties({"ORT": {names.streams.num: 2}}),
    ]
    compiled = core.compile_model(matmul(), "HETERO", dict(options))
    assert compiled.get_property("PERF_COUNT") is True
    assert compiled.get_property("PERFORMANCE_HINT_NUM_REQUESTS") == 2
    assert compiled.get_property("MULTI_DEVICE_PRIORITIES") == ["ORT", "CPU"]
    assert compiled.get_property("DEVICE_PROPERTIES")["ORT"]["NUM_STREAMS"] == 2
    # On one device, the hint needs no measurement of costs.
    hint = hints.performance_mode(hints.PerformanceMode.LATENCY)
    compiled = core.compile_model(matmul(), "CPU", dict([hint]))
    assert compiled.get_property("PERFORMANCE_HINT") == "LATENCY"
    with pytest.raises(PropertyError, match="NUM_STREAMS"):
        core.set_property("CPU", {"NUM_STREAMS": names.cache_dir("x")[1]})


def test_device_type_is_a_member(core):
    for module, own_core in ((face, core), (ov, ov.Core())):
        device = module.properties.device
        assert own_core.get_property("CPU", device.type) == device.Type.INTEGRATED


def test_model_of_a_weightless_blob(core):
    hint = face.properties.hint
    model = core.read_model(matmul())
    x = np.ones((1, 64), np.float32)
    compiled = core.compile_model(model, "CPU")
    blob = compiled.export_model(weightless=True)
    for option in ({hint.model: model}, dict([hint.model(model)])):
        again = core.import_model(blob, "CPU", option)
        np.testing.assert_array_equal(again(x)[0], compiled(x)[0])
    with pytest.raises(BlobError):
        core.import_model(blob, "CPU")


@pytest.mark.parametrize("kind", [bytes, face.Tensor])
def test_compiled_blob_replaces_compilation(core, kind):
    hint = face.properties.hint
    model = core.read_model(matmul())
    blob = core.compile_model(model, "CPU", {"PERF_COUNT": True}).export_model(weightless=True)
    value = blob if kind is bytes else face.Tensor(np.frombuffer(blob, np.uint8))
    compiled = core.compile_model(model, "CPU", {hint.compiled_blob: value})
    assert compiled.get_property("PERF_COUNT") is True  # an option of the blob
    x = np.ones((1, 64), np.float32)
    np.testing.assert_allclose(compiled(x)[0][0], WEIGHTS.sum(axis=0), rtol=1e-5)
    with pytest.raises(BlobError):
        core.compile_model(model, "CPU", {hint.compiled_blob: blob[:-9]})
