"""Idioms of OpenVINO scripts, which run with hetero after a change of the import.

Each line runs with hetero, and with OpenVINO if that is installed.
"""

from __future__ import annotations

import importlib.util

import numpy as np
import onnx
import pytest

import hetero
from hetero.devices.errors import ArgumentError, ModelError, TensorNameError, TensorShapeError
from tests.support.models import branches, branches_output
from tests.support.rows import for_each_row

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)

IDIOMS = """
core.read_model(model=path)
core.compile_model(path, "CPU")
core.compile_model(model=model, device_name="CPU", config={"PERF_COUNT": True})
core.query_model(model=model, device_name="CPU")
core.get_property("CPU", "FULL_DEVICE_NAME") == core.get_property(device_name="CPU", property="FULL_DEVICE_NAME")
core.get_property("CACHE_DIR") == ""
core.set_property({"CACHE_DIR": ""})
core.set_property(properties={"CACHE_DIR": ""})
core.set_property("CPU", {"NUM_STREAMS": 1})
core.set_property("CPU", {ov.properties.inference_num_threads(): 1})
core.get_property("CPU", ov.properties.device.full_name)
core.get_property("CPU", ov.properties.device.full_name()) == core.get_property("CPU", "FULL_DEVICE_NAME")
core.compile_model(model, "CPU", {ov.properties.hint.performance_mode(): ov.properties.hint.PerformanceMode.LATENCY})
core.compile_model(model, "CPU", {ov.properties.enable_profiling(): True, ov.properties.num_streams(): 1})
ov.properties.cache_dir("folder")[0] == "CACHE_DIR"
core.get_versions("CPU")
core.available_devices
ov.Type.f32 == model.input(0).element_type
ov.Type.f32 == model.input().get_element_type()
ov.Type.u8 == ov.Tensor(x.astype("uint8")).get_element_type()
list(ov.Tensor(ov.Type.f32, ov.Shape([2, 3])).data.shape) == [2, 3]
list(ov.Tensor(ov.Type.i64, [4]).get_shape()) == [4] and ov.Tensor(ov.Type.i64, [4]).byte_size == 32
ov.Tensor(x, shared_memory=True).data is not None
ov.Tensor(x).size == 6
list(ov.Tensor(ov.Tensor(x), [0, 1], [2, 3]).get_shape()) == [2, 2]
core.unload_plugin("CPU"); core.compile_model(model, "CPU")(x)[0].shape == (2, 4)
model.inputs[0].any_name == "x"
model.input("x").get_any_name() == "x"
model.input().names == {"x"} and model.input().get_names() == {"x"}
model.output(0).any_name == "y" and model.output("y").any_name == "y"
model.input().partial_shape.is_dynamic and not model.input().partial_shape.is_static
model.input().get_partial_shape() == model.inputs[0].partial_shape
str(ov.PartialShape([-1, 3])) == "[?,3]"
ov.PartialShape([-1, 3]).is_dynamic and ov.PartialShape([2, 3]).is_static
model.is_dynamic()
model.friendly_name == model.get_friendly_name()
[op.get_friendly_name() for op in model.get_ordered_ops() if op.get_type_name() in ("Relu", "Tanh")] == ["relu", "tanh"]
compiled.inputs[0].any_name == compiled.input(0).any_name == "x"
compiled.input(0).partial_shape.is_dynamic
compiled(x)[compiled.output(0)].shape == (2, 4)
compiled([x])[0].shape == compiled({0: x})["y"].shape == compiled({"x": x})[0].shape == (2, 4)
compiled({compiled.input(0): x})[compiled.output("y")].shape == (2, 4)
compiled.infer_new_request({0: x})[0].shape == (2, 4)
compiled.get_property("NETWORK_NAME") == model.friendly_name
compiled.get_property(ov.properties.optimal_number_of_infer_requests()) >= 1
compiled.get_runtime_model().get_ordered_ops()
request.infer({0: x})[0].shape == (2, 4)
request.start_async({0: x}); request.wait(); request.get_output_tensor(0).data.shape == (2, 4)
request.set_input_tensor(ov.Tensor(x)); request.infer()
request.set_tensor("x", ov.Tensor(x)); request.infer(); request.get_tensor("y").data.shape == (2, 4)
request.infer([x]); [list(t.shape) for t in (*request.input_tensors, *request.output_tensors)] == [[2, 3], [2, 4]]
request.infer([x]); request.get_profiling_info() is not None and request.latency > 0
request.model_inputs[0].any_name + request.model_outputs[0].any_name == "xy"
queue = ov.AsyncInferQueue(compiled, 2); queue.start_async({0: x}, 1); queue.wait_all(); len(queue) == 2
ppp = ov.preprocess.PrePostProcessor(path_model()); ppp.input().tensor().set_element_type(ov.Type.u8); ppp.build()
ppp = ov.preprocess.PrePostProcessor(path_model()); ppp.output().postprocess().convert_element_type(ov.Type.f16); ppp.build()
ov.Layout("NCHW")
ov.get_version() and ov.__version__
ov.compile_model
ov.save_model
""".strip().splitlines()  # noqa: E501 - one idiom per line

