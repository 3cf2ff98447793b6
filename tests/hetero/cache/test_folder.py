"""Files of the cache folder: sequences of writes and reads, ages, sizes, locks, strange files."""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hetero.cache import folder as module
from hetero.cache.folder import Cache, open_cache
from hetero.properties.table import HETERO_PROPERTIES
from hetero.scheduler.formats.blob_writer import BlobWriter

NAMES = [f"{digit * 64}{suffix}" for digit in "ab" for suffix in (".hetero", ".stage")]


def blob(text: str) -> Callable[[BinaryIO], int]:
    return lambda file: BlobWriter().write(file, {"text": text})


def text_of(cache: Cache, name: str) -> str | None:
    found = cache.find(name)
    return None if found is None else str(found.contents()["text"])


def set_used(path: Path, seconds: float, created: float = 1.0) -> None:
    os.utime(path, (seconds, created))


class FolderSequences(RuleBasedStateMachine):
    """Files that are written, read, dropped, damaged and pruned, in an order of use by a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.temporary = tempfile.TemporaryDirectory()
        self.cache = Cache(Path(self.temporary.name) / "cache")
        self.expected: dict[str, str] = {}
        #: Names in order of their last use.
        self.order: list[str] = []
        self.clock = 0

    def teardown(self) -> None:
        self.temporary.cleanup()

    def use(self, name: str) -> None:
        self.clock += 1
        self.order = [n for n in self.order if n != name] + [name]
        set_used(self.cache.folder / name, 1e9 + self.clock, 1e9)

    def forget(self, name: str) -> None:
        self.expected.pop(name, None)
        self.order = [n for n in self.order if n != name]

    @rule(name=st.sampled_from(NAMES), text=st.text(max_size=3))
    def put(self, name: str, text: str) -> None:
        assert self.cache.put(name, blob(text))
        self.expected[name] = text
        self.use(name)

    @rule(name=st.sampled_from(NAMES))
    def find(self, name: str) -> None:
        assert text_of(self.cache, name) == self.expected.get(name)
        if name in self.expected:
            self.use(name)

    @rule(name=st.sampled_from(NAMES))
    def drop(self, name: str) -> None:
        self.cache.drop(name, "reason")
        self.forget(name)

    @rule(name=st.sampled_from(NAMES))
    def damage(self, name: str) -> None:
        if name in self.expected:
            (self.cache.folder / name).write_bytes(b"damaged")
            assert self.cache.find(name) is None
            self.forget(name)

    @rule()
    def check(self) -> None:
        for entry in self.cache.entries():
            assert self.cache.check(entry) is None
            self.use(entry.path.name)  # some file systems record that it was read

    @rule(count=st.integers(0, 4))
    def prune(self, count: int) -> None:
        entries = self.cache.entries()
        limit = sum(e.nbytes for e in entries[len(entries) - count :]) if count else 0
        removed = [e.path.name for e in self.cache.prune(limit)]
        assert removed == self.order[: max(0, len(entries) - count)]
        for name in removed:
            self.forget(name)

    @rule()
    def clear(self) -> None:
        assert {e.path.name for e in self.cache.clear()} == self.expected.keys()
        self.expected, self.order = {}, []

    @invariant()
    def entries_are_in_order_of_use(self) -> None:
        entries = self.cache.entries()
        assert [e.path.name for e in entries] == self.order
        for entry in entries:
            assert entry.nbytes == entry.path.stat().st_size


TestFolderSequences = FolderSequences.TestCase
TestFolderSequences.settings = settings(max_examples=15, stateful_step_count=12)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path)


@pytest.fixture
def filled(cache):
    """Return a cache of three files, used 10, 20 and 30 seconds after 10^9 seconds."""
    for number, name in enumerate(NAMES[:3], start=1):
        cache.put(name, blob("x"))
        set_used(cache.folder / name, 1e9 + 10 * number)
    return cache


def names(entries: list[module.CacheFile]) -> list[str]:
    return [entry.path.name for entry in entries]


@pytest.mark.parametrize(
    ("older_than_s", "count"), [(None, 0), (95, 0), (90, 0), (89.5, 1), (79, 2), (0, 3)]
)
def test_prune_by_age_in_seconds(older_than_s, count, filled, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1e9 + 100)
    assert names(filled.prune(None, older_than_s=older_than_s)) == NAMES[:count]
    assert names(filled.entries()) == NAMES[count:3]


@pytest.mark.parametrize(("spare", "count"), [(0, 0), (-1, 1), (1, 0)])
def test_prune_to_a_size_in_bytes(spare, count, filled):
    total = sum(entry.nbytes for entry in filled.entries())
    assert names(filled.prune(total + spare)) == NAMES[:count]


def test_prune_by_age_counts_for_the_size(filled, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1e9 + 100)
    one = filled.entries()[0].nbytes
    assert names(filled.prune(2 * one, older_than_s=89.5)) == NAMES[:1]


def test_use_is_the_later_of_access_and_write(cache):
    cache.put(NAMES[0], blob("x"))
    for accessed, written in ((5, 7), (9, 7)):
        set_used(cache.folder / NAMES[0], accessed, written)
        (entry,) = cache.entries()
        assert (entry.created_s, entry.used_s) == (7, max(accessed, written))


def test_limit_evicts_old_files_and_refuses_a_large_one(tmp_path):
    Cache(tmp_path).put(NAMES[0], blob("x"))
    nbytes = (tmp_path / NAMES[0]).stat().st_size
    set_used(tmp_path / NAMES[0], 1e9)
    limited = Cache(tmp_path, size_limit_nbytes=2 * nbytes)
    assert limited.put(NAMES[1], blob("y"))
    assert limited.put(NAMES[2], blob("z"))
    assert sorted(names(limited.entries())) == sorted(NAMES[1:3])
    assert not limited.put(NAMES[3], blob("large" * nbytes))
    assert limited.put(NAMES[3], blob("y"))
    exact = Cache(tmp_path, size_limit_nbytes=nbytes)
    assert exact.put(NAMES[0], blob("x"))
    assert names(exact.entries()) == [NAMES[0]]
    assert not Cache(tmp_path, size_limit_nbytes=nbytes - 1).put(NAMES[0], blob("x"))


def test_other_files_of_the_folder_are_left_alone(cache):
    others = ["notes.txt", f"{'a' * 63}.hetero", f"{'g' * 64}.hetero", f"{'a' * 64}.heteroX"]
    for name in others:
        (cache.folder / name).write_text("mine")
    (cache.folder / NAMES[0]).mkdir()
    assert cache.entries() == cache.clear() == cache.prune(0) == []
    assert all((cache.folder / name).read_text() == "mine" for name in others)


def test_symbolic_link_is_a_miss_and_is_removed(cache, tmp_path):
    cache.put(NAMES[0], blob("x"))
    (cache.folder / NAMES[1]).symlink_to(cache.folder / NAMES[0])
    assert cache.find(NAMES[1]) is None
    assert not (cache.folder / NAMES[1]).is_symlink()
    assert text_of(cache, NAMES[0]) == "x"


def test_failed_write_stores_nothing_and_the_next_succeeds(cache):
    def fail(file: BinaryIO) -> int:
        file.write(b"begun")
        raise RuntimeError("export failed")

    assert not cache.put(NAMES[0], fail)
    assert list(cache.folder.iterdir()) == []
    assert cache.put(NAMES[0], blob("x"))


def test_error_of_the_folder_ends_writing(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "cache")
    calls: list[int] = []

    def write(file: BinaryIO) -> int:
        calls.append(1)
        return 0

    with caplog.at_level(logging.WARNING):
        assert not cache.put(NAMES[0], write)
        assert not cache.put(NAMES[0], write)
    assert len(caplog.records) == 1
    assert calls == []
    assert cache.entries() == []
    assert cache.find(NAMES[0]) is None


# Encryption.


def flipped(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


def test_encrypted_files_need_their_functions(cache):
    encrypted = Cache(cache.folder, callbacks=(flipped, flipped))
    assert (cache.encrypted, encrypted.encrypted) == (False, True)
    assert encrypted.put(NAMES[0], blob("secret"))
    data = (cache.folder / NAMES[0]).read_bytes()
    assert b"secret" not in data
    assert b"secret" in flipped(data)
    assert text_of(encrypted, NAMES[0]) == "secret"
    assert cache.find(NAMES[0]) is None
    assert not (cache.folder / NAMES[0]).exists()
    cache.put(NAMES[1], blob("plain"))
    assert encrypted.find(NAMES[1]) is None


@pytest.mark.parametrize("index", [0, 1])
def test_function_that_fails_is_a_miss(index, cache, caplog):
    def fail(data: bytes) -> bytes:
        raise ValueError("no key")

    functions = [flipped, flipped]
    Cache(cache.folder, callbacks=(flipped, flipped)).put(NAMES[0], blob("x"))
    functions[index] = fail
    broken = Cache(cache.folder, callbacks=(functions[0], functions[1]))
    with caplog.at_level(logging.WARNING):
        if index:
            assert broken.find(NAMES[0]) is None
        else:
            assert not broken.put(NAMES[1], blob("x"))
    operation = ("encrypt", "decrypt")[index]
    assert f"CACHE_ENCRYPTION_CALLBACKS: {operation}: ValueError: no key" in caplog.text


# Locks and temporary files.


@pytest.mark.parametrize(("timeout_s", "num_polls"), [(0.0, 0), (0.1, 2), (1.0, 20)])
def test_lock_times_out_in_seconds(timeout_s, num_polls, tmp_path, monkeypatch):
    now = [0.0]
    polls: list[float] = []

    def sleep(seconds: float) -> None:
        polls.append(seconds)
        now[0] = round(now[0] + seconds, 6)

    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module.time, "sleep", sleep)
    with Cache(tmp_path).lock("key") as first:
        assert first
        with Cache(tmp_path, lock_timeout_s=timeout_s).lock("key") as second:
            assert not second
        assert polls == [0.05] * num_polls
        with Cache(tmp_path, lock_timeout_s=0).lock("other") as other:
            assert other
    with Cache(tmp_path, lock_timeout_s=0).lock("key") as again:
        assert again


def test_lock_file_that_another_user_may_own_is_not_used(tmp_path):
    with Cache(tmp_path).lock("key"):
        pass
    lock = tmp_path / ".locks" / "key.lock"
    (tmp_path / "link").hardlink_to(lock)
    with Cache(tmp_path).lock("key") as acquired:
        assert not acquired
    lock.unlink()
    lock.symlink_to(tmp_path / "link")
    with Cache(tmp_path).lock("key") as acquired:
        assert not acquired


def temporary_file(folder: Path, age_s: float) -> Path:
    path = folder / f".x{module.TEMPORARY_SUFFIX}"
    path.write_text("")
    os.utime(path, (1e9 - age_s, 1e9 - age_s))
    return path


@pytest.mark.parametrize(("age_s", "remains"), [(59, True), (61, False)])
def test_temporary_files_of_ended_processes(age_s, remains, cache, monkeypatch):
    monkeypatch.setattr(module.time, "time", lambda: 1e9)
    path = temporary_file(cache.folder, age_s)
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # its process still writes
        cache.prune(None)
        assert path.exists()
    cache.prune(None)
    assert path.exists() == remains
    path = temporary_file(cache.folder, age_s)
    assert cache.put(NAMES[0], blob("x"))
    assert path.exists() == remains
    cache.clear()
    assert not path.exists()


def test_clear_removes_free_locks_alone(tmp_path):
    cache = Cache(tmp_path)
    with cache.lock("used"):
        with cache.lock("free"):
            pass
        Cache(tmp_path).clear()
        assert [path.name for path in (tmp_path / ".locks").iterdir()] == ["used.lock"]


def test_check_of_a_cost_file(cache):
    path = cache.folder / f"{'a' * 64}.costs.json"
    path.write_text("{}")
    (entry,) = cache.entries()
    assert cache.check(entry) is None
    path.write_text("{")
    assert cache.check(entry)
    path.unlink()
    (cache.folder / "elsewhere.json").write_text("{}")
    path.symlink_to(cache.folder / "elsewhere.json")
    assert cache.check(entry)  # another user may have made the link


def test_cache_of_options(tmp_path):
    defaults = {name: p.default for name, p in HETERO_PROPERTIES.items()}
    assert open_cache(defaults) is None
    options = {"CACHE_DIR": str(tmp_path), "CACHE_SIZE_LIMIT_BYTES": 7, "CACHE_LOCK_TIMEOUT_S": 0.5}
    cache = open_cache({**defaults, **options})
    assert cache is not None
    assert cache.folder == tmp_path
    assert (cache._size_limit_nbytes, cache._lock_timeout_s, cache.encrypted) == (7, 0.5, False)
    options["CACHE_ENCRYPTION_CALLBACKS"] = (flipped, flipped)
    encrypted = open_cache({**defaults, **options})
    assert encrypted is not None
    assert encrypted.encrypted
