"""Devices of ONNX Runtime's execution providers: discovery, smoke test, query, options, memory."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import hetero
from hetero.devices import load_plugins
from hetero.devices.conformance.onnx_suite import backend_cases, outcome
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import PropertyError, UnsupportedOperationError
from tests.support.networks import model as parsed

onnxruntime = pytest.importorskip("onnxruntime")
from hetero.devices.ort import provider as module  # noqa: E402 - needs onnxruntime
from hetero.devices.ort.provider_plugin import ProviderPlugin, provider_class  # noqa: E402 - as above
from hetero.devices.ort.providers import provider_plugins  # noqa: E402 - as above
from hetero.devices.ort.remote_memory import MEMORIES  # noqa: E402 - as above

ROOT = Path(__file__).parents[3]


def test_each_provider_becomes_a_device(monkeypatch):
    names = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "AzureExecutionProvider"]
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: [*names, "CPUExecutionProvider"]
    )
    assert [cls.name for cls in provider_plugins()][:2] == ["ORT_TENSORRT", "ORT_CUDA"]


def test_library_that_the_program_registered_becomes_a_device(monkeypatch):
    class Device:
        ep_name = "RegisteredExecutionProvider"
        ep_metadata: ClassVar = {"library_path": "/opt/registered/libprovider.so"}

    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [Device()])
    (cls,) = [cls for cls in provider_plugins() if cls.name == "ORT_REGISTERED"]
    assert cls.library.path == "/opt/registered/libprovider.so"
    assert cls.library.registration == "RegisteredExecutionProvider"


def test_provider_without_driver_is_listed_with_its_error():
    (entry,) = load_plugins([provider_class("CUDAExecutionProvider")], entry_points=False).values()
    if entry.plugin is not None:
        pytest.skip("this machine has a GPU")
    assert entry.name == "ORT_CUDA"
    assert "CUDAExecutionProvider" in entry.error
    assert "driver or libraries" in entry.error


def test_provider_without_any_node_is_listed_with_its_error(monkeypatch):
    class Session(onnxruntime.InferenceSession):
        def get_providers(self):
            return ["LazyExecutionProvider"]

    def open_session(self, data, options):
        return Session(data, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(module.Provider, "open_session", open_session)
    (entry,) = load_plugins([provider_class("LazyExecutionProvider")], entry_points=False).values()
    assert "leaves Add and Relu to the CPU" in entry.error


class HostPlugin(ProviderPlugin):
    """The CPU provider as a stand-in for the other providers."""

    name = "ORT_HOST"
    provider_name = "CPUExecutionProvider"


def test_run_reads_remote_tensors_in_place(monkeypatch):
    monkeypatch.setitem(MEMORIES, "CPUExecutionProvider", "cpu")
    plugin = HostPlugin()
    x = np.float32([[1, -2], [3, -4]])
    tensor = plugin.create_context().from_host(x)
    np.testing.assert_array_equal(tensor.to_host(), x)
    with pytest.raises(UnsupportedOperationError, match="to_host"):
        _ = tensor.data
    compiled = PluginSubject(plugin).compile_model(
        parsed("(float[2,2] x, float[2,2] w) => (float[2,2] y, float[2,2] w) {y = Add(x, w)}")
    )
    request = compiled.create_infer_request()
    result = request.infer({"x": tensor, "w": np.ones((2, 2), np.float32)})
    np.testing.assert_array_equal(result["y"], x + 1)
    np.testing.assert_array_equal(result["w"], np.ones((2, 2)))


def test_create_context_without_device_memory_raises():
    with pytest.raises(UnsupportedOperationError, match="computes in host memory"):
        HostPlugin().create_context()


@pytest.fixture(scope="module")
def openvino():
    """The plugin of OpenVINO's provider, if the installed ONNX Runtime has it."""
    if "OpenVINOExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("the installed onnxruntime is not onnxruntime-openvino")
    return provider_class("OpenVINOExecutionProvider")()


def test_node_assigned_to_the_cpu_provider_is_refused(openvino):
    model = parsed("(float[3,3] x) => (float z) {y = Relu(x) z = Det(y)}")
    support = openvino.query_model(model)
    assert dict(support) == {"y": "ORT_OPENVINO.0"}
    (refusal,) = support.unsupported["z"].values()
    assert refusal.code == "no_kernel"


def test_query_shows_sizes_of_weights_to_the_provider(openvino):
    ports = "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y)"
    assert dict(openvino.query_model(parsed(f"{ports} {{y = Conv(x, w)}}"))) == {
        "y": "ORT_OPENVINO.0"
    }


@pytest.mark.slow
def test_onnx_backend_suite_cases_pass(openvino):
    """The provider takes 490 of the suite's 2,033 cases; the assertion lists wrong ones."""
    options = {"INFERENCE_NUM_THREADS": 1}
    outcomes = {case.name: outcome(openvino, case, options) for case in backend_cases()}
    assert {n: o for n, o in outcomes.items() if o not in ("refused", "passed")} == {}
    assert list(outcomes.values()).count("passed") >= 490


def test_provider_options_are_passed_and_checked(openvino):
    model = parsed("(float[2,3] x) => (float[2,3] y) {y = Relu(x)}")
    options = {"PROVIDER_OPTIONS": {"num_streams": "1", "device_type": "CPU"}}
    x = np.float32([[1, -2, 3], [4, 5, -6]])
    np.testing.assert_array_equal(openvino.compile_model(model, options)(x)["y"], np.maximum(x, 0))
    with pytest.raises(PropertyError, match="nope"):
        openvino.compile_model(model, {"PROVIDER_OPTIONS": {"nope": 1}})


def test_model_split_between_provider_and_other_devices(openvino):
    with hetero.Core(executor="inprocess") as core:
        assert "ORT_OPENVINO" in core.available_devices
        model = parsed(
            "(float[2,3] x) => (float[2,3] y) {a = Neg(x) b = Relu(a) c = Exp(b) y = Add(c, x)}"
        )
        x = np.float32([[1, -2, 3], [-4, 5, -6]])
        compiled = core.compile_model(
            model, "HETERO:ORT_OPENVINO,ORT,CPU", affinity={"b": "ORT", "c": "CPU"}
        )
        devices = [s.device for s in compiled.subgraphs]
        assert devices == ["ORT_OPENVINO", "ORT", "CPU", "ORT_OPENVINO"]
        want = np.exp(np.maximum(-x, 0)) + x
        np.testing.assert_allclose(compiled(x)["y"], want, rtol=1e-5)
        again = core.import_model(compiled.export_model())
        np.testing.assert_allclose(again(x)["y"], want, rtol=1e-5)


@pytest.mark.slow
def test_provider_suites_with_the_wheel_of_openvino(tmp_path):
    """Run the provider tests and the conformance suite in an environment with that wheel."""
    venv.create(tmp_path, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path)}))
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(("onnxruntime", "openvino")):
            (packages / package.name).symlink_to(package)
    python = tmp_path / "bin" / "python"
    install = ["-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile"]
    process = subprocess.run(
        [sys.executable, *install, "onnxruntime-openvino"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    if process.returncode:
        pytest.skip(f"pip cannot install the wheel: {process.stderr.strip().splitlines()[-1]}")
    tests = ["tests/devices/ort/test_provider_plugin.py", "tests/devices/conformance/test_suite.py"]
    process = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "0", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-4000:]
