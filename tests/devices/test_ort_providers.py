"""ONNX Runtime's other providers: found, proved, asked what they really take, options, memory."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

import hetero
from hetero.devices import load_plugins
from hetero.devices.conformance.onnx_suite import backend_cases, outcome
from hetero.devices.conformance.plugin_subject import PluginSubject
from hetero.devices.errors import PropertyError, UnsupportedOperationError
from tests.support.networks import model as parsed

onnxruntime = pytest.importorskip("onnxruntime")
from hetero.devices.ort import provider as module  # noqa: E402 - where onnxruntime is
from hetero.devices.ort.provider_plugin import ProviderPlugin, provider_class  # noqa: E402 - as above
from hetero.devices.ort.providers import provider_plugins  # noqa: E402 - as above
from hetero.devices.ort.remote import MEMORIES  # noqa: E402 - as above

ROOT = Path(__file__).parents[2]


def test_each_provider_is_a_device_of_its_own(monkeypatch):
    listed = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "AzureExecutionProvider"]
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: [*listed, "CPUExecutionProvider"]
    )
    assert [cls.name for cls in provider_plugins()] == ["ORT_TENSORRT", "ORT_CUDA"]


def test_providers_that_are_plugged_in_are_found(monkeypatch):
    class Device:
        ep_name = "PluggedExecutionProvider"

    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: [Device()])
    assert "PluggedExecutionProvider" in module.provider_names()


def test_a_provider_that_is_listed_and_does_not_work_is_a_row_with_the_reason():
    (entry,) = load_plugins([provider_class("CUDAExecutionProvider")], entry_points=False).values()
    if entry.plugin is not None:
        pytest.skip("there is a GPU here")
    assert entry.name == "ORT_CUDA"
    assert "CUDAExecutionProvider" in entry.error
    assert "driver or libraries" in entry.error


def test_a_provider_that_leaves_everything_to_the_cpu_is_a_row(monkeypatch):
    class Session(onnxruntime.InferenceSession):
        def get_providers(self):
            return ["LazyExecutionProvider"]

    def opened(self, data, options):
        return Session(data, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(module.Provider, "open_session", opened)
    (entry,) = load_plugins([provider_class("LazyExecutionProvider")], entry_points=False).values()
    assert "leaves Add and Relu to the CPU" in entry.error


class OnTheHost(ProviderPlugin):
    """The CPU's provider in the place of another: what is the same for all of them."""

    name = "ORT_HOST"
    provider_name = "CPUExecutionProvider"


def test_tensors_in_the_devices_memory_are_read_there(monkeypatch):
    monkeypatch.setitem(MEMORIES, "CPUExecutionProvider", "cpu")
    plugin = OnTheHost()
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


def test_a_provider_without_memory_of_its_own_says_so():
    with pytest.raises(UnsupportedOperationError, match="host's memory"):
        OnTheHost().create_context()


@pytest.fixture(scope="module")
def openvino():
    """The plugin of OpenVINO's provider, where its wheel of ONNX Runtime is the installed one."""
    if "OpenVINOExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("the installed onnxruntime is not onnxruntime-openvino")
    return provider_class("OpenVINOExecutionProvider")()


def test_what_the_provider_leaves_to_the_cpu_is_refused(openvino):
    model = parsed("(float[3,3] x) => (float z) {y = Relu(x) z = Det(y)}")
    support = openvino.query_model(model)
    assert dict(support) == {"y": "ORT_OPENVINO.0"}
    (found,) = support.unsupported["z"].values()
    assert found.code == "no_kernel"


def test_weights_are_shown_with_their_sizes_which_a_provider_may_want(openvino):
    ports = "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y)"
    assert dict(openvino.query_model(parsed(f"{ports} {{y = Conv(x, w)}}"))) == {
        "y": "ORT_OPENVINO.0"
    }


@pytest.mark.slow
def test_every_case_of_onnx_that_it_takes_is_right(openvino):
    """490 of the suite's 2,033; the failure lists those that are not, with what went wrong."""
    options = {"INFERENCE_NUM_THREADS": 1}
    found = {case.name: outcome(openvino, case, options) for case in backend_cases()}
    assert {n: said for n, said in found.items() if said not in ("refused", "passed")} == {}
    assert list(found.values()).count("passed") >= 490


def test_options_of_the_provider_reach_it_and_wrong_ones_are_errors(openvino):
    model = parsed("(float[2,3] x) => (float[2,3] y) {y = Relu(x)}")
    good = {"PROVIDER_OPTIONS": {"num_streams": "1", "device_type": "CPU"}}
    x = np.float32([[1, -2, 3], [4, 5, -6]])
    np.testing.assert_array_equal(openvino.compile_model(model, good)(x)["y"], np.maximum(x, 0))
    with pytest.raises(PropertyError, match="nope"):
        openvino.compile_model(model, {"PROVIDER_OPTIONS": {"nope": 1}})


def test_a_model_is_cut_between_a_provider_and_others(openvino):
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
def test_with_the_wheel_of_openvino_in_an_environment_of_its_own(tmp_path):
    """The tests of providers and the conformance suite, where that wheel is installed."""
    venv.create(tmp_path, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(tmp_path)}))
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if not package.name.startswith(("onnxruntime", "openvino")):
            (packages / package.name).symlink_to(package)
    python = tmp_path / "bin" / "python"
    install = ["-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-compile"]
    done = subprocess.run(
        [sys.executable, *install, "onnxruntime-openvino"],
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"pip cannot make it: {done.stderr.strip().splitlines()[-1]}")
    tests = ["tests/devices/test_ort_providers.py", "tests/devices/test_conformance.py"]
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "0", *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
