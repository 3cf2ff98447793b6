"""Memory of a request's tensors, and inputs of wrong kinds: equal with openvino and hetero."""

import importlib
import threading
from typing import Any

import numpy as np
import onnx
import pytest

import hetero
import hetero.openvino as face
from hetero.errors import PropertyError

ov = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

ADD = """<ir_version: 8, opset_import: ["": 18]>
    g (float[4,2] x) => (float[4,2] y) {one = Constant<value_float = 1.0>() y = Add(x, one)}"""
TWO_INPUTS = """<ir_version: 8, opset_import: ["": 18]>
    g (float[2] a, float[2] b) => (float[2] y) {y = Add(a, b)}"""
READ_ONLY = np.frombuffer(np.ones((4, 2), np.float32).tobytes(), np.float32).reshape(4, 2)


def test_output_tensor_keeps_its_memory(cores):
    columns = []
    for _, core in cores:
        model = core.read_model(onnx.parser.parse_model(ADD).SerializeToString())
        request = core.compile_model(model, "CPU").create_infer_request()
        memory = request.get_output_tensor().data
        maxima = []
        for number in (3, 7):
            results = request.infer(np.full((4, 2), number, np.float32))
            maxima += [float(memory.max()), float(request.get_output_tensor().data.max())]
            results[0][...] = 0  # a copy
            maxima.append(float(memory.max()))
        shared = request.infer(np.zeros((4, 2), np.float32), share_outputs=True)[0]
        assert not shared.flags.owndata
        columns.append([*maxima, np.shares_memory(shared, memory)])
    assert columns[0] == columns[1] == [4, 4, 4, 8, 8, 8, True]


def test_batched_tensors_are_read_at_each_run(cores):
    columns = []
    for module, core in cores:
        model = core.read_model(onnx.parser.parse_model(ADD).SerializeToString())
        if module is ov:
            model.get_parameters()[0].set_layout(ov.Layout("N..."))
        request = core.compile_model(model, "CPU").create_infer_request()
        rows = np.zeros((8, 2), np.float32)
        tensors = [module.Tensor(rows[2 * i : 2 * i + 1], shared_memory=True) for i in range(4)]
        request.set_input_tensors(tensors)
        output = request.get_tensor("y").data
        sums = []
        for number in range(3):
            rows[...] = number
            request.infer()
            sums.append(float(output.sum()))
        with pytest.raises(RuntimeError):
            request.get_tensor("x")
        columns.append(sums)
    assert columns[0] == columns[1] == [8, 16, 24]


@pytest.mark.parametrize("place", ["callback", "after the end"])
def test_output_tensor_has_the_results_without_a_wait(cores, place):
    columns = []
    for _, core in cores:
        model = core.read_model(onnx.parser.parse_model(ADD).SerializeToString())
        request = core.compile_model(model, "CPU").create_infer_request()
        ended = threading.Event()
        maxima: list[float] = []

        def read(job: Any, maxima: list[float] = maxima, ended: Any = ended) -> None:
            if place == "callback":
                maxima.append(float(job.get_output_tensor(0).data.max()))
            ended.set()

        request.set_callback(read, request)
        request.start_async(np.full((4, 2), 6, np.float32))
        assert ended.wait(60)
        if place != "callback":
            while not request.wait_for(0):
                pass
            maxima.append(float(request.get_output_tensor(0).data.max()))
        request.wait()
        columns.append(maxima)
    assert columns[0] == columns[1] == [7]


@pytest.mark.parametrize("share_inputs", [True, False])
def test_tensor_of_a_read_only_input_is_writable(cores, share_inputs):
    for _, core in cores:
        model = core.read_model(onnx.parser.parse_model(ADD).SerializeToString())
        request = core.compile_model(model, "CPU").create_infer_request()
        assert request.infer(READ_ONLY, share_inputs=share_inputs)[0].max() == 2
        memory = request.get_input_tensor().data
        assert not np.shares_memory(memory, READ_ONLY)
        memory[...] = 5
        assert request.infer()[0].max() == 6


def test_inputs_of_a_wrong_kind_are_a_type_error(cores):
    for _, core in cores:
        model = core.read_model(onnx.parser.parse_model(TWO_INPUTS).SerializeToString())
        request = core.compile_model(model, "CPU").create_infer_request()
        with pytest.raises(TypeError):
            request.infer(object())
        with pytest.raises(TypeError):
            core.read_model(model=3, weights=3)


def test_reading_accepts_options(cores, tmp_path):
    data = onnx.parser.parse_model(ADD).SerializeToString()
    for module, core in cores:
        options = {module.properties.cache_dir: str(tmp_path), "ENABLE_MMAP": True}
        model = core.read_model(data, config=options)
        assert core.get_property("CACHE_DIR") == ""
        assert model.input().any_name == "x"
    with pytest.raises(PropertyError, match="expected text"):
        cores[0][1].read_model(data, config={"CACHE_DIR": 5})


def test_precision_hint_accepts_element_types(cores):
    for module, core in cores:
        hint = module.properties.hint.inference_precision
        for value in (module.Type.f32, "f32"):
            core.set_property("CPU", {hint: value})
            setting = core.get_property("CPU", hint)
            assert getattr(setting, "type_name", setting) == "f32"


def test_submodules_are_importable_by_name():
    hints = importlib.import_module("hetero.openvino.properties.hint")
    assert importlib.import_module("hetero.openvino.properties") is hetero.properties
    assert hints.performance_mode == ov.properties.hint.performance_mode()
    assert importlib.import_module("hetero.openvino.preprocess") is face.preprocess
