"""The cache: hits, misses, subgraphs, size limit, encryption, commands."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from hetero.cache.folder import Cache
from hetero.cli.main import cli
from hetero.devices.errors import PropertyError
from hetero.scheduler.formats.blob_file import BlobFile
from tests.support.caches import (
    DEVICES,
    PINS,
    compile_cached,
    counting_core,
    entries,
    flip,
    one_warning,
)
from tests.support.counting_plugin import CountingPlugin, lines
from tests.support.models import branches


@pytest.fixture(scope="module")
def core():
    with counting_core() as core:
        yield core


def test_second_compilation_hits(core, tmp_path):
    log = tmp_path / "log"
    folder = tmp_path / "ünï" / "nested"
    assert not compile_cached(core, folder, COUNT_FILE=str(log))
    before = entries(folder)
    assert [Path(name).suffix for name in before].count(".hetero") == 1
    assert all((folder / name).stat().st_mode & 0o777 == 0o644 for name in before)
    log.unlink()
    assert compile_cached(core, folder, COUNT_FILE=str(log))
    assert set(lines(log)) == {"load"}  # no query, no compilation
    assert entries(folder) == before


def test_empty_cache_dir_disables_the_cache(core, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with core.compile_model(branches(), "COUNT.0", {"CACHE_DIR": ""}) as compiled:
        assert not compiled.get_property("LOADED_FROM_CACHE")
    assert list(tmp_path.iterdir()) == []


# Misses.


def change_weight(model: onnx.ModelProto) -> Callable[[np.ndarray], np.ndarray]:
    weight: np.ndarray = numpy_helper.to_array(model.graph.initializer[0]).copy()
    weight[1, 2] += 1
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))

    def expected(x: np.ndarray) -> np.ndarray:
        positive: np.ndarray = np.maximum(x @ weight, 0)
        result: np.ndarray = np.tanh(positive) + positive
        return result

    return expected


def test_changed_weight_misses(core, tmp_path):
    assert not compile_cached(core, tmp_path)
    model = branches()
    expected = change_weight(model)
    assert not compile_cached(core, tmp_path, model, check=expected)
    assert compile_cached(core, tmp_path, model, check=expected)
    assert compile_cached(core, tmp_path)


def test_changed_external_weight_with_equal_mtime_misses(core, tmp_path):
    path, cache = tmp_path / "m.onnx", tmp_path / "cache"

    def save(model: onnx.ModelProto) -> os.stat_result:
        weights = path.with_name("w.bin")
        weights.unlink(missing_ok=True)
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        for file in (path, weights):
            os.utime(file, (1e9, 1e9))
        return weights.stat()

    modified = branches()
    expected = change_weight(modified)
    before = save(branches())
    onnx_bytes = path.read_bytes()
    assert not compile_cached(core, cache, path)
    after = save(modified)
    assert path.read_bytes() == onnx_bytes
    assert (before.st_size, before.st_mtime) == (after.st_size, after.st_mtime)
    assert not compile_cached(core, cache, path, check=expected)
    save(branches())
    assert compile_cached(core, cache, path)


def test_renamed_node_misses(core, tmp_path):
    assert not compile_cached(core, tmp_path)
    model = branches()
    model.graph.node[1].name = "renamed"
    assert not compile_cached(core, tmp_path, model)
    with core.compile_model(
        model, DEVICES, {"CACHE_DIR": str(tmp_path)}, affinity=PINS
    ) as compiled:
        assert compiled.get_property("LOADED_FROM_CACHE")
        assert "renamed" in compiled.affinity


def test_changed_value_info_misses(core, tmp_path):
    assert not compile_cached(core, tmp_path)
    model = branches()
    model.graph.value_info.add().CopyFrom(
        onnx.helper.make_tensor_value_info("positive", onnx.TensorProto.FLOAT, ["N", 4])
    )
    assert not compile_cached(core, tmp_path, model)


@pytest.mark.parametrize(
    "change",
    [
        {"affinity": {"op:Abs": "CPU"}},
        {"affinity": {"op:Neg": "COUNT.1"}},
        {"affinity": None},
        {"device": "HETERO:COUNT.1,COUNT.0,CPU"},
        {"device": "HETERO:COUNT.0,CPU"},
        {"DISABLE_TRANSFORMATIONS": True},
        {"COUNT_LEVEL": 3},
        {"DEVICE_PROPERTIES": {"COUNT.0": {"COUNT_LEVEL": 3}}},
    ],
    ids=str,
)
def test_change_that_affects_the_result_misses(core, tmp_path, change):
    assert not compile_cached(core, tmp_path)
    assert not compile_cached(core, tmp_path, **dict(change))
    assert compile_cached(core, tmp_path, **dict(change))
    assert compile_cached(core, tmp_path)


@pytest.mark.parametrize("attribute", ["release", "chip"])
def test_changed_plugin_version_or_fingerprint_misses(core, tmp_path, attribute, monkeypatch):
    assert not compile_cached(core, tmp_path)
    monkeypatch.setattr(CountingPlugin, attribute, "other")
    with counting_core() as updated:
        assert not compile_cached(updated, tmp_path)
        assert compile_cached(updated, tmp_path)
    monkeypatch.undo()
    with counting_core() as restored:
        assert compile_cached(restored, tmp_path)


def test_changed_hetero_version_misses(core, tmp_path, monkeypatch):
    assert not compile_cached(core, tmp_path)
    monkeypatch.setattr("hetero.cache.key.hetero_version", lambda: "99")
    assert not compile_cached(core, tmp_path)


# Hits.


@pytest.mark.parametrize(
    "change",
    [
        {"INFERENCE_NUM_THREADS": 2},
        {"NUM_STREAMS": 2},
        {"PERF_COUNT": True},
        {"MAX_REQUESTS_IN_FLIGHT": 3},
        {"CACHE_SIZE_LIMIT_BYTES": 10**9},
        {"affinity": {"neg": "CPU"}},
    ],
    ids=str,
)
def test_change_that_cannot_affect_the_result_hits(core, tmp_path, change):
    assert not compile_cached(core, tmp_path)
    assert compile_cached(core, tmp_path, **dict(change))


def test_changed_path_and_working_directory_hits(core, tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.onnx").write_bytes(branches().SerializeToString())
    monkeypatch.chdir(tmp_path / "a")
    assert not compile_cached(core, Path("../cache"), "a.onnx")
    monkeypatch.chdir(tmp_path)
    assert compile_cached(core, Path("cache"), tmp_path / "b" / "b.onnx")
    assert compile_cached(core, tmp_path / "cache", branches())


def test_reordered_options_and_pins_hit(core, tmp_path):
    options = {"COUNT_LEVEL": 1, "DISABLE_TRANSFORMATIONS": True}
    pins = {"neg": "CPU", "tanh": "CPU"}
    assert not compile_cached(core, tmp_path, affinity=pins, **options)
    reordered = dict(reversed(options.items()))
    assert compile_cached(core, tmp_path, affinity=dict(reversed(pins.items())), **reordered)


def test_cached_plan_has_the_reasons_of_the_request(core, tmp_path):
    for is_cached, pattern, reason in (
        (False, "neg", "pin: name neg"),
        (True, "ne?", "pin: glob ne?"),
    ):
        with core.compile_model(
            branches(), DEVICES, {"CACHE_DIR": str(tmp_path)}, affinity={pattern: "CPU"}
        ) as compiled:
            assert compiled.get_property("LOADED_FROM_CACHE") is is_cached
            assert compiled.affinity.reasons["neg"] == reason


@pytest.mark.parametrize("scope", ["core", "HETERO", "device"])
def test_cache_dir_of_every_scope(tmp_path, scope):
    with counting_core() as core:
        config = {"CACHE_DIR": str(tmp_path)}
        if scope == "core":
            core.set_property(config)
        else:
            core.set_property("COUNT.0" if scope == "device" else "HETERO", config)
        for expected in (False, True):
            with core.compile_model(branches(), DEVICES, affinity=PINS) as compiled:
                assert compiled.get_property("LOADED_FROM_CACHE") is expected
        with core.compile_model(branches(), DEVICES, {"CACHE_DIR": ""}, affinity=PINS) as compiled:
            assert not compiled.get_property("LOADED_FROM_CACHE")


# Subgraphs.


def test_another_plan_reuses_common_subgraphs(core, tmp_path):
    log = tmp_path / "log"
    assert not compile_cached(core, tmp_path / "c", COUNT_FILE=str(log))
    assert lines(log).count("compile") == 2
    log.unlink()
    pins = {"op:Neg": "CPU", "matmul": "COUNT.0", "relu": "COUNT.0", "tanh": "COUNT.0"}
    assert not compile_cached(core, tmp_path / "c", affinity=pins, COUNT_FILE=str(log))
    assert (lines(log).count("compile"), lines(log).count("load")) == (0, 2)


def test_missing_subgraph_is_compiled_and_stored_again(core, tmp_path):
    assert not compile_cached(core, tmp_path)
    stage_file = next(tmp_path.glob("*.stage"))
    stage_file.unlink()
    assert not compile_cached(core, tmp_path)
    assert stage_file.exists()
    assert compile_cached(core, tmp_path)


def test_device_without_export_creates_no_file(core, tmp_path):
    model = branches()
    del model.graph.node[3:]
    model.graph.output[0].name = "left"

    def expected(x: np.ndarray) -> np.ndarray:
        weight = numpy_helper.to_array(model.graph.initializer[0])
        result: np.ndarray = np.tanh(np.maximum(x @ weight, 0))
        return result

    for _ in range(2):
        assert not compile_cached(
            core, tmp_path, model, device="DENSE", affinity=None, check=expected
        )
    assert entries(tmp_path) == []


# Concurrency, size, encryption, command line.


def test_concurrent_threads_compile_once(tmp_path):
    log, hits = tmp_path / "log", []
    with counting_core() as core:

        def work() -> None:
            options = {"COUNT_FILE": str(log), "COUNT_COMPILE_S": 0.1}
            hits.append(compile_cached(core, tmp_path / "cache", **options))

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(hits) == [False, True, True, True, True, True]
    assert lines(log).count("compile") == 2  # one per subgraph on COUNT


def test_lock_timeout_compiles_without_cache(core, tmp_path, caplog):
    assert not compile_cached(core, tmp_path)
    (plan,) = tmp_path.glob("*.hetero")
    plan.unlink()
    with Cache(tmp_path).lock(plan.stem):
        assert not compile_cached(core, tmp_path, CACHE_LOCK_TIMEOUT_S=0.2)
    assert "compiling here as well" in one_warning(caplog)


def test_size_limit_evicts_least_recently_used(core, tmp_path):
    def compile_(level: int, limit: int) -> bool:
        return compile_cached(core, tmp_path, COUNT_LEVEL=level, CACHE_SIZE_LIMIT_BYTES=limit)

    assert not compile_(1, 0)
    total = sum((tmp_path / name).stat().st_size for name in entries(tmp_path))
    limit = total * 5 // 2
    assert not compile_(2, limit)
    assert compile_(1, limit)  # after this, level 2 is the least recently used
    assert not compile_(3, limit)
    assert sum((tmp_path / name).stat().st_size for name in entries(tmp_path)) <= limit
    assert compile_(3, limit)
    assert compile_(1, limit)
    assert not compile_(2, limit)


def test_entry_above_size_limit_is_not_stored(core, tmp_path):
    assert not compile_cached(core, tmp_path, CACHE_SIZE_LIMIT_BYTES=100)
    assert entries(tmp_path) == []


def test_encryption_callbacks(core, tmp_path, caplog):
    def encrypt(data: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in data)

    def fail(data: bytes) -> bytes:
        raise KeyError("no key")

    assert not compile_cached(core, tmp_path, CACHE_ENCRYPTION_CALLBACKS=(encrypt, encrypt))
    assert not any(b"matmul" in (tmp_path / name).read_bytes() for name in entries(tmp_path))
    assert compile_cached(core, tmp_path, CACHE_ENCRYPTION_CALLBACKS=(encrypt, encrypt))
    assert not compile_cached(core, tmp_path)
    assert not compile_cached(core, tmp_path, CACHE_ENCRYPTION_CALLBACKS=(encrypt, fail))
    assert "no key" in caplog.text
    assert not compile_cached(core, tmp_path / "2", CACHE_ENCRYPTION_CALLBACKS=(fail, encrypt))
    assert entries(tmp_path / "2") == []
    with pytest.raises(PropertyError, match="two functions"):
        compile_cached(core, tmp_path, CACHE_ENCRYPTION_CALLBACKS=(encrypt,))


def test_stale_temporary_file_is_deleted(core, tmp_path):
    file = tmp_path / ".x.stage.0123.tmp"
    file.write_bytes(b"half")
    assert not compile_cached(core, tmp_path)
    assert file.exists()  # a writer may be using it
    os.utime(file, (1e9, 1e9))
    assert not compile_cached(core, tmp_path, COUNT_LEVEL=5)
    assert not file.exists()


def test_commands(core, tmp_path):
    def call(*arguments: str, code: int = 0) -> dict[str, Any]:
        result = CliRunner().invoke(cli, ["cache", *arguments, "--dir", str(tmp_path), "--json"])
        assert result.exit_code == code, result.output
        return dict(json.loads(result.stdout)) if code < 2 else {}

    assert not compile_cached(core, tmp_path)
    rows = call("list")["entries"]
    assert {row["kind"] for row in rows} == {"plan", "stage"}
    assert {row["model"] for row in rows} == {"branches"}
    assert {d for row in rows for d in row["devices"]} == {"COUNT.0", "COUNT.1", "CPU"}
    assert call("verify")["damaged"] == {}
    flip(tmp_path / rows[0]["file"])
    assert list(call("verify", code=1)["damaged"]) == [rows[0]["file"]]
    call("prune", code=2)
    removed = call("prune", "--max-size", "1kB")["removed"]
    assert removed
    assert call("list")["nbytes"] <= 1000
    call("clear")
    assert call("list")["entries"] == []
    assert CliRunner().invoke(cli, ["cache", "list", "--dir", "/none"]).exit_code == 2


def test_entries_are_valid_blobs(core, tmp_path):
    assert not compile_cached(core, tmp_path)
    for name in entries(tmp_path):
        BlobFile(tmp_path / name).verify()


@pytest.mark.parametrize("name", ["mine.hetero", "mine.stage", "f" * 64 + "0.hetero"])
def test_clear_and_prune_ignore_other_files(core, tmp_path, name):
    with core.compile_model(branches(), "CPU") as compiled:
        (tmp_path / name).write_bytes(compiled.export_model())
    config = {"CACHE_DIR": str(tmp_path), "CACHE_SIZE_LIMIT_BYTES": 1}
    core.compile_model(branches(), "COUNT", config).close()
    Cache(tmp_path).clear()
    Cache(tmp_path).prune(0)
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("size", ["-5MB", "inf", "nan", "MB"])
def test_prune_with_invalid_size_is_rejected(core, tmp_path, size):
    assert not compile_cached(core, tmp_path)
    arguments = ["cache", "prune", "--dir", str(tmp_path), f"--max-size={size}"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "expected a size" in result.output
    assert entries(tmp_path)


def test_cost_file_is_an_entry(core, tmp_path):
    config = {"CACHE_DIR": str(tmp_path), "PERFORMANCE_HINT": "LATENCY", "PROFILE_SECONDS": 0.1}
    core.compile_model(branches(), "HETERO:COUNT.0,CPU", config).close()
    (costs,) = tmp_path.glob("*.costs.json")
    cache = Cache(tmp_path)
    assert costs in [entry.path for entry in cache.entries()]
    assert not any(map(cache.check, cache.entries()))
    rows = CliRunner().invoke(cli, ["cache", "list", "--dir", str(tmp_path), "--json"])
    kinds = [row["kind"] for row in json.loads(rows.stdout)["entries"]]
    assert sorted(set(kinds)) == ["costs", "plan", "stage"]
    costs.write_text(costs.read_text()[:-9])
    assert [e.path for e in cache.entries() if cache.check(e)] == [costs]
    cache.clear()
    assert not costs.exists()
