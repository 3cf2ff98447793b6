"""Programs from OpenVINO's samples and notebooks, with a changed import line."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import onnx
import pytest

import hetero

pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

MODEL = """<ir_version: 8, opset_import: ["": 17]>
    net (float[N,3,8,8] data) => (float[N,4] scores)
    <float[4,3,3,3] w, float[1] one = {1}>
    { c = Conv <pads = [1, 1, 1, 1]> (data, w) r = Relu(c) p = GlobalAveragePool(r)
      f = Flatten(p) scores = Softmax(f) }"""

#: Classify a picture with preprocessing in the model, and print the best classes.
HELLO_CLASSIFICATION = """
core = ov.Core()
model = core.read_model(path)
if len(model.inputs) != 1 or len(model.outputs) != 1:
    raise SystemExit("one input and one output are wanted")
input_tensor = np.expand_dims(picture, 0)
ppp = ov.preprocess.PrePostProcessor(model)
_, h, w, _ = input_tensor.shape
ppp.input().tensor().set_shape(input_tensor.shape).set_element_type(ov.Type.u8).set_layout(
    ov.Layout("NHWC")
)
ppp.input().preprocess().resize(ov.preprocess.ResizeAlgorithm.RESIZE_LINEAR)
ppp.input().model().set_layout(ov.Layout("NCHW"))
ppp.output().tensor().set_element_type(ov.Type.f32)
model = ppp.build()
compiled_model = core.compile_model(model, device_name)
results = compiled_model.infer_new_request({0: input_tensor})
predictions = next(iter(results.values()))
probabilities = predictions.reshape(-1)
top = np.argsort(probabilities)[-3:][::-1]
print(path.name, *(f"{class_id} {probabilities[class_id]:.4f}" for class_id in top))
"""

#: Classify several pictures at once; a callback stores each result.
CLASSIFICATION_ASYNC = """
def completion_callback(infer_request, image_path):
    predictions = next(iter(infer_request.results.values()))
    done[image_path] = int(np.argsort(predictions.reshape(-1))[-1])

done = {}
core = ov.Core()
compiled_model = core.compile_model(core.read_model(path), device_name)
infer_queue = ov.AsyncInferQueue(compiled_model, 2)
infer_queue.set_callback(completion_callback)
for i in range(6):
    image = np.roll(picture, i, 2).astype(np.float32).transpose(2, 0, 1)[None]
    infer_queue.start_async({0: image}, f"image {i}")
infer_queue.wait_all()
print(sorted(done.items()))
"""

#: The loop of the throughput benchmark, with a fixed number of rounds.
THROUGHPUT_BENCHMARK = """
def fill_tensor_random(tensor):
    dtype = tensor.element_type.to_dtype()
    rand_min, rand_max = (0, 1) if dtype == bool else (0, np.iinfo(np.uint8).max)
    if 0 == tensor.get_size():
        raise RuntimeError("models with dynamic shapes are not supported")
    tensor.data[:] = rs.uniform(rand_min, rand_max, list(tensor.shape)).astype(dtype)

rs = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(0)))
tput = {"PERFORMANCE_HINT": "THROUGHPUT"}
core = ov.Core()
model = core.read_model(path)
shape = model.input().partial_shape
shape[0] = 1
changed = model.reshape({model.input().any_name: shape})
compiled_model = core.compile_model(changed or model, device_name, tput)
ireqs = ov.AsyncInferQueue(compiled_model)
for ireq in ireqs:
    for model_input in compiled_model.inputs:
        fill_tensor_random(ireq.get_tensor(model_input))
for _ in range(len(ireqs)):
    ireqs.start_async()
ireqs.wait_all()
latencies = []
in_fly = set()
for _ in range(20):
    idle_id = ireqs.get_idle_request_id()
    if idle_id in in_fly:
        latencies.append(ireqs[idle_id].latency)
    else:
        in_fly.add(idle_id)
    ireqs.start_async()
