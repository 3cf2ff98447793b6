"""Files that never end, are too large, nest too deep or expand to billions: one typed error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hetero.devices import file_reader
from hetero.devices.errors import PlanError
from hetero.devices.file_reader import DocumentError, FileReader, parse_json, parse_yaml

READER = FileReader("test file", PlanError, "Write it again.", max_nbytes=2**16)
BOMB = "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def write_pipe(path: Path) -> None:
    os.mkfifo(path)


def write_endless_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


def write_sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


def write_loop(path: Path) -> None:
    path.symlink_to(path)


def make_folder(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("read", ["read_bytes", "read_text", "read_json", "read_yaml"])
@pytest.mark.parametrize(
    "write", [write_pipe, write_endless_link, write_sparse, write_loop, make_folder, lambda _: None]
)
def test_reader_path_that_is_no_small_file_raises(tmp_path, write, read):
    path = tmp_path / "file"
    write(path)
    with pytest.raises(PlanError, match=r"test file .*/file: cannot be read: .*Write it again"):
        getattr(READER, read)(path)


def test_reader_file_of_the_largest_size_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(2**16))
    assert READER.read_bytes(path) == bytes(2**16)
    path.write_bytes(bytes(2**16 + 1))
    with pytest.raises(PlanError, match="65537 bytes, expected at most 65536"):
        READER.read_bytes(path)


def test_reader_file_without_a_size_is_bounded():
    with pytest.raises(OSError, match="more than 100 bytes"):  # its size is 0 for the system
        file_reader.read_regular(Path("/proc/kallsyms"), 100)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_reader_file_of_another_user_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_text("text")
    os.chown(path, 12345, 12345)
    assert file_reader.read_regular(path) == b"text"
    with pytest.raises(OSError, match="belongs to user 12345, expected 0"):
        file_reader.read_regular(path, is_own=True)


def test_reader_link_is_refused_on_request(tmp_path):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    assert file_reader.read_regular(tmp_path / "link") == b"text"
    with pytest.raises(OSError, match="symbolic links"):
        file_reader.read_regular(tmp_path / "link", follow_links=False)


@pytest.mark.parametrize(
    ("read", "data", "line", "column"),
    [
        ("read_text", b"a\nbc\xff", 2, 3),
        ("read_json", b'{"a": 1,\n  "b": }', 2, 8),
        ("read_json", b'["a"', 1, 5),
        ("read_yaml", b"a: 1\nb: [1\n", 3, 1),
        ("read_yaml", b"a: 1\nb: 2026-99-99\n", 2, 4),
        ("read_yaml", b"a:\n  - 1\n  - " + b"9" * 5000, 3, 5),
        ("read_yaml", b"a: 1\nb: !!python/object/apply:os.getcwd []\n", 2, 4),
        ("read_yaml", b"a: &a\n  - *a\n", 2, 5),
        ("read_yaml", b"a: 1\nb: " + b"[" * 100, 2, 67),
    ],
)
def test_reader_error_has_line_and_column(tmp_path, read, data, line, column):
    path = tmp_path / "file"
    path.write_bytes(data)
    with pytest.raises(PlanError) as caught:
        getattr(READER, read)(path)
    assert caught.value.data == {"path": str(path), "line": line, "column": column}
    assert f"{path}:{line}:{column}: " in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 65 + "]" * 65, "[" * 10**5, '{"a":' * 65 + "1" + "}" * 65])
def test_parse_json_deep_document_raises(text):
    with pytest.raises(DocumentError, match="nested more than 64 deep"):
        parse_json(text)
    assert parse_json("[" * 64 + "]" * 64)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", "9" * 5000, "{'a': 1}"])
def test_parse_json_text_that_is_not_json_raises(text):
    with pytest.raises(DocumentError):
        parse_json(text)


@pytest.mark.parametrize("text", [BOMB, "- " * 10_000, "{a: " * 10_000])
def test_parse_yaml_large_document_raises(text):
    with pytest.raises(DocumentError, match="more than"):
        parse_yaml(text)


def test_parse_yaml_aliases_and_merges_are_resolved():
    text = "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  b: 3\n"
    expected = {"base": {"a": 1, "b": 2}, "other": {"a": 1, "b": 3}}
    assert parse_yaml(text) == expected
