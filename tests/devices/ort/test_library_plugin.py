"""Plug-in execution providers as devices: libraries that fail, ggml's provider, and its options."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import hetero
from benchmarks.provider_nodes import count_by_onnxruntime, mlp_with_mish
from hetero.devices import load_plugins
from hetero.devices.errors import DeviceError, PluginLoadError, PropertyError, UnknownDeviceError
from hetero.devices.faults.ggml import FAULTS
from hetero.devices.model.reader import read_model
from hetero.devices.plugin.registry import find_plugin
from tests.support.networks import model as parsed
from tests.support.provider_libraries import compile_library

onnxruntime = pytest.importorskip("onnxruntime")
from hetero.devices.ort import provider_library  # noqa: E402 - needs onnxruntime
from hetero.devices.ort.library_plugin import library_class  # noqa: E402 - as above
from hetero.devices.ort.provider import Provider  # noqa: E402 - as above
from hetero.devices.ort.provider_library import ProviderLibrary, device_name  # noqa: E402 - as above

RELU = parsed("(float[2,3] x) => (float[2,3] y) {y = Relu(x)}")
X = np.float32([[1, -2, 3], [-4, 5, -6]])


def entry_of(name: str, path: object):
    """Return the only entry of a library's plugin."""
    (entry,) = load_plugins([f"{name}={path}"], entry_points=False).values()
    return entry


@pytest.mark.sampled(9, "reason")
@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("empty", "CreateEpFactories"),
        ("aborts_when_loaded", "SIGABRT"),
        ("aborts_when_registered", "SIGABRT"),
        ("segfaults_when_registered", "SIGSEGV"),
        ("exits_when_registered", "exit status 0"),
        ("no_factory", "no device"),
        ("newer_abi", "needs API 999"),
        ("foreign_factory", "SIGSEGV"),
    ],
)
def test_library_without_provider_is_listed_with_its_reason(library, reason, tmp_path):
    entry = entry_of("fake", compile_library(library, tmp_path))
    assert entry.name == "ORT_FAKE"
    assert entry.plugin is None
    assert reason in entry.error


@pytest.mark.parametrize(
    ("text", "reason"), [("no library" * 99, "invalid ELF header"), (None, "file")]
)
def test_file_without_library_is_listed_with_its_reason(text, reason, tmp_path):
    path = tmp_path / "provider.so"
    if text is not None:
        path.write_text(text)
    entry = entry_of("fake", path)
    assert entry.plugin is None
    assert reason in entry.error
    assert str(path) in entry.error


def test_library_of_the_system_becomes_entry_with_its_reason():
    lines = Path("/proc/self/maps").read_text().splitlines()
    (path,) = {line.split()[-1] for line in lines if "libc.so" in line}
    assert "CreateEpFactories" in entry_of("fake", path).error


def test_library_that_aborts_leaves_other_devices_working(tmp_path):
    path = compile_library("aborts_when_loaded", tmp_path)
    with hetero.Core("inprocess", plugins=[f"fake={path}"]) as core:
        (row,) = [row for row in core.device_descriptors if row.name == "ORT_FAKE"]
        assert "SIGABRT" in row.error
        with pytest.raises(DeviceError, match="crashes the process"):
            core.compile_model(RELU, "ORT_FAKE")
        np.testing.assert_array_equal(core.compile_model(RELU, "ORT")(X)["y"], np.maximum(X, 0))


def test_libraries_of_one_name_are_listed_as_conflict(tmp_path):
    paths = [compile_library(name, tmp_path) for name in ("empty", "no_factory")]
    entries = load_plugins([f"fake={path}" for path in paths], entry_points=False)
    assert entries["ORT_FAKE"].plugin is None
    assert all(str(path) in entries["ORT_FAKE"].error for path in paths)


@pytest.mark.parametrize(
    ("provider", "device"),
    [
        ("CUDAExecutionProvider", "ORT_CUDA"),
        ("WebGpuExecutionProvider", "ORT_WEBGPU"),
        ("nv-tensorrt-rtx", "ORT_NVTENSORRTRTX"),
        ("ggml", "ORT_GGML"),
    ],
)
def test_device_name_follows_provider_or_wheel(provider, device):
    assert device_name(provider) == device


