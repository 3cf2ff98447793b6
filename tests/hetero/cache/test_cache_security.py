"""Other users cannot inject entries through the cache folder or harm files."""

import logging
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

from hetero.cache.folder import Cache
from tests.support.caches import compile_cached, counting_core, entries

NOBODY_UID = 65534


@pytest.fixture(scope="module")
def core():
    with counting_core() as core:
        yield core


def change_owner(path):
    if os.geteuid() != 0:
        pytest.skip("only root can change the owner of a file")
    os.chown(path, NOBODY_UID, NOBODY_UID)


@pytest.mark.parametrize(
    "make_untrusted", [change_owner, lambda path: path.chmod(0o666)], ids=["owner", "mode"]
)
def test_entry_writable_by_others_misses_with_one_warning(core, tmp_path, make_untrusted, caplog):
    assert not compile_cached(core, tmp_path)
    for name in entries(tmp_path):
        make_untrusted(tmp_path / name)
    with caplog.at_level(logging.WARNING):
        assert not compile_cached(core, tmp_path)
    warnings = [r for r in caplog.records if "other users can write to it" in r.getMessage()]
    assert len(warnings) == 1
    assert compile_cached(core, tmp_path), "the entry was replaced"


def test_lock_file_link_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    cache = Cache(tmp_path / "cache")
    (tmp_path / "cache" / ".locks").mkdir(parents=True)
    for name, link in (("hard", os.link), ("soft", os.symlink)):
        link(victim, tmp_path / "cache" / ".locks" / f"{name}.lock")
        with cache.lock(name) as locked:
            assert not locked
    assert victim.read_text() == "mine"


def test_lock_folder_link_is_not_followed(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".locks").symlink_to(tmp_path / "victim")
    with Cache(tmp_path / "cache").lock("key") as locked:
        assert not locked
    assert list((tmp_path / "victim").iterdir()) == []


def test_lock_excludes_others_until_released(tmp_path):
    first, second = Cache(tmp_path), Cache(tmp_path, lock_timeout_s=0.2)
    with first.lock("key") as locked, second.lock("key") as again, second.lock("other") as free:
        assert (locked, again, free) == (True, False, True)
    with second.lock("key") as locked:
        assert locked


SCRIPT = """
import os, sys
import numpy as np
import hetero
folder, device = sys.argv[1:]
x = np.ones((2, 256), np.float32)
with hetero.Core(executor="inprocess") as core:
    config = {"CACHE_DIR": f"{folder}/cache", "VERIFY": "NO"}
    for _ in range(2):
        compiled = core.compile_model(f"{folder}/m.onnx", device, config)
    assert compiled.get_property("LOADED_FROM_CACHE")
    before = compiled(x)[0]
    for name in os.listdir(f"{folder}/cache"):
        if not name.startswith("."):
            os.truncate(f"{folder}/cache/{name}", 0)
    assert (compiled(x)[0] == before).all()
    compiled.export_model()
"""


@pytest.mark.parametrize(
    "device", [*(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU", "ORT")), "HETERO:ORT,CPU"]
)
def test_entry_truncated_in_use_crashes_no_process(device, tmp_path):
    weights = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 256] x) => (float[N, 256] y)'
        "{ a = MatMul(x, w) y = Relu(a) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save_model(model, tmp_path / "m.onnx")
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), device],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr
