"""Exported models: they come back equal, move to other devices, and say what they are."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
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
from hetero.cli import cli
from hetero.devices import errors
from hetero.examples.third_party_plugin import DensePlugin
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.model_parts import join_model
from tests.support.counting_plugin import CountingPlugin
from tests.support.models import branches, branches_output

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
PINS = {"op:Neg": "CPU", "tanh": "CPU"}
GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(executor="inprocess", plugins=[CountingPlugin, DensePlugin]) as core:
        yield core


@pytest.fixture(scope="module")
def blob(core: hetero.Core) -> bytes:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        return compiled.export_model()


def odd() -> onnx.ModelProto:
    """Return a model with a pass-through, a constant and a repeated output, and odd types."""
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
def test_results_ports_and_cut_come_back_equal(
    core: hetero.Core, blob: bytes, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    sources: dict[str, Any] = {"bytes": blob, "stream": io.BytesIO(blob), "path": path}
    source = sources.get(kind, memoryview(blob))
    with (
        core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as before,
        core.import_model(source) as after,
    ):
        assert after.deployment.imported == {s.index for s in after.subgraphs}
        assert not after.get_property("LOADED_FROM_CACHE")
        assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
        assert after.partition == before.partition
        assert after.affinity == before.affinity
        assert after.plan.to_bytes() == before.plan.to_bytes()
        np.testing.assert_array_equal(after({"x": X})[0], before({"x": X})[0])
        assert after.executed_nodes() == before.executed_nodes()
        assert [s.model.content_hash for s in after.subgraphs] == [
            s.model.content_hash for s in before.subgraphs
        ]


def test_an_imported_model_exports_the_same_again(core: hetero.Core, blob: bytes) -> None:
    with core.import_model(blob) as compiled:
        assert compiled.export_model() == blob


def test_equal_compilations_export_equal_bytes(core: hetero.Core, blob: bytes) -> None:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        assert compiled.export_model() == blob


def test_export_to_a_stream_and_a_path(core: hetero.Core, blob: bytes, tmp_path: Path) -> None:
    stream = io.BytesIO()
    with core.import_model(blob) as compiled:
        compiled.export_model(stream)
        compiled.export_model(tmp_path / "m.hetero")
    assert stream.getvalue() == (tmp_path / "m.hetero").read_bytes() == blob
    assert [path.name for path in tmp_path.iterdir()] == ["m.hetero"]


def test_only_regular_files_are_replaced(core: hetero.Core, blob: bytes, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with core.import_model(blob) as compiled, pytest.raises(OSError, match="not a regular file"):
        compiled.export_model(pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_strings_bfloat16_and_outputs_that_no_stage_makes(core: hetero.Core) -> None:
    inputs = {"x": np.ones(3, np.float32), "t": np.array(["a", "b"], object)}
    with core.compile_model(odd(), "CPU") as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as again:
        y, u, x, suffix = again(inputs).to_tuple()
    np.testing.assert_array_equal(y, [2, 3, 4])
    np.testing.assert_array_equal(x, inputs["x"])
    assert (u.tolist(), suffix.tolist()) == (["a!", "bü"], ["!", "ü"])


def test_models_without_nodes(core: hetero.Core) -> None:
    model = parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        empty (float[3] x) => (float[3] x, int64[4] w) <int64[4] w = {0, 1, 2, 3}> { }"""
    )
    with core.compile_model(model, "HETERO:ORT,CPU") as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as again:
        x, w = again({"x": np.ones(3, np.float32)}).to_tuple()
    assert (x.tolist(), w.tolist()) == ([1, 1, 1], [0, 1, 2, 3])


def test_a_device_that_cannot_export_compiles_again(core: hetero.Core) -> None:
    pins = {"matmul": "DENSE"}
    with core.compile_model(branches(), "HETERO:DENSE,CPU", affinity=pins) as compiled:
        assert "DENSE" in compiled.get_property("EXECUTION_DEVICES")
        blob = compiled.export_model()
    with core.import_model(blob) as again:
        assert 0 < len(again.deployment.imported) < len(again.subgraphs)
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)


def test_a_device_whose_import_fails_compiles_again_and_says_so(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with core.compile_model(branches(), "COUNT") as compiled:
        blob = compiled.export_model()
    monkeypatch.setattr(CountingPlugin, "broken", True)
    with caplog.at_level(logging.WARNING), core.import_model(blob) as again:
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)
        assert not again.deployment.imported
    assert "broken by design" in caplog.text
    assert "compiled again" in caplog.text


def test_an_imported_model_that_runs_does_not_read_the_one_it_was_made_from(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    with core.compile_model(branches(), "CPU") as compiled:
        blob = compiled.export_model()
    read = Mock(wraps=join_model)
    monkeypatch.setattr("hetero.cache.blob.join_model", read)
    with core.import_model(blob) as again:
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)
        read.assert_not_called()
        assert len(again.source.nodes) == len(branches().graph.node)
    read.assert_called_once()


def test_another_version_of_the_device_compiles_again_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.compile_model(branches(), "COUNT") as compiled,
    ):
        blob = compiled.export_model()
    monkeypatch.setattr(CountingPlugin, "chip", "b")
    with (
        caplog.at_level(logging.WARNING),
        hetero.Core(executor="inprocess", plugins=[CountingPlugin]) as core,
        core.import_model(blob) as again,
    ):
        assert not again.deployment.imported
        np.testing.assert_allclose(again({"x": X})[0], branches_output(X), rtol=1e-6)
    assert "stages=[0]: compiled again" in caplog.text