SUBJECTS = [
    "hetero",
    pytest.param(
        "openvino",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("openvino") is None, reason="OpenVINO is not installed"
        ),
    ),
]


@pytest.fixture(scope="module", params=SUBJECTS)
def names(request, tmp_path_factory):
    """Return the names that a script has defined after its first lines."""
    path = tmp_path_factory.mktemp("idioms") / "model.onnx"
    onnx.save_model(branches(), path)
    ov = importlib.import_module(request.param)
    core = ov.Core("inprocess") if ov is hetero else ov.Core()
    model = core.read_model(path)
    compiled = core.compile_model(model, "CPU")
    yield {
        "ov": ov,
        "core": core,
        "path": path,
        "model": model,
        "compiled": compiled,
        "x": X,
        "request": compiled.create_infer_request(),
        "path_model": lambda: core.read_model(path),
    }
    if ov is hetero:
        core.close()


@for_each_row("idiom", IDIOMS)
def test_idiom_runs(names, idiom):
    *statements, expression = idiom.split("; ")
    names = dict(names)
    exec("\n".join(statements), names)
    # Comparisons must be true; other expressions must not raise.
    assert eval(expression, names) is not False


def test_reshape_returns_another_model():
    """OpenVINO changes the model in place; models of hetero are immutable."""
    with hetero.Core("inprocess") as core:
        model = core.read_model(branches())
        for shapes in ([5, 3], {"x": [5, 3]}, {0: (5, 3)}, {model.input(): hetero.Shape([5, 3])}):
            reshaped_model = model.reshape(shapes)
            assert (reshaped_model.input().shape, reshaped_model.output().shape) == ((5, 3), (5, 4))
            assert not reshaped_model.is_dynamic()
        assert model.is_dynamic()
        assert reshaped_model.reshape([-1, 3]).output().shape[1:] == (4,)
        x = np.ones((5, 3), np.float32)
        compiled = core.compile_model(reshaped_model, "HETERO:ORT,CPU", affinity={"op:Tanh": "CPU"})
        np.testing.assert_allclose(compiled(x)[0], branches_output(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("shapes", "error"),
    [
        ([5], TensorShapeError),
        ([5, 4], ModelError),
        ("5,x.", ArgumentError),
        ({"x": 5}, ArgumentError),
        ({"z": [5, 3]}, TensorNameError),
    ],
)
def test_invalid_shapes_raise(shapes, error):
    with hetero.Core("inprocess") as core:
        model = core.read_model(branches())
        with pytest.raises(error):
            model.reshape(shapes)


def test_save_model_writes_onnx(tmp_path):
    hetero.save_model(branches(), tmp_path / "model.onnx")
    onnx.checker.check_model(str(tmp_path / "model.onnx"))


@pytest.mark.parametrize("kind", ["f32", np.float16, hetero.Type.i64, "uint8"])
def test_tensor_of_type_and_shape_is_zero(kind):
    tensor = hetero.Tensor(kind, [2, 3])
    assert tensor.shape == (2, 3)
    assert not tensor.data.any()


@pytest.mark.ray
@pytest.mark.slow
def test_compile_model_without_a_core():
    compiled = hetero.compile_model(branches(), "CPU")
    np.testing.assert_allclose(compiled(X)[0], branches_output(X), rtol=1e-6)