def test_wheels_of_providers_are_found_by_name(monkeypatch, tmp_path):
    for name in ("onnxruntime_qnn", "onnxruntime_ep_webgpu", "onnxruntime", "onnxruntime_gpu"):
        (tmp_path / f"{name}-1.2.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    libraries = [
        library
        for library in provider_library.installed_libraries()
        if library.origin.endswith(" 1.2")
    ]
    assert [library.origin for library in libraries] == [
        "onnxruntime-ep-webgpu 1.2",
        "onnxruntime-qnn 1.2",
    ]
    assert [library.device for library in libraries] == ["ORT_WEBGPU", "ORT_QNN"]
    assert [library.package for library in libraries] == [
        "onnxruntime_ep_webgpu",
        "onnxruntime_qnn",
    ]


def test_wheel_whose_package_fails_becomes_plugin_error():
    library = ProviderLibrary("ORT_NONE", "onnxruntime-ep-none 1.0", "onnxruntime_ep_none")
    with pytest.raises(PluginLoadError, match=r"onnxruntime-ep-none 1\.0: it cannot be loaded"):
        library_class(library)()


@pytest.mark.slow
def test_command_line_rejects_text_that_names_no_library():
    for text in ("ggml", "ggml=folder/", "=lib.so", "a b=lib.so"):
        command = [sys.executable, "-m", "hetero", "devices", "--ep", text]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2
        assert "NAME=LIBRARY" in done.stderr


# Tests with a real provider.


@pytest.fixture(scope="module")
def ggml_path():
    """Path of ggml's library."""
    package = pytest.importorskip("onnxruntime_ggml", reason="onnxruntime-ggml is not installed")
    return Path(package.library_path())


@pytest.fixture(scope="module")
def ggml(ggml_path):
    """The plugin of ggml's provider."""
    return find_plugin(load_plugins([f"ggml={ggml_path}"], entry_points=False), "ORT_GGML")


