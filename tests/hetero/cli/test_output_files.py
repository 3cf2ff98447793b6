"""Output files of commands: no overwritten user files, no partly written files."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hetero.core import Core
from hetero.devices.model.model import Model
from tests.support.models import branches, branches_output

SPLIT = ("-d", "HETERO:ORT,CPU", "-a", "op:Tanh=CPU")


def itself(path: Path) -> Path:
    return path


def symlink(path: Path) -> Path:
    link = path.with_name("symlink.onnx")
    link.symlink_to(path)
    return link


def hardlink(path: Path) -> Path:
    link = path.with_name("hardlink.onnx")
    link.hardlink_to(path)
    return link


@pytest.mark.parametrize(
    "line",
    [
        "query --annotate",
        "query --html",
        "compile -o",
        "run -o",
        "profile -t 0.1 -o",
        "plan --html",
    ],
)
@pytest.mark.parametrize("link", [itself, symlink, hardlink])
def test_output_over_the_model_is_refused(shell, model, line, link):
    before = model.read_bytes()
    command, *option = line.split()
    result = shell(command, model, *option, link(model))
    assert result.code == 2
    assert "choose another" in result.err
    assert model.read_bytes() == before


def test_output_over_an_input_file_is_refused(shell, model, tmp_path):
    values, pins = tmp_path / "x.npy", tmp_path / "pins.json"
    np.save(values, np.zeros((2, 3), np.float32))
    pins.write_text('{"op:Tanh": "CPU"}')
    assert shell("run", model, "-i", f"x={values}", "-o", values).code == 2
    assert shell("compile", model, *SPLIT[:2], "-a", pins, "-o", pins).code == 2
    assert (
        shell("query", model, "--html", tmp_path / "one", "--annotate", tmp_path / "one").code == 2
    )
    assert np.load(values).shape == (2, 3)
    assert json.loads(pins.read_text()) == {"op:Tanh": "CPU"}


def test_output_over_weights_of_the_model_is_refused(shell, tmp_path):
    path, data = tmp_path / "m.onnx", tmp_path / "m.bin"
    onnx.save_model(
        branches(), path, save_as_external_data=True, location=data.name, size_threshold=0
    )
    before = data.read_bytes()
    for line in ("compile -o", "query --annotate", "run -o"):
        command, option = line.split()
        result = shell(command, path, "-d", "CPU", option, data)
        assert (result.code, "weights of the model" in result.err) == (2, True), line
    assert data.read_bytes() == before


@pytest.mark.parametrize("line", ["compile -o", "profile -o", "query --html", "run -o"])
def test_missing_folder_is_reported_before_any_work(shell, model, line, monkeypatch):
    def fail(*arguments: Any, **kwargs: Any) -> Any:
        raise AssertionError("work was begun")

    for name in ("compile_model", "profile_model", "survey_model"):
        monkeypatch.setattr(Core, name, fail)
    command, option = line.split()
    result = shell(command, model, option, "/nope/x")
    assert result.code == 2
    assert "the folder /nope does not exist" in result.err


@pytest.mark.parametrize(
    ("command", "option", "name"),
    [
        ("query", "--html", "report.html"),
        ("query", "--annotate", "noted.onnx"),
        ("compile", "-o", "model.hetero"),
        ("compile", "--subgraphs-dir", "parts"),
        ("run", "-o", "out.npz"),
    ],
)
def test_full_disk_error_names_and_removes_the_file(
    shell,
    model,
    tmp_path,
    monkeypatch,
    command,
    option,
    name,
):
    folder = tmp_path / "full"
    folder.mkdir()

    def raise_disk_full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    save = Model.save

    def save_half(self: Model, path: Path) -> None:
        save(self, path)
        raise_disk_full()

    monkeypatch.setattr(Model, "save", save_half)
    result = shell(command, model, *SPLIT, option, folder / name)
    assert result.code == 1
    assert "No space left on device" in result.err
    assert str(folder) in result.err
    assert [p for p in folder.rglob("*") if p.is_file()] == []


def test_failed_write_keeps_the_old_file(shell, model, tmp_path, monkeypatch):
    page = tmp_path / "report.html"
    page.write_text("the last one")

    def raise_disk_full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", raise_disk_full)
    assert shell("query", model, "--html", page).code == 1
    assert page.read_text() == "the last one"


def test_subgraphs_need_a_new_or_empty_folder(shell, model, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    assert shell("compile", model, *SPLIT, "--subgraphs-dir", folder).code == 0
    assert len(list(folder.iterdir())) == 3
    result = shell("compile", model, "-d", "ORT", "--subgraphs-dir", folder)
    assert result.code == 2
    assert "is not empty" in result.err
    assert len(list(folder.iterdir())) == 3


def test_run_writes_the_named_file(shell, model, tmp_path):
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "out.txt"
    assert shell("run", model, "-i", tmp_path / "x.npy", "-o", out).code == 0
    assert not list(tmp_path.glob("*.npz"))
    with np.load(out) as outputs:
        np.testing.assert_allclose(outputs["y"], branches_output(x), rtol=1e-6)


def test_run_writes_outputs_of_any_name_and_type(shell, tmp_path):
    # `file` is a parameter of numpy.savez; strings are object arrays; a sequence is a list.
    path, out = tmp_path / "kinds.onnx", tmp_path / "out.npz"
    text = """<ir_version: 8, opset_import: ["" : 17]>
        kinds (string[2] kept) => (string[2] file, seq(string[2]) listed)
        { file = Identity(kept) listed = SequenceConstruct(kept, kept) }"""
    onnx.save_model(onnx.parser.parse_model(text), path)
    result = shell("run", path, "-d", "CPU", "-o", out)
    assert result.code == 0, result.err
    with np.load(out) as outputs:
        assert set(outputs) == {"file", "listed[0]", "listed[1]"}
        assert list(outputs["file"]) == ["a", "a"]


def test_profile_default_file_is_named_after_its_model(shell, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other" / model.name
    other.parent.mkdir()
    proto = branches()
    proto.graph.node[0].name = "renamed"
    onnx.save_model(proto, other)
    line = "profile -d NULL -t 0.1"
    for _ in range(2):  # the second run may replace its own file
        assert shell(line, model).code == 0
    costs = tmp_path / "branches.costs.json"
    before = costs.read_bytes()
    result = shell(line, other)
    assert result.code == 2
    assert "costs of another model" in result.err
    assert costs.read_bytes() == before


@pytest.mark.parametrize(
    "line", ["compile -o", "compile --subgraphs-dir", "query --html", "run -o"]
)
@pytest.mark.parametrize(
    ("path", "received", "fix"),
    [
        # Root passes the permissions of /proc, but nobody can create a file there.
        ("/proc/new", "in the folder /proc", "create its folder, or choose another"),
        ("TMP/missing/new", "missing does not exist", "create it first"),
        ("TMP/file/new", "TMP/file is a file", "choose another path"),
    ],
)
def test_unwritable_output_is_refused_before_any_work(
    shell, model, tmp_path, monkeypatch, line, path, received, fix
):
    if "missing" in path and "dir" in line:
        pytest.skip("the command creates the missing folders")
    monkeypatch.setattr(Core, "compile_model", None)  # calling it fails
    (tmp_path / "file").touch()
    command, option = line.split()
    result = shell(command, model, *SPLIT, option, path.replace("TMP", str(tmp_path)))
    assert result.code == 2
    assert received.replace("TMP", str(tmp_path)) in result.err
    assert fix in result.err


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EROFS, "choose a folder of a writable file system"),
        (errno.EACCES, "change its permissions"),
        (errno.EDQUOT, "free some of your quota"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ECONNRESET, "reset by peer: model.onnx\n"),  # no error of a file: no advice
    ],
)
def test_error_of_a_file_names_its_fix(shell, model, monkeypatch, number, fix):
    def fail(*arguments: Any, **kwargs: Any) -> Any:
        raise OSError(number, os.strerror(number), "model.onnx")

    monkeypatch.setattr(Core, "compile_model", fail)
    result = shell("compile", model, *SPLIT)
    assert result.code == 1
    assert f"{os.strerror(number)}: model.onnx" in result.err
    assert fix in result.err
