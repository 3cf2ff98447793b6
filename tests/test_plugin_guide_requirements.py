"""Requirements of OpenVINO's plugin developer guide: the place in hetero of each, and a test.

Rows 1 to 11 are of the guide's pages about requests, 12 to 32 of the page about the plugin and its
configuration, 33 to 42 of the page about the compiled model.
`docs/from-the-plugin-guide.md` maps the guide's names to those of hetero.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import hetero
from hetero.devices import DeviceModel, Plugin, Refusal, Support
from hetero.devices.cpu.plugin import CPUPlugin
from tests.support.small_models import make_model

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
WEIGHTS = np.eye(4, dtype=np.float32)[::-1].copy()
#: x -> y = relu(x @ w), z = tanh(y).
MODEL = make_model(
    [
        helper.make_node("MatMul", ["x", "w"], ["product"], "product"),
        helper.make_node("Relu", ["product"], ["y"], "relu"),
        helper.make_node("Tanh", ["y"], ["z"], "tanh"),
    ],
    {"x": X},
    ["y", "z"],
    {"w": WEIGHTS},
)
Y = np.maximum(X @ WEIGHTS, 0)
Z = np.tanh(Y)
#: The guide's five performance counters.
COUNTERS = (
    "1. input preprocessing",
    "2. input transfer to a device",
    "3. execution time",
    "4. output transfer from a device",
    "5. output postprocessing",
)


class Objects(NamedTuple):
    """Objects of the tests: a split model, one of a single device, and one of the bare plugin."""

    core: hetero.Core
    folder: Path
    plugin: Plugin
    #: On ORT and CPU, with PERF_COUNT.
    split: hetero.CompiledModel
    #: On CPU.
    whole: hetero.CompiledModel
    #: Of the plugin, without a Core.
    device_model: DeviceModel


class Requirement(NamedTuple):
    """A row of the table."""

    number: int
    guide: str
    #: Importable name in hetero.
    place: str
    test: Callable[[Objects], None]


REQUIREMENTS: list[Requirement] = []


def requirement(
    number: int, guide: str, place: str
) -> Callable[[Callable[[Objects], None]], Callable[[Objects], None]]:
    """Add a test to the table."""

    def add(test: Callable[[Objects], None]) -> Callable[[Objects], None]:
        REQUIREMENTS.append(Requirement(number, guide, place, test))
        return test

    return add


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Objects]:
    plugin = CPUPlugin()
    with hetero.Core("inprocess") as core:
        yield Objects(
            core,
            tmp_path_factory.mktemp("guide"),
            plugin,
            core.compile_model(
                MODEL, "HETERO:ORT,CPU", {"PERF_COUNT": True}, affinity={"tanh": "CPU"}
            ),
            core.compile_model(MODEL, "CPU"),
            plugin.compile_model(MODEL),
        )
    plugin.close()


@requirement(
    1,
    "a request allocates inputs and outputs; the application sets and gets tensors",
    "hetero:InferRequest.set_tensor",
)
def _(objects: Objects) -> None:
    request = objects.split.create_infer_request()
    assert request.get_input_tensor(0).get_shape() == [3, 4]
    for key in ("x", request.model_inputs[0]):
        request.set_tensor(key, hetero.Tensor(X))
        request.infer()
        np.testing.assert_allclose(request.get_tensor("z").data, Z, rtol=1e-6)
        np.testing.assert_allclose(request.get_output_tensor(0).data, Y, rtol=1e-6)


@requirement(
    2,
    "stages infer_preprocess, start_pipeline, wait_pipeline and infer_postprocess",
    "hetero:InferRequest.times",
)
def _(objects: Objects) -> None:
    request = objects.split.create_infer_request()
    request.infer({"x": X})
    times = request.times
    assert min(times.preprocess_s, times.postprocess_s) > 0
    assert [stage.device for stage in times.stages] == ["ORT", "CPU"]


@requirement(3, "ITT tasks with the names of the request and its stage", "hetero:Core.trace")
def _(objects: Objects) -> None:
    with objects.core.trace(objects.folder / "trace.json") as trace:
        objects.split({"x": X})
    events = json.loads(trace.path.read_text())["traceEvents"]
    names = {event["name"] for event in events if event["ph"] == "X"}
    assert {"model, stage 0", "model, stage 1"} <= names
    assert any(name.startswith("model, request ") for name in names)


@requirement(
    4, "a counter gives each request its number, for its tasks", "hetero:InferRequest.request_id"
)
def _(objects: Objects) -> None:
    numbers = []
    for _round in range(2):
        request = objects.split.create_infer_request()
        request.infer({"x": X})
        numbers.append(request.request_id)
    assert numbers[1] == numbers[0] + 1


@requirement(5, "Infer checks the tensors, then runs the stages", "hetero:InferRequest.infer")
def _(objects: Objects) -> None:
    request = objects.split.create_infer_request()
    with pytest.raises(hetero.TensorShapeError, match=r"x.*\[3, 4\]"):
        request.infer({"x": X[:2]})
    with pytest.raises(hetero.TensorTypeError, match="astype"):
        request.set_tensor("x", hetero.Tensor(X.astype(np.float64)))
    np.testing.assert_allclose(request.infer({"x": X.astype(np.float64)})["z"], Z, rtol=1e-6)


@requirement(
    6, "preprocessing of inputs is part of the model", "hetero.preprocess:PrePostProcessor"
)
def _(objects: Objects) -> None:
    processor = hetero.preprocess.PrePostProcessor(objects.core.read_model(MODEL))
    processor.input("x").tensor().set_element_type(np.uint8)
    processor.input("x").preprocess().convert_element_type(np.float32).mean(2).scale(4)
    x = np.arange(12, dtype=np.uint8).reshape(3, 4)
    result = objects.core.compile_model(processor.build(), "CPU")({"x": x})
    expected = np.maximum((x.astype(np.float32) - 2) / 4 @ WEIGHTS, 0)
    np.testing.assert_allclose(result["y"], expected, rtol=1e-6)


@requirement(7, "regions of interest and strided tensors", "hetero:Tensor")
def _(objects: Objects) -> None:
    picture = np.random.default_rng(0).random((8, 12), np.float32)
    request = objects.whole.create_infer_request()
    for region, tensor in (
        (picture[2:5, 3:7], hetero.Tensor(hetero.Tensor(picture), (2, 3), (5, 7))),
        (picture[1:7:2, ::3], hetero.Tensor(picture[1:7:2, ::3], shared_memory=True)),
    ):
        request.set_input_tensor(tensor)
        expected = np.maximum(region @ WEIGHTS, 0)
        np.testing.assert_allclose(request.infer()["y"], expected, rtol=1e-6)


@requirement(
    8,
    "outputs are converted to the element type of the application's tensor",
    "hetero:InferRequest.set_output_tensor",
)
def _(objects: Objects) -> None:
    tensor = hetero.Tensor(np.zeros((3, 4), np.float16))
    request = objects.split.create_infer_request()
    request.set_output_tensor(1, tensor)
    request.infer({"x": X})
    np.testing.assert_array_equal(tensor.data, Z.astype(np.float16))


@requirement(
    9, "outputs of dynamic shape are allocated after the run", "hetero:InferRequest.get_tensor"
)
def _(objects: Objects) -> None:
    nonzero = make_model([helper.make_node("NonZero", ["x"], ["y"], "nonzero")], {"x": X}, ["y"])
    with objects.core.compile_model(nonzero, "ORT") as compiled:
        request = compiled.create_infer_request()
        for x in (X, np.zeros_like(X)):
            request.infer({"x": x})
            np.testing.assert_array_equal(request.get_tensor("y").data, np.argwhere(x).T)


@requirement(10, "SetBlobs: one tensor for each item of a batch", "hetero:InferRequest.set_tensors")
def _(objects: Objects) -> None:
    request = objects.split.create_infer_request()
    request.set_tensors("x", [hetero.Tensor(row[None].copy()) for row in X])
    np.testing.assert_allclose(request.infer()["z"], Z, rtol=1e-6)


@requirement(
    11, "five performance counters by the guide's names", "hetero:InferRequest.profiling_info"
)
def _(objects: Objects) -> None:
    request = objects.split.create_infer_request()
    for status in ("NOT_RUN", "EXECUTED"):
        rows = {row.node_name: row for row in request.profiling_info}
        assert {rows[name].status.name for name in COUNTERS} == {status}
        assert [name for name in rows if name in COUNTERS] == [*COUNTERS]
        request.infer({"x": X})
    assert {rows[name].status.name for name in rows} == {"EXECUTED"}


class _WithoutDriver(CPUPlugin):
    """A device whose driver is missing."""

    name = "DRIVERLESS"

    def __init__(self) -> None:
        raise hetero.PluginLoadError("DRIVERLESS needs driver 7 or later; install driver.deb")


@requirement(
    12,
    "the constructor initialises the backend, or throws with what is missing",
    "hetero.devices:Plugin.__init__",
)
def _(objects: Objects) -> None:
    with hetero.Core("inprocess") as core:
        core.register_plugin(f"{__name__}:_WithoutDriver")
        assert "DRIVERLESS" not in core.available_devices
        (row,) = (row for row in core.device_descriptors if row.name == "DRIVERLESS")
        assert "install driver.deb" in str(row.error)
        with pytest.raises(hetero.PluginLoadError, match=r"install driver\.deb"):
            core.compile_model(MODEL, "DRIVERLESS")


@requirement(
    13,
    "information about devices: ids, full name, architecture, capabilities",
    "hetero:Core.get_property",
)
def _(objects: Objects) -> None:
    def read(name: str) -> Any:
        return objects.core.get_property("CPU", name)

    assert read("AVAILABLE_DEVICES") == ["0"]
    assert read("FULL_DEVICE_NAME")
    assert np.__version__ in read("DEVICE_ARCHITECTURE")
    capabilities = read("OPTIMIZATION_CAPABILITIES")
    assert {"FP32", "EXPORT_IMPORT"} <= set(capabilities)
    assert len(set(capabilities)) == len(capabilities)


@requirement(
    14,
    "SetConfig, GetConfig, GetMetric; metrics SUPPORTED_METRICS, IMPORT_EXPORT_SUPPORT",
    "hetero:Core.set_property",
)
def _(objects: Objects) -> None:
    core = objects.core
    core.set_property("CPU", {"NUM_STREAMS": 2})
    assert core.get_property("CPU", "NUM_STREAMS") == 2
    core.set_property("CPU", {"NUM_STREAMS": 1})
    assert core.get_property("CPU", "SUPPORTED_PROPERTIES")["NUM_STREAMS"] == "RW"
    for metric, successor in (
        ("SUPPORTED_METRICS", "SUPPORTED_PROPERTIES"),
        ("SUPPORTED_CONFIG_KEYS", "SUPPORTED_PROPERTIES"),
        ("IMPORT_EXPORT_SUPPORT", "EXPORT_IMPORT"),
    ):
        with pytest.raises(hetero.errors.UnknownPropertyError, match=successor):
            core.get_property("CPU", metric)


@requirement(
    15,
    "unknown keys throw; the configuration of a load precedes that of SetConfig",
    "hetero.devices:Configuration",
)
def _(objects: Objects) -> None:
    plugin = CPUPlugin()
    with pytest.raises(hetero.errors.UnknownPropertyError, match="NUM_STREAMS"):
        plugin.set_property({"NUM_STREAM": 2})
    plugin.set_property({"NUM_STREAMS": 2})
    assert plugin.compile_model(MODEL).get_property("NUM_STREAMS") == 2
    assert plugin.compile_model(MODEL, {"NUM_STREAMS": 3}).get_property("NUM_STREAMS") == 3
    assert plugin.get_property("NUM_STREAMS") == 2


@requirement(
    16,
    "settable: hints, precision, execution mode, streams, transformations, log level, device id",
    "hetero.devices:OPTIONAL_PROPERTIES",
)
def _(objects: Objects) -> None:
    values = {
        "PERFORMANCE_HINT": "LATENCY",
        "PERFORMANCE_HINT_NUM_REQUESTS": 2,
        "INFERENCE_PRECISION_HINT": "f32",
        "EXECUTION_MODE_HINT": "ACCURACY",
        "MODEL_PRIORITY": "HIGH",
        "NUM_STREAMS": 2,
        "DISABLE_TRANSFORMATIONS": True,
        "LOG_LEVEL": "LOG_ERROR",
    }
    with hetero.Core("inprocess") as core:
        core.set_property("CPU", values)
        assert {name: core.get_property("CPU", name) for name in values} == values
    objects.plugin.set_property({"DEVICE_ID": "0"})
    assert objects.core.get_property("CPU.0", "DEVICE_ID") == "0"


@requirement(
    17,
    "streams, threads, exclusive requests",
    "hetero.devices:COMMON_PROPERTIES",
)
def _(objects: Objects) -> None:
    options = {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 1, "EXCLUSIVE_ASYNC_REQUESTS": True}
    with objects.core.compile_model(MODEL, "CPU", options) as compiled:
        assert {name: compiled.get_property(name) for name in options} == options
        np.testing.assert_allclose(compiled({"x": X})["z"], Z, rtol=1e-6)


@requirement(
    18, "internal::supported_properties and caching_properties", "hetero.devices:PropertyTable"
)
def _(objects: Objects) -> None:
    supported = objects.core.get_property("CPU", "SUPPORTED_PROPERTIES")
    caching = objects.core.get_property("CPU", "CACHING_PROPERTIES")
    assert {"CACHING_PROPERTIES", "SUPPORTED_PROPERTIES"} <= set(supported)
    assert "EXECUTION_MODE_HINT" in caching
    assert "LOG_LEVEL" not in caching
    assert set(caching) <= set(supported)


@requirement(
    19, "compile_model copies, transforms and compiles the model", "hetero:Core.compile_model"
)
def _(objects: Objects) -> None:
    model = objects.core.read_model(MODEL)
    before = model.to_bytes()
    with objects.core.compile_model(model, "CPU") as compiled:
        np.testing.assert_allclose(compiled({"x": X})["z"], Z, rtol=1e-6)
    assert model.to_bytes() == before


@requirement(20, "compile_model with a remote context", "hetero:Core.compile_model")
def _(objects: Objects) -> None:
    context = objects.core.create_context("CPU")
    with objects.core.compile_model(MODEL, context) as compiled:
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU"]
        np.testing.assert_allclose(compiled({"x": context.from_host(X)})["z"], Z, rtol=1e-6)


@requirement(21, "import_model with a remote context", "hetero:Core.import_model")
def _(objects: Objects) -> None:
    context = objects.core.create_context("CPU")
    stream = io.BytesIO(objects.whole.export_model())
    with objects.core.import_model(stream, context) as imported:
        np.testing.assert_allclose(imported({"x": context.from_host(X)})["z"], Z, rtol=1e-6)


@requirement(
    22,
    "create_context and get_default_context, or a clear refusal",
    "hetero:Core.get_default_context",
)
def _(objects: Objects) -> None:
    context = objects.core.get_default_context("CPU")
    assert context.get_device_name() == "CPU"
    assert context.create_tensor("f32", (2, 3)).get_shape() == [2, 3]
    with pytest.raises(hetero.UnsupportedOperationError, match="CPU"):
        objects.plugin.create_context()


#: Conv and BatchNormalization, which the device merges.
CONV = make_model(
    [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["y"], "normalize"),
    ],
    {"x": np.ones((1, 2, 3, 3), np.float32)},
    ["y"],
    {
        "w": np.ones((2, 2, 1, 1), np.float32),
        "s": np.ones(2, np.float32),
        "b": np.zeros(2, np.float32),
        "m": np.zeros(2, np.float32),
        "v": np.ones(2, np.float32),
    },
)


@requirement(
    23,
    "transformations of the device keep the original names (getFusedNames)",
    "hetero.devices:Node.covers",
)
def _(objects: Objects) -> None:
    plugin = objects.plugin
    model = plugin.transform_model(hetero.devices.read_model(CONV), plugin.effective_config())
    assert [node.covers for node in model.nodes] == [("conv", "normalize")]
    assert set(plugin.query_model(CONV)) == {"conv", "normalize"}


@requirement(
    24,
    "ConvertPrecision: float16 models run in float32",
    "hetero.devices:Plugin.transform_model",
)
def _(objects: Objects) -> None:
    half = make_model(
        [helper.make_node("Exp", ["x"], ["y"], "exp")], {"x": X.astype(np.float16)}, ["y"]
    )
    expected = np.exp(X.astype(np.float16).astype(np.float32)).astype(np.float16)
    with objects.core.compile_model(half, "CPU") as compiled:
        np.testing.assert_array_equal(compiled({"x": X.astype(np.float16)})["y"], expected)


@requirement(25, "low precision: quantized models run", "hetero.devices.cpu.plugin:CPUPlugin")
def _(objects: Objects) -> None:
    constants = {
        "scale": np.float32(0.05),
        "zero": np.uint8(128),
        "w8": np.arange(16, dtype=np.uint8).reshape(4, 4),
    }
    quantized = make_model(
        [
            helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x8"], "quantize"),
            helper.make_node(
                "QLinearMatMul",
                ["x8", "scale", "zero", "w8", "scale", "zero", "scale", "zero"],
                ["y8"],
                "product",
            ),
            helper.make_node("DequantizeLinear", ["y8", "scale", "zero"], ["y"], "dequantize"),
        ],
        {"x": X},
        ["y"],
        constants,
    )
    session = onnxruntime.InferenceSession(
        quantized.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    with objects.core.compile_model(quantized, "CPU") as compiled:
        # A rounded product may differ by one step of the scale.
        np.testing.assert_allclose(
            compiled({"x": X})["y"], session.run(None, {"x": X})[0], atol=0.051
        )


class _WithoutTanh(CPUPlugin):
    """A device that refuses Tanh; it merges Relu into both of its neighbours."""

    name = "SOFT"

    def transform_model(self, model: Any, config: Any) -> Any:
        covers = {"product": ("product", "relu"), "tanh": ("relu", "tanh")}
        return model.replace(
            nodes=[replace(node, covers=covers.get(node.name, node.covers)) for node in model.nodes]
        )

    def refuse(self, node: Any, model: Any, config: Any) -> Refusal | None:
        return Refusal("no_kernel", "no tanh") if node.op_type == "Tanh" else None


@requirement(
    26,
    "query in seven steps: a node merged into an unsupported one is unsupported",
    "hetero.devices:Plugin.query_model",
)
def _(objects: Objects) -> None:
    support = _WithoutTanh().query_model(MODEL)
    assert isinstance(support, Support)
    assert dict(support) == {"product": "SOFT.0"}
    assert support.unsupported["relu"]["SOFT.0"].message == "no tanh"


@requirement(
    27,
    "parameters, constants and results follow their readers and producers",
    "hetero:Core.query_model",
)
def _(objects: Objects) -> None:
    names = {"x", "w", "y", "z"}
    support = objects.core.query_model(MODEL, "CPU", include_housekeeping=True)
    assert dict(support) == dict.fromkeys(names | {"product", "relu", "tanh"}, "CPU")
    assert not names & set(objects.core.query_model(MODEL, "CPU"))


@requirement(
    28,
    'affinity in op.get_rt_info()["affinity"]',
    "hetero.devices.model.model_node:ModelNode.get_rt_info",
)
def _(objects: Objects) -> None:
    model = objects.core.read_model(MODEL)
    for op in model.get_ops():
        op.get_rt_info()["affinity"] = "CPU" if op.get_type_name() == "Tanh" else "ORT"
    with objects.core.compile_model(model, "HETERO:CPU,ORT") as compiled:
        assert [subgraph.device for subgraph in compiled.subgraphs] == ["ORT", "CPU"]


@requirement(
    29,
    "AddExtension, or an error of a device without extensions",
    "hetero:Core.add_extension",
)
def _(objects: Objects) -> None:
    double = make_model(
        [helper.make_node("Double", ["x"], ["y"], "double", domain="tests")],
        {"x": X},
        ["y"],
        domains={"tests": 1},
    )
    with hetero.Core("inprocess") as core:
        core.add_extension("tests.test_plugin_guide_requirements:double")
        assert "EXTENSIONS" in core.get_property("CPU", "SUPPORTED_PROPERTIES")
        np.testing.assert_array_equal(core.compile_model(double, "CPU")({"x": X})["y"], 2 * X)
        assert core.query_model(double, "ORT").unsupported["double"]["ORT"].message


@requirement(
    30,
    "export; import checks the device, the options and damage",
    "hetero:CompiledModel.export_model",
)
def _(objects: Objects) -> None:
    blob = objects.split.export_model()
    with objects.core.import_model(blob) as imported:
        np.testing.assert_allclose(imported({"x": X})["z"], Z, rtol=1e-6)
    damaged = bytearray(blob)
    damaged[-1] ^= 1
    for data, message in ((bytes(damaged), "checksum"), (b"IR" * 64, "not a blob")):
        with pytest.raises(hetero.BlobError, match=message):
            objects.core.import_model(data)


@requirement(
    31,
    "one function creates the plugin and gives its version",
    "hetero.devices:Plugin.version",
)
def _(objects: Objects) -> None:
    (entry,) = (e for e in entry_points(group="hetero.plugins") if e.name == "CPU")
    assert isinstance(entry.load()(), Plugin)
    assert np.__version__ in objects.core.get_versions("CPU")["CPU"].build_number


class _Closing(CPUPlugin):
    """A device that counts calls of `close`."""

    name = "CLOSING"
    count = 0

    def close(self) -> None:
        _Closing.count += 1
        super().close()


@requirement(32, "the destructor stops all activities", "hetero.devices:Plugin.close")
def _(objects: Objects) -> None:
    core = hetero.Core("inprocess")
    core.register_plugin(f"{__name__}:_Closing")
    compiled = core.compile_model(MODEL, "CLOSING")
    before = _Closing.count
    core.close()
    assert _Closing.count == before + 1
    with pytest.raises(hetero.HeteroError):
        compiled({"x": X})


@requirement(
    33,
    "any number of requests share the resources of a compiled model",
    "hetero:CompiledModel.create_infer_request",
)
def _(objects: Objects) -> None:
    requests = [objects.split.create_infer_request() for _ in range(8)]
    for i, request in enumerate(requests):
        request.start_async({"x": X + i})
    for i, request in enumerate(requests):
        request.wait()
        np.testing.assert_allclose(
            request.results["y"], np.maximum((X + i) @ WEIGHTS, 0), rtol=1e-6
        )


@requirement(
    34,
    "a plugin returns an ICompiledModel: create_infer_request, get_runtime_model, set_property",
    "hetero.devices:DeviceModel",
)
def _(objects: Objects) -> None:
    device_model = objects.device_model
    request = device_model.create_infer_request()
    np.testing.assert_allclose(request.infer({"x": X})["z"], Z, rtol=1e-6)
    assert len(device_model.get_runtime_model().nodes) == 3
    assert device_model.export_model()
    with pytest.raises(hetero.UnsupportedOperationError, match="compile again"):
        device_model.set_property({"NUM_STREAMS": 2})
    assert not issubclass(type(device_model), hetero.CompiledModel)


@requirement(
    35,
    "task, wait and callback executors",
    "hetero:InferRequest.set_callback",
)
def _(objects: Objects) -> None:
    threads = []
    request = objects.split.create_infer_request()
    request.set_callback(lambda _: threads.append(threading.current_thread().name))
    request.start_async({"x": X})
    request.wait()
    assert "-callback" in threads[0]


@requirement(
    36,
    "a synchronous request, and an asynchronous one with start_async, wait, cancel",
    "hetero:InferRequest.start_async",
)
def _(objects: Objects) -> None:
    request = objects.split.create_infer_request()
    request.start_async({"x": X}, userdata=None)
    assert request.wait_for(10_000)
    request.cancel()  # An ended request is not cancelled.
    np.testing.assert_allclose(request.results["z"], Z, rtol=1e-6)


@requirement(
    37,
    "properties of a compiled model",
    "hetero:CompiledModel.get_property",
)
def _(objects: Objects) -> None:
    values = {
        "NETWORK_NAME": "model",
        "EXECUTION_DEVICES": ["CPU"],
        "LOADED_FROM_CACHE": False,
        "PERF_COUNT": False,
        "DEVICE_ID": "0",
    }
    assert {name: objects.whole.get_property(name) for name in values} == values
    assert objects.whole.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") >= 1
    supported = objects.whole.get_property("SUPPORTED_PROPERTIES")
    assert set(values) <= set(supported)


@requirement(
    38,
    "set_property of a compiled model, which may refuse",
    "hetero:CompiledModel.set_property",
)
def _(objects: Objects) -> None:
    with pytest.raises(hetero.UnsupportedOperationError, match="to compile_model"):
        objects.split.set_property({"NUM_STREAMS": 2})


@requirement(
    39,
    "runtime model: layerType, execOrder, implType, execTimeMcs, originalLayersNames",
    "hetero:CompiledModel.get_runtime_model",
)
def _(objects: Objects) -> None:
    objects.split({"x": X})
    nodes = objects.split.get_runtime_model().nodes
    rows = [node.metadata for node in nodes]
    assert [row["layerType"] for row in rows] == ["MatMul", "Relu", "Tanh"]
    assert [row["execOrder"] for row in rows] == ["0", "1", "2"]
    assert [row["originalLayersNames"] for row in rows] == ["product", "relu", "tanh"]
    assert all(float(row["execTimeMcs"]) >= 0 and row["implType"] for row in rows)
    with objects.core.compile_model(CONV, "CPU") as unused:
        (row,) = (node.metadata for node in unused.get_runtime_model().nodes)
    assert (row["execTimeMcs"], row["originalLayersNames"]) == ("not_executed", "conv,normalize")


@requirement(40, "loaded_from_cache", "hetero:CompiledModel.get_property")
def _(objects: Objects) -> None:
    options = {"CACHE_DIR": str(objects.folder / "cache")}
    hits = []
    for _round in range(2):
        with objects.core.compile_model(MODEL, "CPU", options) as compiled:
            hits.append(compiled.get_property("LOADED_FROM_CACHE"))
    assert hits == [False, True]


@requirement(
    41,
    "an output has the name of its producer, with .index if it has several",
    "hetero:CompiledModel.output",
)
def _(objects: Objects) -> None:
    split = make_model(
        [helper.make_node("Split", ["x"], ["a", "b"], "split", axis=1)], {"x": X}, ["a", "b"]
    )
    with objects.core.compile_model(split, "CPU") as compiled:
        # The names of ONNX's values, as in OpenVINO's Python API for ONNX models.
        names = [port.get_any_name() for port in compiled.outputs]
        np.testing.assert_array_equal(compiled({"x": X})[compiled.output("b")], X[:, 2:])
        assert names == ["a", "b"]
    openvino = pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")
    core = openvino.Core()
    theirs = core.compile_model(core.read_model(split.SerializeToString()), "CPU")
    assert [port.get_any_name() for port in theirs.outputs] == names


@requirement(
    42,
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS, NETWORK_NAME",
    "hetero:CompiledModel.name",
)
def _(objects: Objects) -> None:
    number = objects.split.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    queue = hetero.AsyncInferQueue(objects.split)
    assert len(queue) == number >= 2
    assert objects.split.get_property("NETWORK_NAME") == objects.split.name == "model"


@hetero.custom_operator("tests::Double", infer=lambda x: x)
def double(x: np.ndarray) -> np.ndarray:
    return 2 * x


@pytest.mark.parametrize(
    "row", REQUIREMENTS, ids=[f"{row.number:02}: {row.guide}" for row in REQUIREMENTS]
)
def test_requirement_of_the_guide(row, objects):
    row.test(objects)


def test_table_is_complete_and_its_places_exist():
    assert [row.number for row in REQUIREMENTS] == list(range(1, 43))
    for row in REQUIREMENTS:
        resolve_name(row.place)
