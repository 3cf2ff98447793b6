"""The cache with damaged entries and with unusable folders."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hetero.cache.folder import PLAN_SUFFIX
from hetero.scheduler.formats.blob_file import BlobFile
from tests.support.caches import compile_cached, counting_core, entries, flip, one_warning
from tests.support.counting_plugin import CountingPlugin


@pytest.fixture(scope="module")
def core():
    with counting_core() as core:
        yield core


# Damaged entries.


def replace_with_other(path: Path) -> None:
    others = [other for other in path.parent.glob(f"*{path.suffix}") if other != path]
    path.write_bytes(others[0].read_bytes() if others else b"another file")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "bit": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "empty": lambda path: path.write_bytes(b""),
    "foreign": lambda path: path.write_text("<xml/>"),
    "swapped": replace_with_other,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("suffix", [".hetero", ".stage"])
def test_damaged_entry_misses_with_warning_and_is_replaced(
    core,
    tmp_path,
    damage,
    suffix,
    caplog,
):
    assert not compile_cached(core, tmp_path)
    before = contents(tmp_path)
    path = sorted(tmp_path.glob(f"*{suffix}"))[0]
    DAMAGES[damage](path)
    with caplog.at_level(logging.WARNING):
        assert not compile_cached(core, tmp_path)
    assert "miss: " in caplog.text
    assert contents(tmp_path) == before
    assert compile_cached(core, tmp_path)


def contents(folder: Path) -> dict[str, Any]:
    """Return the bytes of each entry; of a plan, its header without the time of its compilation."""
    files: dict[str, Any] = {}
    for name in entries(folder):
        is_plan = name.endswith(PLAN_SUFFIX)
        files[name] = (folder / name).read_bytes()
        if is_plan:
            files[name] = {**BlobFile(folder / name).outline(), "compile_s": None}
    return files


def test_symlink_as_entry_is_not_followed(core, tmp_path):
    folder = tmp_path / "cache"
    assert not compile_cached(core, folder)
    outside = {}
    for name in entries(folder):
        target = tmp_path / f"outside-{name}"
        target.write_bytes((folder / name).read_bytes())
        outside[target] = target.read_bytes()
        (folder / name).unlink()
        (folder / name).symlink_to(target)
    assert not compile_cached(core, folder)
    assert compile_cached(core, folder)
    assert not any((folder / name).is_symlink() for name in entries(folder))
    assert {path: path.read_bytes() for path in outside} == outside


def test_entry_that_fails_to_import_is_replaced(core, tmp_path, monkeypatch):
    assert not compile_cached(core, tmp_path)
    monkeypatch.setattr(CountingPlugin, "broken", True)
    assert not compile_cached(core, tmp_path)
    monkeypatch.undo()
    assert compile_cached(core, tmp_path)


# Unusable folders.


@contextlib.contextmanager
def mount_tmpfs(folder: Path, options: str) -> Iterator[None]:
    """Mount a tmpfs with these options."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only root may mount a file system, and not in every container")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_warns(core, tmp_path, caplog):
    with mount_tmpfs(tmp_path / "full", "size=4k"):
        assert not compile_cached(core, tmp_path / "full")
        assert "No space left" in one_warning(caplog)
        assert not list((tmp_path / "full").glob(".*.tmp"))
        assert not compile_cached(core, tmp_path / "full")


def test_file_size_limit_warns(core, tmp_path, caplog):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, before[1]))
    try:
        assert not compile_cached(core, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "too large" in one_warning(caplog)
    assert entries(tmp_path) == []
    assert not compile_cached(core, tmp_path)
    assert compile_cached(core, tmp_path)


def test_read_only_folder_warns(core, tmp_path, caplog):
    with mount_tmpfs(tmp_path / "ro", "size=1m,ro"):
        assert not compile_cached(core, tmp_path / "ro")
        assert "Read-only" in one_warning(caplog)


def test_read_only_folder_hits(core, tmp_path, caplog):
    with mount_tmpfs(tmp_path / "disk", "size=1m"):
        assert not compile_cached(core, tmp_path / "disk")
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        assert compile_cached(core, tmp_path / "disk")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize("kind", ["file", "nowhere"])
def test_impossible_folder_warns(core, tmp_path, kind, caplog):
    (tmp_path / "file").write_text("contents")
    folder = tmp_path / "file" if kind == "file" else Path("/proc/hetero/cache")
    assert not compile_cached(core, folder)
    assert one_warning(caplog)
    assert (tmp_path / "file").read_text() == "contents"


def test_folder_deleted_during_compilation(core, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    delete = staticmethod(lambda: shutil.rmtree(folder, ignore_errors=True))
    monkeypatch.setattr(CountingPlugin, "on_compile", delete)
    assert not compile_cached(core, folder)
    monkeypatch.undo()
    assert compile_cached(core, folder)
    shutil.rmtree(folder)
    assert not compile_cached(core, folder)
    assert compile_cached(core, folder)
