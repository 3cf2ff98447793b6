"""Blobs and the cache on Ray's actors: read from the node's file, else sent, else compiled."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from onnx import parser

import hetero
from hetero.devices.errors import BlobError
from hetero.scheduler.formats.blob_file import BlobFile
from hetero.scheduler.formats.stored_payload import StoredPayload, fetch_payload
from tests.support import blob_mutations
from tests.support.models import branches, branches_output

pytestmark = pytest.mark.ray
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
PINS = {"op:Neg": "CPU"}


@pytest.fixture(scope="module")
def blob(core: hetero.Core) -> bytes:
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        return compiled.export_model()


def check(compiled: hetero.CompiledModel, imported: int) -> None:
    assert len(compiled.deployment.imported) == imported
    np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_export_and_import(core: hetero.Core, blob: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    for source in (path, blob):
        with core.import_model(source) as compiled:
            check(compiled, 3)
            assert compiled.executed_nodes()
            assert compiled.export_model() == blob


def test_a_blob_without_weights_is_whole_with_its_model(core: hetero.Core) -> None:
    model, x = blob_mutations.model(), np.ones((2, 128), np.float32)
    with core.compile_model(model, "HETERO:ORT,CPU", affinity={"relu": "CPU"}) as compiled:
        less, wanted = compiled.export_model(weightless=True), compiled(x)[0]
        assert len(less) < len(compiled.export_model())
    with core.import_model(less, weights=model) as again:
        assert again.deployment.imported == {0, 1, 2}
        np.testing.assert_array_equal(again(x)[0], wanted)


def test_a_file_that_is_not_on_the_node_is_sent(
    core: hetero.Core, blob: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    elsewhere = StoredPayload(str(tmp_path / "none"), "0" * 32, 0)
    monkeypatch.setattr("hetero.cache.import_model.StoredPayload", lambda *_: elsewhere)
    with core.import_model(path) as compiled:
        check(compiled, 3)


def test_the_cache(core: hetero.Core, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    for imported in (0, 3):
        with core.compile_model(branches(), "HETERO:ORT,CPU", config, affinity=PINS) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE") is bool(imported)
            check(compiled, imported)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.slow
def test_a_cache_hit_starts_the_actors_of_its_plan_only(tmp_path: Path) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        with hetero.Core() as core, core.compile_model(branches(), "HETERO:ORT,CPU", config) as m:
            hit = m.get_property("LOADED_FROM_CACHE")
            started = set(core.executor._devices._actors)
    assert hit
    assert started == {"ORT"}


def test_a_payload_is_read_from_its_file_only_if_that_is_the_same(
    blob: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    stored = StoredPayload(str(path), BlobFile(blob).digest, 0)
    payload = fetch_payload(stored)
    assert payload.header["format"].startswith("onnxruntime")
    with pytest.raises(BlobError, match="the digest differs"):
        fetch_payload(StoredPayload(str(path), "0" * 32, 0))
    with pytest.raises(BlobError, match="no such payload"):
        fetch_payload(StoredPayload(str(path), stored.digest, 9))
    with pytest.raises(BlobError, match="cannot be opened"):
        fetch_payload(StoredPayload(str(tmp_path / "none"), stored.digest, 0))


def test_what_is_drawn_differs_after_an_import(core: hetero.Core) -> None:
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) '
        "{r = RandomNormal<shape = [3]>() e = Exp(r) y = Mul(x, e)}"
    )
    pins = {"r": "CPU.0", "e": "CPU.0", "y": "CPU.1"}
    with core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=pins) as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as again:
        assert len({tuple(again({"x": np.ones(3, np.float32)})[0]) for _ in range(3)}) == 3