ireqs.wait_all()
for infer_request_id in in_fly:
    latencies.append(ireqs[infer_request_id].latency)
print(len(latencies), min(latencies) > 0, len(ireqs) == len(in_fly))
"""

#: Print the properties of a device.
QUERY_DEVICE = """
core = ov.Core()
for device in core.available_devices:
    if device != "CPU":
        continue
    for property_key in core.get_property(device, "SUPPORTED_PROPERTIES"):
        if property_key in ("FULL_DEVICE_NAME", "RANGE_FOR_STREAMS", "OPTIMIZATION_CAPABILITIES"):
            try:
                property_val = core.get_property(device, property_key)
            except TypeError:
                property_val = "UNSUPPORTED TYPE"
            print(property_key, type(property_val).__name__)
"""

#: Notebook cells: sizes, one call, keys of results, inputs, a profile.
NOTEBOOK = """
config = {"PERF_COUNT": "YES"}
core = ov.Core()
model = core.read_model(model=path)
compiled_model = core.compile_model(model=model, device_name=device_name, config=config)
input_layer, output_layer = compiled_model.input(0), compiled_model.output(0)
N, C, H, W = 1, *[d.get_length() for d in list(input_layer.partial_shape)[1:]]
print(input_layer.any_name, input_layer.element_type.get_type_name(), N, C, H, W)
image = picture.astype(input_layer.element_type.to_dtype()).transpose(2, 0, 1)[None]
result = compiled_model([image])[output_layer]
print(result.shape, f"{result.sum():.4f}", int(result.argmax()))
request = compiled_model.create_infer_request()
request.set_tensor("data", ov.Tensor(image))
request.infer()
print(np.allclose(request.get_output_tensor().data, result), request.latency > 0)
print(any(row.real_time.total_seconds() > 0 for row in request.get_profiling_info()))
request.start_async({"data": image}, share_inputs=True)
request.wait()
print(np.allclose(request.results["scores"], result), isinstance(output_layer, ov.ConstOutput))
"""

SAMPLES = {
    "hello_classification": HELLO_CLASSIFICATION,
    "classification_async": CLASSIFICATION_ASYNC,
    "throughput_benchmark": THROUGHPUT_BENCHMARK,
    "query_device": QUERY_DEVICE,
    "notebook": NOTEBOOK,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    model = onnx.parser.parse_model(MODEL)
    weights = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    tensors = [t for t in model.graph.initializer if t.name != "w"]
    del model.graph.initializer[:]
    model.graph.initializer.extend([*tensors, onnx.numpy_helper.from_array(weights, "w")])
    (data_port,) = [v for v in model.graph.input if v.name == "data"]
    del model.graph.input[:]
    model.graph.input.append(data_port)
    path = tmp_path_factory.mktemp("sample") / "net.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_sample_runs_with_another_import(name, path, monkeypatch):
    core_class = hetero.Core
    # Starting Ray for each sample would take too long.
    monkeypatch.setattr(hetero, "Core", lambda: core_class("inprocess"))
    picture = np.random.default_rng(1).integers(0, 255, (8, 8, 3)).astype(np.uint8)
    outputs = []
    for module, device in (("openvino", "CPU"), ("hetero", "CPU"), ("hetero", "HETERO:ORT,CPU")):
        names: dict[str, Any] = {"path": path, "picture": picture, "device_name": device}
        stdout = io.StringIO()
        head = f"import numpy as np\nimport {module} as ov\nimport {module}.preprocess\n"
        with contextlib.redirect_stdout(stdout):
            exec(compile(head + SAMPLES[name], name, "exec"), names)
        outputs.append(stdout.getvalue().split())
    if name in ("throughput_benchmark", "query_device"):  # counts and order may differ
        outputs = [sorted(words)[-3:] for words in outputs]
    assert outputs[0]
    assert outputs[1:] == [outputs[0]] * 2
