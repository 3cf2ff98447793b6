"""Exported and imported models: equality, other devices, descriptions."""

from __future__ import annotations

import io
import json
import logging
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper
from onnx.parser import parse_model

import hetero
from hetero.cache.blob import describe_blob
from hetero.cli.main import cli
from hetero.devices import errors
from hetero.examples.third_party_plugin import DensePlugin
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.model_parts import join_model
from tests.support.core_fixtures import core_fixture
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
PINS = {"op:Neg": "CPU", "tanh": "CPU"}
GOLDEN = Path(__file__).parents[2] / "golden"


core = core_fixture("module", plugins=[CountingPlugin, DensePlugin])


@pytest.fixture(scope="module")
def blob(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        return compiled.export_model()


def mixed_types_model() -> onnx.ModelProto:
    """Return a model of strings and bfloat16 whose outputs include an input and a constant."""
    model = parse_model(
        """<ir_version: 9, opset_import: ["": 20]>
        odd (float[3] x, string[2] t) => (float[3] y, string[2] u, float[3] x, string[2] suffix)
        <string[2] suffix = {"!", "ü"}> {
            b = Cast <to = 16> (x) s = Add(b, w) y = Cast <to = 1> (s) u = StringConcat(t, suffix)
        }"""
    )
    weight = helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])
    model.graph.initializer.append(weight)
    return model


@pytest.mark.parametrize("kind", ["bytes", "stream", "path", "memoryview"])
def test_imported_model_equals_exported_model(core, blob, kind, tmp_path):
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    sources: dict[str, Any] = {"bytes": blob, "stream": io.BytesIO(blob), "path": path}
    source = sources.get(kind, memoryview(blob))
    with (
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled,
        core.import_model(source) as imported,
    ):
        assert imported.deployment.imported == {s.index for s in imported.subgraphs}
        assert not imported.get_property("LOADED_FROM_CACHE")
        assert (imported.inputs, imported.outputs) == (compiled.inputs, compiled.outputs)
        assert imported.partition == compiled.partition
        assert imported.affinity == compiled.affinity
        assert imported.plan.to_bytes() == compiled.plan.to_bytes()
        np.testing.assert_array_equal(imported({"x": X})[0], compiled({"x": X})[0])
        assert imported.executed_nodes() == compiled.executed_nodes()
        assert [s.model.content_hash for s in imported.subgraphs] == [
            s.model.content_hash for s in compiled.subgraphs
        ]


def test_export_of_imported_model_is_equal(core, blob):
    with core.import_model(blob) as compiled:
        assert compiled.export_model() == blob


def test_export_is_deterministic(core, blob):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        assert compiled.export_model() == blob


def test_export_to_stream_and_path(core, blob, tmp_path):
    stream = io.BytesIO()
    with core.import_model(blob) as compiled:
        compiled.export_model(stream)
        compiled.export_model(tmp_path / "m.hetero")
    assert stream.getvalue() == (tmp_path / "m.hetero").read_bytes() == blob
    assert [path.name for path in tmp_path.iterdir()] == ["m.hetero"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o644)])
def test_exported_file_has_the_mode_of_the_umask(core, blob, tmp_path, mask, mode):
    previous = os.umask(mask)
    try:
        core.import_model(blob).export_model(tmp_path / "m.hetero")
    finally:
        os.umask(previous)
    assert (tmp_path / "m.hetero").stat().st_mode & 0o777 == mode


