"""Invalid models, devices, inputs, properties and plugins raise one clear error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

import hetero
from hetero.devices import errors
from hetero.examples.third_party_plugin import DensePlugin
from tests.support.command_line import CommandResult
from tests.support.models import branches, unknown_ops

X = np.ones((2, 3), np.float32)


def check_refusal(result: CommandResult, error_type: type[Exception] | None, *words: str) -> None:
    """Check for an error of this type, or a usage error if None, without a traceback."""
    assert result.code == (1 if error_type else 2), result.err
    assert result.out == ""
    assert "Traceback" not in result.err
    assert (f"hetero: {error_type.__name__}: " if error_type else "Error: ") in result.err
    for word in words:
        assert word in result.err


# Model files.


def write_folder(path: Path) -> None:
    path.mkdir()


def write_truncated(path: Path) -> None:
    data = branches().SerializeToString()
    path.write_bytes(data[: len(data) // 2])


def write_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**31 + 5)


def write_model(path: Path, **fields: Any) -> None:
    proto = branches()
    if "opset" in fields:
        proto.opset_import[0].version = fields["opset"]
    proto.ir_version = fields.get("ir_version", proto.ir_version)
    path.write_bytes(proto.SerializeToString())


FILES: dict[str, tuple[Callable[[Path], object], type[Exception], tuple[str, ...]]] = {
    "absent": (lambda path: None, errors.ModelNotFoundError, ("does not exist", "light:")),
    "folder": (write_folder, errors.ModelNotFoundError, ("is a folder",)),
    "empty": (lambda p: p.write_bytes(b""), errors.ModelError, ("an ONNX model",)),
    "text": (
        lambda p: p.write_text("a model\n"),
        errors.ModelError,
        ("not an ONNX model", "Pass a complete ONNX file"),
    ),
    "garbage": (
        lambda p: p.write_bytes(np.random.default_rng(0).bytes(500)),
        errors.ModelError,
        ("not an ONNX model", "500 bytes"),
    ),
    "truncated": (
        write_truncated,
        errors.ModelError,
        ("not an ONNX model", "Pass a complete ONNX file"),
    ),
    "huge": (write_huge, errors.ModelError, ("2147483653", "save_as_external_data")),
    "opset": (
        lambda p: write_model(p, opset=999),
        errors.UnsupportedOpsetError,
        ("999", str(onnx.defs.onnx_opset_version()), "newer onnx"),
    ),
    "ir": (
        lambda p: write_model(p, ir_version=99),
        errors.UnsupportedOpsetError,
        ("99", str(onnx.IR_VERSION), "newer onnx"),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_invalid_model_files_are_refused(core, shell, tmp_path, name, monkeypatch):
    write, kind, words = FILES[name]
    path = tmp_path / "model.onnx"
    write(path)
    if name == "huge":
        monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read"))
    with pytest.raises(kind) as error:
        core.read_model(path)
    assert all(word in str(error.value) for word in (*words, str(path)))
    for command in ("run", "query", "compile", "bench"):
        check_refusal(shell(command, path), kind, *words)


# Weights in external files.

WEIGHT = np.linspace(-1, 1, 12, dtype=np.float32)
EXTERNAL: dict[str, tuple[dict[str, object], str]] = {
    "parent": ({"location": "../outside.bin"}, "inside the model's folder"),
    "absolute": ({"location": "/etc/hostname"}, "inside the model's folder"),
    "symlink": ({"location": "link.bin"}, "inside the model's folder"),
    "missing": ({"location": "absent.bin"}, "does not exist"),
    "short": ({"location": "short.bin"}, "the file has 20"),
    "beyond": ({"location": "weight.bin", "offset": 8, "length": 48}, "the file has 48"),
    "negative": ({"location": "weight.bin", "offset": -8, "length": 48}, "the file has 48"),
    "no number": ({"location": "weight.bin", "offset": "x"}, "not a number"),
    "another size": ({"location": "weight.bin", "length": 8}, "expected 48 bytes"),
    "folder": ({"location": "."}, "not a file name"),
    "nothing": ({}, "not a file name"),
    "null byte": ({"location": "weight\0.bin"}, "not a file name"),
}


def write_external(folder: Path, **entries: object) -> Path:
    proto = branches()
    (tensor,) = proto.graph.initializer
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=str(value))
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("target", ["../../blobs/weight", "../../blobs/more/weight", "../weight"])
def test_external_data_behind_cache_links_is_read(core, tmp_path, target):
    """In the cache of Hugging Face, each file of a snapshot links to a file of one folder."""
    folder, blobs = tmp_path / "snapshots" / "1", tmp_path / "blobs"
    (blobs / "more").mkdir(parents=True)
    folder.mkdir(parents=True)
    for parent in (blobs, blobs / "more", tmp_path / "snapshots"):
        WEIGHT.tofile(parent / "weight")
    path = write_external(folder, location="model.onnx_data")
    path.rename(blobs / "model")
    path.symlink_to("../../blobs/model")
    (folder / "model.onnx_data").symlink_to(target)
    if target == "../../blobs/weight":
        model = core.read_model(path)
        np.testing.assert_array_equal(model.constants["w"].array.ravel(), WEIGHT)
    else:
        with pytest.raises(errors.ExternalDataError, match="inside the model's folder"):
            core.read_model(path)


@pytest.mark.parametrize("name", EXTERNAL)
def test_invalid_external_data_is_refused(core, shell, tmp_path, name):
    folder = tmp_path / "model"
    folder.mkdir()
    WEIGHT.tofile(tmp_path / "outside.bin")
    WEIGHT.tofile(folder / "weight.bin")
    WEIGHT[:5].tofile(folder / "short.bin")
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    entries, word = EXTERNAL[name]
    path = write_external(folder, **entries)
    with pytest.raises(errors.ExternalDataError, match=word):
        core.read_model(path)
    check_refusal(shell("run", path), errors.ExternalDataError, word, "'w'")
    write_external(folder, location="weight.bin")
    assert shell("run", path).code == 0


# Nodes, pins, devices.


def test_unsupported_nodes_are_listed_with_each_devices_reason(shell, tmp_path):
    path = tmp_path / "unknown.onnx"
    path.write_bytes(unknown_ops().SerializeToString())
    words = ("'first'", "Frobnicate", "'second'", "Defenestrate", "ORT:", "CPU:", "no kernel")
    for command in ("run", "compile", "bench"):
        result = shell(command, path, "-d", "HETERO:ORT,CPU")
        check_refusal(result, errors.UnsupportedNodesError, *words)
    query = shell("query", path, "-d", "HETERO:ORT,CPU")
    assert query.code == 1
    assert "Frobnicate" in query.out
    assert "Defenestrate" in query.out
    document = shell("query", path, "-d", "HETERO:ORT,CPU", "--json")
    assert document.code == 1
    assert document.document["kind"] == "query"


PINS: dict[str, tuple[str, tuple[str, ...]]] = {
    "conv1=CPU": ("conv1", ("'matmul'", "'add'")),
    "relu=TPU": ("TPU", ("ORT", "CPU")),
    "relu=NULL": ("NULL", ("ORT", "CPU")),
    "op:Conv=CPU": ("op:Conv", ()),
    "relu": ("PATTERN=DEVICE", ()),
    "=CPU": ("PATTERN=DEVICE", ()),
}


@pytest.mark.parametrize("pin", PINS)
def test_pins_without_matching_nodes_are_refused(shell, core, model, pin):
    word, more = PINS[pin]
    result = shell("run", model, "-d", "HETERO:ORT,CPU", "-a", pin)
    check_refusal(result, errors.AffinityError, word, *more)
    with pytest.raises(errors.AffinityError, match=word):
        core.compile_model(model, "HETERO:ORT,CPU", affinity=[pin])


def test_pin_to_a_device_without_support_is_refused(core, shell, tmp_path):
    path = tmp_path / "unknown.onnx"
    path.write_bytes(unknown_ops().SerializeToString())
    words = ("'first'", "Frobnicate", "CPU does not support it", "no kernel")
    check_refusal(shell("run", path, "-a", "first=CPU"), errors.AffinityError, *words)
    with pytest.raises(errors.AffinityError, match="does not support"):
        core.compile_model(path, affinity={"first": "CPU"})


AFFINITY_FILES = {
    ".json": {"empty": "", "cut": '{"relu": "CPU"', "list": '["relu"]', "number": '{"relu": 1}'},
    ".yaml": {"cut": "relu: [CPU", "list": "- relu", "number": "relu: 1", "twice": "a: A\na: B"},
}


@pytest.mark.parametrize(
    ("suffix", "name"), [(s, n) for s, files in AFFINITY_FILES.items() for n in files]
)
def test_invalid_affinity_files_are_refused(core, shell, model, tmp_path, suffix, name):
    path = tmp_path / f"pins{suffix}"
    path.write_text(AFFINITY_FILES[suffix][name])
    check_refusal(shell("run", model, "-a", path), errors.AffinityError, f"{path}:")
    with pytest.raises(errors.AffinityError, match=path.name):
        core.compile_model(model, affinity=path)


DEVICES = {
    "TPU": "available: CPU",
    "cpu": "Did you mean CPU?",
    "ORT.1": "devices={'ORT': 2}",
    "ORT,CPU": "write HETERO:ORT,CPU",
    "HETERO:ORT,,CPU": "empty entry",
    "HETERO:": "empty entry",
    "": "empty entry",
    "CPU:ORT": "write HETERO:ORT",
}


@pytest.mark.parametrize("device", DEVICES)
def test_invalid_device_strings_are_refused(core, shell, model, device):
    result = shell("run", model, "-d", device)
    check_refusal(result, errors.UnknownDeviceError, DEVICES[device])
    with pytest.raises(errors.UnknownDeviceError) as error:
        core.query_model(model, device)
    assert DEVICES[device] in str(error.value)


def test_device_lists_ignore_spaces_and_repetitions(core, shell, model):
    assert core.resolve_devices(" HETERO: ORT , CPU ,ORT.0") == ("ORT", "CPU")
    assert shell("run", model, "-d", "HETERO: ORT, CPU, ORT").code == 0


# Inputs.


INPUTS: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "nothing": ({}, errors.TensorNameError, ("'x'", "missing")),
    "misnamed": ({"X": X}, errors.TensorNameError, ("'X'", "'x'")),
    "extra": ({"x": X, "z": X}, errors.TensorNameError, ("'z'", "'x'")),
    "two for one": ([X, X], errors.TensorNameError, ("at most 1 input (", "got 2", "'x'")),
    "two arguments": ((X, X), errors.TensorNameError, ("at most 1 input (", "got 2", "'x'")),
    "shape": ({"x": X[:, :2]}, errors.TensorShapeError, ("[N, 3]", "[2, 2]")),
    "rank": ({"x": X[0]}, errors.TensorShapeError, ("[N, 3]", "[3]")),
    "complex": ({"x": X + 1j}, errors.TensorTypeError, ("complex", "float")),
    "text": ({"x": "abc"}, errors.TensorTypeError, ("float",)),
    "none": ({"x": None}, errors.TensorTypeError, ("None", "float")),
    "ragged": ({"x": [[1.0], [1.0, 2.0]]}, errors.TensorShapeError, ("nested list",)),
    "objects": ({"x": object()}, errors.TensorTypeError, ("object",)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_of_other_shapes_or_types_are_refused(core, name):
    inputs, kind, words = INPUTS[name]
    with core.compile_model(branches(), "CPU") as compiled:
        with pytest.raises(kind) as error:
            compiled(inputs)
        assert all(word in str(error.value) for word in words)
        assert compiled(X)[0].shape == (2, 4)


INPUT_FILES: dict[str, tuple[Callable[[Path], object], str, type[Exception] | None, str]] = {
    "absent": (lambda p: None, "x.npy", None, "does not exist"),
    "folder": (write_folder, "x.npy", None, "is a folder"),
    "text": (lambda p: p.write_text("1 2 3"), "x.txt", None, "not a .npy file"),
    "pickle": (
        lambda p: np.save(p, np.array([{}], object), allow_pickle=True),
        "x.npy",
        None,
        "Python objects",
    ),
    "pickle in archive": (
        lambda p: np.savez(p, x=np.array([{}], object)),
        "x.npz",
        None,
        "Python objects",
    ),
    "text as archive": (lambda p: p.write_text("1 2 3"), "x.npz", None, "not a .npz file"),
    "garbage tensor": (lambda p: p.write_bytes(b"\xff" * 40), "x.pb", None, "not a .pb file"),
    "another name": (lambda p: np.savez(p, z=X), "x.npz", None, "no input z; expected x"),
    "shape": (lambda p: np.save(p, X[:, :2]), "x.npy", errors.TensorShapeError, "[2, 2]"),
    "type": (lambda p: np.save(p, X + 1j), "x.npy", errors.TensorTypeError, "complex"),
}


@pytest.mark.parametrize("name", INPUT_FILES)
def test_invalid_input_files_are_refused(shell, model, tmp_path, name):
    write, file, kind, words = INPUT_FILES[name]
    path = tmp_path / file
    write(path)
    result = shell("run", model, "--input", path)
    check_refusal(result, kind, words)
    assert "allow_pickle" not in result.err


# Properties.

PROPERTIES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown": ({"NUM_STREAM": 1}, errors.UnknownPropertyError, "Did you mean NUM_STREAMS"),
    "far off": ({"FOO": 1}, errors.UnknownPropertyError, "Expected "),
    "ill-typed": ({"NUM_STREAMS": "many"}, errors.PropertyError, "expected an integer"),
    "too small": ({"NUM_STREAMS": 0}, errors.PropertyError, ">= 1"),
    "no yes or no": ({"PERF_COUNT": "perhaps"}, errors.PropertyError, "expected YES or NO"),
    "read-only": ({"FULL_DEVICE_NAME": "x"}, errors.ReadOnlyPropertyError, "is read-only"),
    "threads": ({"INFERENCE_NUM_THREADS": "all"}, errors.PropertyError, "expected an integer"),
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_invalid_properties_are_refused(core, shell, model, name):
    config, kind, words = PROPERTIES[name]
    before = core.get_property("CPU", "NUM_STREAMS")
    for scope in (("CPU",), ()):
        with pytest.raises(kind, match=words):
            core.set_property(*scope, config)
    with pytest.raises(kind, match=words):
        core.compile_model(model, "CPU", config)
    assert core.get_property("CPU", "NUM_STREAMS") == before
    ((key, value),) = config.items()
    result = shell("run", model, "-d", "CPU", "-c", f"{key}={value}")
    check_refusal(result, kind, words)


def test_properties_of_an_unused_device_are_validated(shell, model):
    result = shell("run", model, "-d", "HETERO:ORT,CPU", "-c", "CPU.NUM_STREAMS=many")
    check_refusal(result, errors.PropertyError, "expected an integer")
    result = shell("run", model, "-d", "HETERO:ORT,CPU", "-c", "TPU.NUM_STREAMS=2")
    check_refusal(result, errors.UnknownPropertyError, "TPU", "ORT, CPU")


def test_compiled_model_properties_are_read_only(core):
    differing = {"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 2}}}
    pins = {"tanh": "CPU"}
    with core.compile_model(branches(), "HETERO:ORT,CPU", differing, affinity=pins) as compiled:
        for name in ("PERF_COUNT", "NUM_STREAMS"):
            with pytest.raises(errors.UnsupportedOperationError, match="compile again"):
                compiled.set_property({name: 1})
        with pytest.raises(errors.UnknownPropertyError, match="Expected "):
            compiled.set_property({"FOO": 1})
        with pytest.raises(errors.UnknownPropertyError, match="Expected "):
            compiled.get_property("FOO")


# Plugins.


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("no.such.module:Plugin", "No module named"),
        ("json:Plugin", "no attribute"),
        ("json", "module:attr"),
        ("json:loads", "expected a subclass"),
    ],
)
def test_failing_plugin_is_listed_and_raises_on_use(shell, model, spec, words):
    # Known plugins without an installed package are also listed.
    installed = {row["plugin"] for row in shell("devices --json").document["devices"]}
    result = shell("devices --json", "--plugin", spec)
    assert result.code == 0
    (row,) = [row for row in result.document["devices"] if row["plugin"] not in installed]
    assert words in row["error"]
    assert words in shell("devices", "--plugin", spec).out
    result = shell("run", model, "-d", "CPU", "--plugin", spec)
    check_refusal(result, None, spec, words)


class PluginWithoutBackend(DensePlugin):
    """A plugin whose backend is not installed."""

    name = "BROKEN"

    def __init__(self) -> None:
        raise ImportError("no libbroken here; pip install broken-runtime")


class PluginWithoutDriver(DensePlugin):
    """A plugin that loads but fails while it lists its devices."""

    name = "BROKEN"

    def device_ids(self) -> tuple[str, ...]:
        raise OSError("the driver does not answer; pip install broken-runtime")


@pytest.mark.parametrize("plugin", [PluginWithoutBackend, PluginWithoutDriver])
def test_broken_plugin_named_explicitly_raises_its_error(model, plugin):
    with hetero.Core("inprocess", plugins=[plugin]) as core:
        assert "BROKEN" not in core.available_devices
        for device in ("BROKEN", "BROKEN.0", "HETERO:BROKEN"):
            with pytest.raises(errors.PluginLoadError, match="pip install broken-runtime"):
                core.compile_model(model, device)
        assert core.compile_model(model, "HETERO")(X)[0].shape == (2, 4)


def test_device_list_skips_broken_plugin_with_warning(model, caplog):
    with hetero.Core("inprocess", plugins=[PluginWithoutBackend]) as core:
        compiled = core.compile_model(model, "HETERO:BROKEN,CPU")
        assert compiled(X)[0].shape == (2, 4)
        (message,) = caplog.messages
        assert message.startswith("BROKEN: removed from HETERO:BROKEN,CPU: ")
        assert "pip install broken-runtime" in message
        with pytest.raises(errors.UnknownDeviceError, match="BROKN"):
            core.compile_model(model, "HETERO:BROKN,CPU")


def test_device_of_a_module_that_does_not_load(model, shell):
    reason = "nomodule:DensePlugin does not load: ModuleNotFoundError: No module named 'nomodule'."
    with hetero.Core("inprocess") as core:
        core.register_plugin("nomodule:DensePlugin")
        with pytest.raises(errors.UnknownDeviceError, match=reason) as raised:
            core.compile_model(model, "DENSE")
        assert raised.value.device == "DENSE"
    result = shell("check-device DENSE --plugin nomodule:DensePlugin", ray=True)
    assert result.code == 1
    assert f"the plugins are CPU, ORT, OV, GPU, NULL. {reason}" in result.err


def test_check_of_a_missing_blob(shell, tmp_path):
    result = shell("check", tmp_path / "no.blob")
    assert result.code == 2
    assert "no.blob does not exist; write a blob with `hetero compile -o`." in result.err


def test_known_device_that_is_not_installed(model, shell, caplog):
    reason = "the wheel onnxruntime-ep-mlx, a plug-in of onnxruntime, is not installed. "
    reason += "To install: pip install onnxruntime-ep-mlx"
    with hetero.Core("inprocess") as core:
        for device in ("ORT_MLX", "HETERO:ORT_MLX"):
            with pytest.raises(errors.PluginLoadError, match=reason):
                core.query_model(model, device)
    assert shell("run -d HETERO:ORT_MLX,CPU", model).code == 0
    assert caplog.messages == [f"ORT_MLX: removed from HETERO:ORT_MLX,CPU: {reason}"]


def test_cluster_node_with_a_broken_plugin_starts(shell, monkeypatch):
    point = metadata.EntryPoint("BROKEN", f"{__name__}:PluginWithoutDriver", "hetero.plugins")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point])
    result = shell("probe", ray=True)
    assert result.code == 0
    assert result.out == "\n"
    assert "BROKEN is not offered: OSError: the driver does not answer" in result.err


def test_device_counts_of_unknown_plugins_are_refused(shell, model):
    result = shell("run", model, "--devices", "TPU=2")
    check_refusal(result, errors.UnknownDeviceError, "'TPU'", "CPU, ORT")


# Use after close.


def test_closed_compiled_model_raises():
    core = hetero.Core("inprocess")
    closed = core.compile_model(branches(), "CPU")
    orphan = core.compile_model(branches(), "CPU")
    closed.close()
    with pytest.raises(errors.RequestCancelledError, match="closed"):
        closed(X)
    core.close()
    core.close()
    with pytest.raises(errors.RequestCancelledError, match="closed"):
        orphan(X)
    with pytest.raises(errors.DeviceError):
        orphan.export_model()
    with contextlib.suppress(errors.RequestCancelledError):
        orphan.close()
    with pytest.raises(errors.ClusterError, match="closed"):
        core.compile_model(branches(), "CPU")