@pytest.mark.usefixtures("ggml_path")
def test_provider_gets_more_nodes_than_from_onnxruntime():
    proto = mlp_with_mish()
    options = {"partial": "1"}
    own, total = count_by_onnxruntime("onnxruntime_ggml", proto, options)
    assert own == 0 < total
    x = np.random.default_rng(1).random((4, 64), np.float32)
    with hetero.Core("inprocess") as core:
        support = core.query_model(proto, "HETERO:ORT_GGML,ORT,CPU")
        assert list(support.values()).count("ORT_GGML") == 30
        compiled = core.compile_model(proto, "HETERO:ORT_GGML,ORT,CPU")
        assert len(compiled.subgraphs) == 13
        expected = core.compile_model(proto, "CPU")(x)[0]
        np.testing.assert_allclose(compiled(x)[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("ggml_path")
def test_subgraph_that_ends_the_process_is_refused():
    """Version 0.2.0 ends the process after a few runs of Add, LayerNormalization, MatMul."""
    proto = mlp_with_mish(2)
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(proto, "HETERO:ORT_GGML,ORT,CPU", {"VERIFY": "YES"})
        evidence = [e for v in compiled.verification.verdicts for e in v.evidence]
        assert any(e.is_crash and "SIG" in e.error for e in evidence)
        assert "ORT_GGML" in compiled.affinity.values()
        reference = core.compile_model(proto, "CPU")
        for seed in range(50):
            x = np.random.default_rng(seed).random((4, 64), np.float32)
            np.testing.assert_allclose(compiled(x)[0], reference(x)[0], rtol=1e-4, atol=1e-5)


def test_options_of_a_known_provider_are_typed_and_listed(ggml):
    assert "device (auto, gpu, cpu)" in ggml.properties["PROVIDER_OPTIONS"].doc
    for options in ({"threads": 1, "partial": True}, {"device": "CPU"}):
        ggml.compile_model(RELU, {"PROVIDER_OPTIONS": options})
    for options, reason in (
        ({"device": "npu"}, "one of 'auto', 'gpu', 'cpu'"),
        ({"threads": "x"}, "int"),
    ):
        with pytest.raises(PropertyError, match=reason):
            ggml.compile_model(RELU, {"PROVIDER_OPTIONS": options})


def test_option_refused_by_provider_raises_property_error(ggml):
    with pytest.raises(PropertyError, match=r"gpu|Vulkan"):
        ggml.query_model(RELU, {"PROVIDER_OPTIONS": {"device": "gpu"}})


def test_device_is_described_by_its_hardware(ggml):
    assert ggml.device_ids() == ("0",)
    assert "CPU" in ggml.full_name("0")
    assert "ggml" in ggml.full_name("0")
    assert ggml.get_property("DEVICE_TYPE", "0") == "INTEGRATED"


def test_node_that_the_provider_takes_and_fails_is_refused(ggml):
    """Version 0.2.0 takes this convolution, and fails when it runs."""
    model = parsed("(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {y = Conv(x, w)}")
    support = ggml.query_model(model)
    for refusals in support.unsupported.values():
        assert "trial run" in str(refusals["ORT_GGML.0"])
    for name in support:
        compiled = ggml.compile_model(model)
        assert compiled is not None, name


def test_proof_of_a_fault_is_refused(ggml):
    (fault,) = FAULTS.faults
    (refusals,) = ggml.query_model(read_model(fault.proof.model())).unsupported.values()
    assert fault.description in str(refusals["ORT_GGML.0"])


@pytest.mark.slow
def test_proof_of_a_fault_is_sometimes_wrong(ggml):
    """If no run is wrong, ggml has fixed the fault: remove its row."""
    (fault,) = FAULTS.faults
    proto = fault.proof.model()
    requests = [replace(fault.proof, sizes={"H": size}).inputs() for size in (11, 15)]
    options = onnxruntime.SessionOptions()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == ggml.provider_name]
    options.add_provider_for_devices(devices, {})
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    expected = [ReferenceEvaluator(proto).run(None, inputs)[0] for inputs in requests]
    runs = (
        np.array_equal(session.run(None, inputs)[0], result)
        for _ in range(2000)
        for inputs, result in zip(requests, expected, strict=True)
    )
    assert not all(runs)


def test_pad_that_reads_its_input_alone_is_accepted(ggml):
    model = parsed(
        "(float[N,4] x) => (float[M,4] y) <int64[4] p = {1, 0, 0, 0}> {r = Relu(x) y = Pad(r, p)}"
    )
    assert not ggml.query_model(model).unsupported


def test_cached_model_of_missing_provider_raises_typed_error(ggml_path, tmp_path):
    path = tmp_path / "libonnxruntime_ggml.so"
    shutil.copy(ggml_path, path)
    config = {"CACHE_DIR": str(tmp_path / "cache")}
    with hetero.Core("inprocess", plugins=[f"mine={path}"]) as core:
        first = core.compile_model(RELU, "HETERO:ORT_MINE,CPU", config)
        np.testing.assert_allclose(first(X)["y"], np.maximum(X, 0))
        blob = first.export_model()
    path.unlink()
    with hetero.Core("inprocess", plugins=[f"mine={path}"]) as core:
        with pytest.raises(DeviceError, match="there is no file"):
            core.compile_model(RELU, "ORT_MINE", config)
        compiled = core.compile_model(RELU, "HETERO:ORT_MINE,CPU", config)
        assert [subgraph.device for subgraph in compiled.subgraphs] == ["CPU"]
        np.testing.assert_array_equal(compiled(X)["y"], np.maximum(X, 0))
        with pytest.raises(UnknownDeviceError, match="not available: ORT_MINE"):
            core.import_model(blob)


@pytest.mark.parametrize(
    ("devices", "pins"), [("ORT_QNN", {}), ("HETERO:ORT_QNN,CPU", {"op:Relu": "CPU"})]
)
def test_compiled_model_of_the_provider_is_exported_and_loaded(monkeypatch, devices, pins):
    """Qualcomm's provider writes what it compiles as EPContext nodes; its simulator runs on x86."""
    pytest.importorskip("onnxruntime_qnn", reason="onnxruntime-qnn is not installed")
    text = "(float[1,3,8,8] x, float[4,3,3,3] w) => (float[1,4,6,6] y) {c = Conv(x, w) y = Relu(c)}"
    proto = parsed(text).to_proto()
    random = np.random.default_rng(2)
    proto.graph.initializer.append(
        onnx.numpy_helper.from_array(random.standard_normal((4, 3, 3, 3), np.float32), "w")
    )
    del proto.graph.input[1]
    x = random.random((1, 3, 8, 8), np.float32)
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(proto, devices, {"VERIFY": "NO"}, affinity=pins)
        y = compiled(x)["y"]
        expected = core.compile_model(proto, "ORT")(x)["y"]
        np.testing.assert_allclose(y, expected, rtol=0.02, atol=0.02)
        blob = compiled.export_model()
        assert b"EPContext" in blob
        opened_models = []
        open_session = Provider.open_session

        def record(self, data, options):
            opened_models.append(data)
            return open_session(self, data, options)

        monkeypatch.setattr(Provider, "open_session", record)
        imported = core.import_model(blob)
        np.testing.assert_array_equal(imported(x)["y"], y)
        assert [b"EPContext" in data for data in opened_models] == [True]
        assert b"EPContext" in imported.export_model()