def test_export_to_pipe_is_rejected(core, blob, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with core.import_model(blob) as compiled, pytest.raises(OSError, match="not a regular file"):
        compiled.export_model(pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_import_of_strings_bfloat16_and_constant_outputs(core):
    inputs = {"x": np.ones(3, np.float32), "t": np.array(["a", "b"], object)}
    with core.compile_model(mixed_types_model(), "CPU") as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as imported:
        y, u, x, suffix = imported(inputs).to_tuple()
    np.testing.assert_array_equal(y, [2, 3, 4])
    np.testing.assert_array_equal(x, inputs["x"])
    assert (u.tolist(), suffix.tolist()) == (["a!", "bü"], ["!", "ü"])


def test_import_of_model_without_nodes(core):
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        empty (float[3] x) => (float[3] x, int64[4] w) <int64[4] w = {0, 1, 2, 3}> { }"""
    )
    with core.compile_model(model, "HETERO:ORT,CPU") as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as imported:
        x, w = imported({"x": np.ones(3, np.float32)}).to_tuple()
    assert (x.tolist(), w.tolist()) == ([1, 1, 1], [0, 1, 2, 3])


def test_import_compiles_stages_of_device_without_export(core):
    pins = {"matmul": "DENSE"}
    with core.compile_model(branches(), "HETERO:DENSE,CPU", affinity=pins) as compiled:
        assert "DENSE" in compiled.get_property("EXECUTION_DEVICES")
        blob = compiled.export_model()
    with core.import_model(blob) as imported:
        assert 0 < len(imported.deployment.imported) < len(imported.subgraphs)
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)


def test_import_failure_compiles_again_with_warning(core, monkeypatch, caplog):
    with core.compile_model(branches(), "COUNT") as compiled:
        blob = compiled.export_model()
    monkeypatch.setattr(CountingPlugin, "broken", True)
    with caplog.at_level(logging.WARNING), core.import_model(blob) as imported:
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)
        assert not imported.deployment.imported
    assert "broken by design" in caplog.text
    assert "the stage is compiled again" in caplog.text


def test_imported_model_reads_its_source_lazily(core, monkeypatch):
    with core.compile_model(branches(), "CPU") as compiled:
        blob = compiled.export_model()
    join = Mock(wraps=join_model)
    monkeypatch.setattr("hetero.cache.blob.join_model", join)
    with core.import_model(blob) as imported:
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)
        join.assert_not_called()
        assert len(imported.source.nodes) == len(branches().graph.node)
    join.assert_called_once()


def test_changed_device_version_compiles_again_with_warning(monkeypatch, caplog):
    with (
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.compile_model(branches(), "COUNT") as compiled,
    ):
        blob = compiled.export_model()
    monkeypatch.setattr(CountingPlugin, "chip", "b")
    with (
        caplog.at_level(logging.WARNING),
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.import_model(blob) as imported,
    ):
        assert not imported.deployment.imported
        np.testing.assert_allclose(imported({"x": X})[0], branches_output(X), rtol=1e-6)
    assert "stages=[0]: compiling again" in caplog.text


def test_changed_caching_property_compiles_again(core):
    with core.compile_model(branches(), "COUNT", {"COUNT_LEVEL": 1}) as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as same_level:
        assert same_level.deployment.imported == {0}
    with core.import_model(blob, config={"COUNT_LEVEL": 1}) as same_level:
        assert same_level.deployment.imported == {0}
    with core.import_model(blob, config={"COUNT_LEVEL": 2}) as other_level:
        assert not other_level.deployment.imported


def test_import_options_override_exported_options(core):
    config = {"PERF_COUNT": True, "MAX_REQUESTS_IN_FLIGHT": 7}
    with core.compile_model(branches(), "CPU", config) as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as imported:
        assert imported.get_property("PERF_COUNT")
        assert imported.get_property("MAX_REQUESTS_IN_FLIGHT") == 7
    with core.import_model(blob, config={"MAX_REQUESTS_IN_FLIGHT": 3}) as imported:
        assert imported.get_property("MAX_REQUESTS_IN_FLIGHT") == 3


def test_missing_device_error_suggests_remap(core):
    pins = {"op:Neg": "CPU"}
    with core.compile_model(branches(), "HETERO:COUNT,CPU", affinity=pins) as compiled:
        blob = compiled.export_model()
    with hetero.Core(executor="inprocess", devices={"CPU": 2}) as other_core:
        with pytest.raises(errors.UnknownDeviceError, match="remap") as error:
            other_core.import_model(blob)
        assert error.value.data["devices"] == ("COUNT",)
        with other_core.import_model(blob, remap={"COUNT": "CPU.1"}) as remapped:
            assert remapped.get_property("EXECUTION_DEVICES") == ["CPU.1", "CPU.0"]
            assert remapped.deployment.imported == {1}
            assert "(compiled for COUNT)" in remapped.affinity.reasons["matmul"]
            np.testing.assert_allclose(remapped({"x": X})[0], branches_output(X), rtol=1e-6)
        with other_core.import_model(blob, "HETERO:ORT,CPU.1") as replanned:
            assert replanned.get_property("EXECUTION_DEVICES") == ["ORT"]
            np.testing.assert_allclose(replanned({"x": X})[0], branches_output(X), rtol=1e-6)


def test_remap_within_plugin_imports_without_compiling(blob):
    with (
        hetero.Core(executor="inprocess", devices={"CPU": 2, "ORT": 2}) as other_core,
        other_core.import_model(blob, remap={"ORT": "ORT.1", "CPU": "CPU.1"}) as remapped,
    ):
        assert remapped.get_property("EXECUTION_DEVICES") == ["ORT.1", "CPU.1"]
        assert len(remapped.deployment.imported) == len(remapped.subgraphs)
        np.testing.assert_allclose(remapped({"x": X})[0], branches_output(X), rtol=1e-6)


def test_remap_of_unknown_device_is_rejected(core, blob):
    with pytest.raises(errors.BlobError, match="NULL"):
        core.import_model(blob, remap={"NULL": "CPU"})


@pytest.mark.parametrize("source", [b"", b"garbage" * 100, b"\x08\x07"])
def test_invalid_blob_is_rejected(core, source):
    with pytest.raises(errors.BlobError):
        core.import_model(source)


def test_missing_file_is_rejected(core, tmp_path):
    with pytest.raises(FileNotFoundError):
        core.import_model(tmp_path / "none.hetero")


def test_imported_weights_are_memory_mapped(core, blob, tmp_path):
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    with core.import_model(path) as compiled:
        array = compiled.partition.source.constants["w"].array
        assert not array.flags.owndata
        assert not array.flags.writeable
        path.unlink()  # the memory map keeps the contents
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_description_reads_only_the_header(blob, tmp_path):
    data = bytearray(blob)
    data[BlobFile(blob).segments[0].offset] ^= 1
    document = describe_blob(BlobFile(bytes(data)))
    assert (document["kind"], document["name"]) == ("model", "branches")
    assert set(document["devices"]) == {"ORT", "CPU"}
    assert [row["device"] for row in document["stages"]] == ["ORT", "CPU", "ORT"]
    assert document["inputs"] == [{"name": "x", "type": "tensor(float)", "shape": ["N", 3]}]
    json.dumps(document)


def test_description_has_the_options_of_the_model_and_its_devices(core):
    options = {"AUTO_BATCH_TIMEOUT": 7, "DEVICE_PROPERTIES": {"ORT": {"NUM_STREAMS": 2}}}
    with core.compile_model(branches(), "HETERO:ORT,CPU", options, affinity=PINS) as compiled:
        document = describe_blob(BlobFile(compiled.export_model()))
    assert document["options"]["AUTO_BATCH_TIMEOUT"] == 7
    assert document["device_options"]["ORT"]["NUM_STREAMS"] == 2


def test_import_of_version_1_blob(core):
    blob = BlobFile(GOLDEN / "blob_v1.hetero")
    expected = json.loads((GOLDEN / "blob_v1.json").read_text())
    document = json.loads(json.dumps(describe_blob(blob)))
    assert {key: document[key] for key in expected} == expected
    with core.import_model(GOLDEN / "blob_v1.hetero") as compiled:
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_commands(tmp_path):
    (tmp_path / "m.onnx").write_bytes(branches().SerializeToString())
    model, file = str(tmp_path / "m.onnx"), str(tmp_path / "m.hetero")
    flags = ["--executor", "inprocess", "--json"]

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout)) if not code else {}

    document = call(
        "compile", model, "-d", "HETERO:ORT,CPU", "-a", "op:Neg=CPU", "-o", file, *flags
    )
    assert document["files"] == [file]
    rerun = call("run", file, *flags)
    assert rerun["subgraphs"] == document["subgraphs"]
    for options in (("--remap", "ORT=CPU"), ("-d", "CPU")):
        remapped = call("run", file, *options, *flags)
        assert {s["device"] for s in remapped["subgraphs"]} == {"CPU"}
    assert call("inspect", file, "--verify", "--json")["name"] == "branches"
    call("run", file, "--remap", "ORT", *flags, code=2)
    call("run", file, "-a", "op:Neg=CPU", *flags, code=2)
    call("run", model, "--remap", "ORT=CPU", *flags, code=2)