def test_an_option_that_changes_the_result_compiles_again(core: hetero.Core) -> None:
    with core.compile_model(branches(), "COUNT", {"COUNT_LEVEL": 1}) as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as same:
        assert same.deployment.imported == {0}
    with core.import_model(blob, config={"COUNT_LEVEL": 1}) as same:
        assert same.deployment.imported == {0}
    with core.import_model(blob, config={"COUNT_LEVEL": 2}) as other:
        assert not other.deployment.imported


def test_options_come_back_and_those_of_the_call_win(core: hetero.Core) -> None:
    config = {"PERF_COUNT": True, "MAX_REQUESTS_IN_FLIGHT": 7}
    with core.compile_model(branches(), "CPU", config) as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as again:
        assert again.get_property("PERF_COUNT")
        assert again.get_property("MAX_REQUESTS_IN_FLIGHT") == 7
    with core.import_model(blob, config={"MAX_REQUESTS_IN_FLIGHT": 3}) as again:
        assert again.get_property("MAX_REQUESTS_IN_FLIGHT") == 3


def test_absent_devices_are_named_with_the_way_out(core: hetero.Core) -> None:
    pins = {"op:Neg": "CPU"}
    with core.compile_model(branches(), "HETERO:COUNT,CPU", affinity=pins) as compiled:
        blob = compiled.export_model()
    with hetero.Core(executor="inprocess", devices={"CPU": 2}) as elsewhere:
        with pytest.raises(errors.UnknownDeviceError, match="remap") as caught:
            elsewhere.import_model(blob)
        assert caught.value.data["devices"] == ("COUNT",)
        with elsewhere.import_model(blob, remap={"COUNT": "CPU.1"}) as moved:
            assert moved.get_property("EXECUTION_DEVICES") == ["CPU.1", "CPU.0"]
            assert moved.deployment.imported == {1}
            assert "(compiled for COUNT)" in moved.affinity.reasons["matmul"]
            np.testing.assert_allclose(moved({"x": X})[0], branches_output(X), rtol=1e-6)
        with elsewhere.import_model(blob, "HETERO:ORT,CPU.1") as replanned:
            assert replanned.get_property("EXECUTION_DEVICES") == ["ORT"]
            np.testing.assert_allclose(replanned({"x": X})[0], branches_output(X), rtol=1e-6)


def test_the_same_plugin_elsewhere_takes_exports_as_they_are(blob: bytes) -> None:
    with (
        hetero.Core(executor="inprocess", devices={"CPU": 2, "ORT": 2}) as elsewhere,
        elsewhere.import_model(blob, remap={"ORT": "ORT.1", "CPU": "CPU.1"}) as moved,
    ):
        assert moved.get_property("EXECUTION_DEVICES") == ["ORT.1", "CPU.1"]
        assert len(moved.deployment.imported) == len(moved.subgraphs)
        np.testing.assert_allclose(moved({"x": X})[0], branches_output(X), rtol=1e-6)


def test_a_remap_of_a_device_that_the_blob_has_not(core: hetero.Core, blob: bytes) -> None:
    with pytest.raises(errors.BlobError, match="NULL"):
        core.import_model(blob, remap={"NULL": "CPU"})


@pytest.mark.parametrize("source", [b"", b"garbage" * 100, b"\x08\x07"])
def test_what_is_no_blob(core: hetero.Core, source: bytes) -> None:
    with pytest.raises(errors.BlobError):
        core.import_model(source)


def test_a_file_that_is_not_there(core: hetero.Core, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        core.import_model(tmp_path / "none.hetero")


def test_weights_are_views_of_the_file(core: hetero.Core, blob: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    with core.import_model(path) as compiled:
        array = compiled.partition.source.constants["w"].array
        assert not array.flags.owndata
        assert not array.flags.writeable
        path.unlink()  # what is mapped stays
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_the_description_reads_the_header_only(blob: bytes, tmp_path: Path) -> None:
    damaged = bytearray(blob)
    damaged[BlobFile(blob).segments[0].offset] ^= 1
    document = describe_blob(BlobFile(bytes(damaged)))
    assert (document["kind"], document["name"]) == ("model", "branches")
    assert set(document["devices"]) == {"ORT", "CPU"}
    assert [row["device"] for row in document["stages"]] == ["ORT", "CPU", "ORT"]
    assert document["inputs"] == [{"name": "x", "type": "tensor(float)", "shape": ["N", 3]}]
    json.dumps(document)


def test_the_golden_blob_of_version_1_is_read(core: hetero.Core) -> None:
    blob = BlobFile(GOLDEN / "blob_v1.hetero")
    expected = json.loads((GOLDEN / "blob_v1.json").read_text())
    document = json.loads(json.dumps(describe_blob(blob)))
    assert {key: document[key] for key in expected} == expected
    with core.import_model(GOLDEN / "blob_v1.hetero") as compiled:
        np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_command_line(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(branches().SerializeToString())
    model, file = str(tmp_path / "m.onnx"), str(tmp_path / "m.hetero")
    rest = ["--executor", "inprocess", "--json"]

    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout)) if not code else {}

    made = call("compile", model, "-d", "HETERO:ORT,CPU", "-a", "op:Neg=CPU", "-o", file, *rest)
    assert made["files"] == [file]
    ran = call("run", file, *rest)
    assert ran["subgraphs"] == made["subgraphs"]
    for options in (("--remap", "ORT=CPU"), ("-d", "CPU")):
        moved = call("run", file, *options, *rest)
        assert {s["device"] for s in moved["subgraphs"]} == {"CPU"}
    assert call("inspect", file, "--verify", "--json")["name"] == "branches"
    call("run", file, "--remap", "ORT", *rest, code=2)
    call("run", file, "-a", "op:Neg=CPU", *rest, code=2)
    call("run", model, "--remap", "ORT=CPU", *rest, code=2)
