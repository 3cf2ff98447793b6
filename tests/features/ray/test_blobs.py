"""Blobs and the cache on Ray: actors read the local file, receive it, or recompile."""

from __future__ import annotations

import logging

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
def blob(core):
    with core.compile_model(branches(), "HETERO:ORT,CPU", affinity=PINS) as compiled:
        return compiled.export_model()


def check(compiled: hetero.CompiledModel, num_imported: int) -> None:
    assert len(compiled.deployment.imported) == num_imported
    np.testing.assert_allclose(compiled({"x": X})[0], branches_output(X), rtol=1e-6)


def test_imported_blob_runs_without_recompilation(core, blob, tmp_path):
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    for source in (path, blob):
        with core.import_model(source) as compiled:
            check(compiled, 3)
            assert compiled.executed_nodes()
            assert compiled.export_model() == blob


def test_weightless_blob_is_imported_with_its_model(core):
    model, x = blob_mutations.model(), np.ones((2, 128), np.float32)
    with core.compile_model(model, "HETERO:ORT,CPU", affinity={"relu": "CPU"}) as compiled:
        weightless, expected = compiled.export_model(weightless=True), compiled(x)[0]
        assert len(weightless) < len(compiled.export_model())
    with core.import_model(weightless, weights=model) as imported:
        assert imported.deployment.imported == {0, 1, 2}
        np.testing.assert_array_equal(imported(x)[0], expected)


def test_missing_file_on_the_node_is_sent(core, blob, tmp_path, monkeypatch):
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    missing_file = StoredPayload(str(tmp_path / "none"), "0" * 32, 0)
    monkeypatch.setattr("hetero.cache.import_model.StoredPayload", lambda *_: missing_file)
    with core.import_model(path) as compiled:
        check(compiled, 3)


def test_second_compilation_hits_the_cache(core, tmp_path, caplog):
    config = {"CACHE_DIR": str(tmp_path)}
    for num_imported in (0, 3):
        with core.compile_model(branches(), "HETERO:ORT,CPU", config, affinity=PINS) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE") is bool(num_imported)
            check(compiled, num_imported)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.slow
def test_cache_hit_starts_only_planned_actors(tmp_path):
    config = {"CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        with hetero.Core() as core, core.compile_model(branches(), "HETERO:ORT,CPU", config) as m:
            is_hit = m.get_property("LOADED_FROM_CACHE")
            actors = set(core.executor._devices._actors)
    assert is_hit
    assert actors == {"ORT"}


def test_payload_of_a_changed_file_is_refused(blob, tmp_path):
    path = tmp_path / "m.hetero"
    path.write_bytes(blob)
    location = StoredPayload(str(path), BlobFile(blob).digest, 0)
    payload = fetch_payload(location)
    assert payload.header["format"].startswith("onnxruntime")
    with pytest.raises(BlobError, match="the digest differs"):
        fetch_payload(StoredPayload(str(path), "0" * 32, 0))
    with pytest.raises(BlobError, match="no such payload"):
        fetch_payload(StoredPayload(str(path), location.digest, 9))
    with pytest.raises(BlobError, match="cannot be opened"):
        fetch_payload(StoredPayload(str(tmp_path / "none"), location.digest, 0))


@pytest.mark.slow
def test_random_numbers_differ_after_import(core):
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => (float[n] y) '
        "{r = RandomNormal<shape = [3]>() e = Exp(r) y = Mul(x, e)}"
    )
    pins = {"r": "CPU.0", "e": "CPU.0", "y": "CPU.1"}
    with core.compile_model(model, "HETERO:CPU.0,CPU.1", affinity=pins) as compiled:
        blob = compiled.export_model()
    with core.import_model(blob) as imported:
        assert len({tuple(imported({"x": np.ones(3, np.float32)})[0]) for _ in range(3)}) == 3
