"""What other users and programs put into a cache's folder is no hit, and harms nothing."""

import logging
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

from hetero.cache.folder import Cache
from tests.support.caches import entries, hit, opened

SOMEBODY = 65534


@pytest.fixture(scope="module")
def core():
    with opened() as core:
        yield core


def given_away(path):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, SOMEBODY, SOMEBODY)


@pytest.mark.parametrize("how", [given_away, lambda path: path.chmod(0o666)], ids=["owner", "mode"])
def test_entries_that_others_may_have_written_are_misses_and_said_once(core, tmp_path, how, caplog):
    assert not hit(core, tmp_path)
    for name in entries(tmp_path):
        how(tmp_path / name)
    with caplog.at_level(logging.WARNING):
        assert not hit(core, tmp_path)
    said = [r for r in caplog.records if "other users can write to it" in r.getMessage()]
    assert len(said) == 1
    assert hit(core, tmp_path), "it was written again"


def test_a_lock_that_is_a_link_to_another_file_leaves_that_as_it_is(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    cache = Cache(tmp_path / "cache")
    (tmp_path / "cache" / ".locks").mkdir(parents=True)
    for name, link in (("hard", os.link), ("soft", os.symlink)):
        link(victim, tmp_path / "cache" / ".locks" / f"{name}.lock")
        with cache.lock(name) as held:
            assert not held
    assert victim.read_text() == "mine"


def test_a_folder_of_locks_that_is_a_link_gets_no_files(tmp_path):
    (tmp_path / "victim").mkdir()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".locks").symlink_to(tmp_path / "victim")
    with Cache(tmp_path / "cache").lock("key") as held:
        assert not held
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_lock_keeps_others_out_until_it_is_released(tmp_path):
    first, second = Cache(tmp_path), Cache(tmp_path, lock_timeout_s=0.2)
    with first.lock("key") as held, second.lock("key") as other, second.lock("another") as free:
        assert (held, other, free) == (True, False, True)
    with second.lock("key") as held:
        assert held


SCRIPT = """
import os, sys
import numpy as np
import hetero
folder, device = sys.argv[1:]
x = np.ones((2, 256), np.float32)
with hetero.Core(executor="inprocess") as core:
    for _ in range(2):
        compiled = core.compile_model(f"{folder}/m.onnx", device, {"CACHE_DIR": f"{folder}/cache"})
    assert compiled.get_property("LOADED_FROM_CACHE")
    before = compiled(x)[0]
    for name in os.listdir(f"{folder}/cache"):
        if not name.startswith("."):
            os.truncate(f"{folder}/cache/{name}", 0)
    assert (compiled(x)[0] == before).all()
    compiled.export_model()
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("device", ["CPU", "ORT", "HETERO:ORT,CPU"])
def test_an_entry_that_is_cut_while_it_is_used_ends_no_process(device, tmp_path):
    weights = np.random.default_rng(0).normal(size=(256, 256)).astype(np.float32)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 256] x) => (float[N, 256] y)'
        "{ a = MatMul(x, w) y = Relu(a) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save_model(model, tmp_path / "m.onnx")
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), device],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
