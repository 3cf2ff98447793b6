"""Usage errors of the command line: the option, the reason and the fix, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from hetero.core import Core
from tests.support.command_line import ROOT
from tests.support.models import unknown_ops

PYTHON_PATH = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def two_inputs(tmp_path):
    """A model with two inputs of the dynamic shape ``[b, s]``."""
    path = tmp_path / "two.onnx"
    text = """<ir_version: 8, opset_import: ["" : 17]>
        two (float[b, s] p, float[b, s] q) => (float[b, s] y) { y = Add(p, q) }"""
    onnx.save_model(onnx.parser.parse_model(text), path)
    return path


@pytest.fixture
def blob(shell, model, tmp_path):
    """The file of a compiled model."""
    path = tmp_path / "m.hetero"
    assert shell("compile", model, "-d", "CPU", "-o", path).code == 0
    return path


@pytest.mark.parametrize("command", ["run", "query", "compile", "bench", "profile"])
@pytest.mark.parametrize("plugin", ["nope:X", "os:getcwd", "os"])
def test_unknown_plugin_is_a_usage_error(shell, model, command, plugin):
    result = shell(command, model, "--plugin", plugin)
    assert result.code == 2
    assert f"--plugin {plugin}: " in result.err


def test_plugin_without_its_backend_is_a_usage_error(shell, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "broken_plugin_here.py").write_text(
        "from hetero.devices.null.plugin import NullPlugin\n\n\n"
        "class Broken(NullPlugin):\n    name = 'BROKEN'\n"
        "    def __init__(self):\n        raise ImportError('no libbroken here')\n"
    )
    plugin = ("--plugin", "broken_plugin_here:Broken")
    result = shell("run -d CPU", model, *plugin)
    assert (result.code, "no libbroken here" in result.err) == (2, True)
    assert "no libbroken here" in shell("devices", *plugin).out


def test_devices_lists_a_plugin_that_fails_to_load(shell):
    result = shell("devices --json --plugin nope:X")
    assert result.code == 0
    assert "nope:X" in {row["name"] for row in result.document["devices"] if row["error"]}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run MODEL -a missing.json", "no such file missing.json"),
        ("run MODEL -d hetero:ort,cpu", "write HETERO:ORT,CPU"),
        ("run MODEL --shape x:2,3", "expected NAME=1,3,224,224"),
        ("run MODEL --shape x=2,3 --shape x=2,3", "set twice"),
        ("run MODEL --shape x=9999999999999,3", "does not fit in memory"),
        ("run MODEL --shape x=2,3 --shape z=1", "the model has no input z"),
        ("run MODEL --hint LATENCY --policy PRIORITY", "--hint: not used with --policy PRIORITY"),
        ("bench MODEL --hint LATENCY --policy PRIORITY", "--hint: not used with --policy PRIORITY"),
        ("compile MODEL --plan-seconds 1", "--plan-seconds: needs a plan by cost"),
        ("plan MODEL --plan-seconds -1", "'--plan-seconds': -1.0"),
        ("bench MODEL -t 0", "'--seconds' / '-t': 0.0"),
        ("bench MODEL -t nan", "'nan' is not a finite number"),
        ("profile MODEL -t inf -o c.json", "'inf' is not a finite number"),
        ("compare MODEL -d CPU,ORT --rtol nan", "'nan' is not a finite number"),
        ("cache prune --older-than-days nan", "'nan' is not a finite number"),
        ("run MODEL --hint LATENCY -c PERFORMANCE_HINT=LATENCY", "set the same property"),
        ("run MODEL -c NUM_STREAMS=1 -c NUM_STREAMS=2", "NUM_STREAMS is set twice"),
        ("run MODEL -c ORT.NUM_STREAMS=1 -c ORT.NUM_STREAMS=2", "ORT.NUM_STREAMS is set twice"),
        ("run MODEL --devices ORT=1,ORT=2", "ORT is set twice"),
        ("inspect MODEL --verify", "--verify needs a blob"),
        ("compare MODEL -d HETERO:ORT,CPU", "expected two devices"),
        ("compare MODEL -d CPU,ORT -a op:Tanh=CPU", "pins need a device list"),
        ("run MODEL --shape x=5,4", "tensor(float)[N, 3]"),
        ("run MODEL --shape y=5,3", "no input y; expected x"),
        ("run MODEL --shape 5,3", "NAME=1,3,224,224"),
        ("run MODEL --shape x=a", "NAME=1,3,224,224"),
        ("run MODEL --shape x=-1,3", "NAME=1,3,224,224"),
        ("run MODEL --input y=absent.npy", "does not exist"),
        ("run MODEL --devices ORT=x", "NAME=N"),
        ("run MODEL --config PERF_COUNT", "KEY=VALUE"),
        ("run MODEL --config =1", "KEY=VALUE"),
        ("run MODEL --executor threads", "inprocess"),
        ("run MODEL --address 127.0.0.1:1", "remove --executor"),
        ("run MODEL --output /", "is a folder"),
        ("run MODEL --frobnicate", "No such option"),
    ],
)
def test_usage_errors_name_the_fix(shell, model, line, words):
    command, *more = line.replace("MODEL", str(model)).split()
    result = shell(command, *more, ray=command in ("inspect", "cache"))
    assert words in " ".join(result.err.split())
    is_hetero_error = "AffinityError" in result.err or "UnknownDeviceError" in result.err
    assert (result.code, result.out) == (1 if is_hetero_error else 2, "")
    assert "Traceback" not in result.err
    assert is_hetero_error or "Error: " in result.err


def test_suggestion_needs_more_than_a_similar_spelling(shell, model):
    result = shell("run", model, "-d", "GPU")
    assert result.code == 1
    assert "Did you mean" not in result.err
    assert "Did you mean ORT" in shell("run", model, "-d", "ort").err


@pytest.mark.parametrize("hint", ["throughput", "Latency"])
def test_hints_are_case_insensitive(shell, model, hint):
    line = f"compile --hint {hint} --devices NULL=2 -d HETERO:NULL.0,NULL.1 --plan-seconds 0.1"
    assert shell(line, model, "-c", "PROFILE_SECONDS=0.1").code == 0


def test_invalid_hint_error_lists_the_documented_words(shell, model):
    result = shell("plan --hint SPEED", model)
    assert result.code == 2
    assert "expected THROUGHPUT or LATENCY, got 'SPEED'" in result.err


def test_symbolic_dimension_has_one_size_in_all_inputs(shell, two_inputs, tmp_path):
    (output,) = shell("run --json --shape p=4,5", two_inputs).document["outputs"]
    assert output["shape"] == [4, 5]
    np.save(tmp_path / "p.npy", np.zeros((2, 3), np.float32))
    options = ("-i", f"p={tmp_path / 'p.npy'}")
    (output,) = shell("run --json", two_inputs, *options).document["outputs"]
    assert output["shape"] == [2, 3]
    result = shell("run --shape p=4,5 --shape q=4,6", two_inputs)
    assert result.code == 2
    assert "dimension 's' is 6, but 5 in another input" in result.err


def test_duplicate_input_is_refused(shell, two_inputs, tmp_path):
    np.save(tmp_path / "p.npy", np.zeros((2, 3), np.float32))
    options = ("-i", f"p={tmp_path / 'p.npy'}")
    result = shell("run", two_inputs, *options, *options)
    assert (result.code, "set twice" in result.err) == (2, True)
    result = shell("run --shape p=2,3", two_inputs, *options)
    assert (result.code, "p also comes from a file" in result.err) == (2, True)


@pytest.mark.parametrize("command", ["query", "plan", "compile", "profile", "compare -d CPU,ORT"])
def test_commands_for_models_refuse_a_blob(shell, blob, command):
    result = shell(command, blob)
    assert result.code == 2
    assert "is a compiled model (a blob)" in result.err


@pytest.mark.parametrize("command", ["run", "bench"])
@pytest.mark.parametrize(
    "options", ["--hint LATENCY", "--policy AUTO", "-c MAX_SUBGRAPHS=2", "-a op:Tanh=CPU"]
)
def test_placement_options_are_refused_for_a_blob(shell, blob, command, options):
    result = shell(f"{command} {options}", blob)
    assert (result.code, "a blob's placement is fixed" in result.err) == (2, True)


def test_bench_accepts_a_blob(shell, blob):
    assert shell("bench --json -n 2", blob).document["one_at_a_time"]["requests"] == 2


@pytest.mark.parametrize("command", ["run", "bench -n 2", "inspect"])
def test_blob_of_another_format_version_is_refused(shell, blob, command):
    contents = blob.read_bytes()
    blob.write_bytes(contents[:8] + b"\x09" + contents[9:])
    result = shell(command, blob, ray=command == "inspect")  # inspect has no option --executor
    assert result.code == 1
    assert "format version 9" in result.err
    assert "ompile" in result.err  # the fix: recompile


def test_run_on_null_notes_that_it_computes_nothing(shell, model):
    result = shell("run -d NULL", model)
    assert result.code == 0
    assert "NULL computes nothing" in result.err
    assert "computes nothing" not in shell("run -d CPU", model).err


@pytest.mark.parametrize(
    ("line", "code", "error_type"),
    [
        ("run /nope.onnx", 1, "ModelNotFoundError"),
        ("run MODEL -d NOPE", 1, "UnknownDeviceError"),
        ("run MODEL --nope", 2, "NoSuchOption"),
        ("run MODEL -a nope=CPU", 1, "AffinityError"),
        ("compile UNKNOWN", 1, "UnsupportedNodesError"),
        ("inspect /nope.onnx", 1, "ModelNotFoundError"),
    ],
)
def test_errors_are_json_with_the_json_option(shell, model, tmp_path, line, code, error_type):
    unknown = tmp_path / "unknown.onnx"
    onnx.save_model(unknown_ops(), unknown)
    line = line.replace("MODEL", str(model)).replace("UNKNOWN", str(unknown))
    result = shell(f"{line} --json", ray=line.startswith(("inspect", "cache")))
    assert result.code == code
    assert result.err == ""
    assert result.document["schema"] == {"name": "hetero.error", "version": 2}
    error = result.document["error"]
    assert error["type"] == error_type
    assert error["message"]


def test_unexpected_error_is_also_json(
    shell,
    model,
    monkeypatch,
    capsys,
):
    def raise_error(*arguments: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("by hand")

    monkeypatch.setattr(Core, "compile_model", raise_error)
    with pytest.raises(ZeroDivisionError):
        shell("run --json", model)
    error = json.loads(capsys.readouterr().out)["error"]
    assert error == {"type": "ZeroDivisionError", "message": "by hand"}


def test_memory_error_is_one_line(shell, model, monkeypatch):
    def raise_memory_error(*arguments: Any, **kwargs: Any) -> Any:
        raise MemoryError("Unable to allocate 1.46 TiB")

    monkeypatch.setattr(Core, "compile_model", raise_memory_error)
    result = shell("run", model)
    assert (result.code, result.err) == (
        1,
        "hetero: not enough memory: Unable to allocate 1.46 TiB\n",
    )


@pytest.mark.slow
def test_ascii_locale_prints_escapes(model):
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0"} | PYTHON_PATH
    result = subprocess.run(
        [sys.executable, "-m", "hetero", "run", str(model), "--executor", "inprocess"],
        capture_output=True,
        env=environment,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert b"Traceback" not in result.stderr
    assert b"\\u2026" in result.stdout


@pytest.mark.slow
def test_closed_pipe_prints_no_traceback(model):
    command = f"{sys.executable} -m hetero query {model} --json | true"
    environment = os.environ | PYTHON_PATH
    result = subprocess.run(
        command, shell=True, capture_output=True, env=environment, timeout=300, check=False
    )
    assert result.stderr == b""


@pytest.mark.parametrize("command", ["", "cache"])
def test_missing_subcommand_prints_the_help_once(shell, command):
    result = shell(command, ray=True)
    assert result.code == 2
    assert result.err.count("Usage:") == 1
    assert "Error:" not in result.err
    assert "Commands:" in result.err


@pytest.mark.slow
def test_command_that_cannot_be_loaded_leaves_the_others(tmp_path):
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[hetero.commands]\nbroken = no_such_module:command\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "hetero", *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, check=False)

    assert run("--version").returncode == 0
    broken = run("broken")
    assert broken.returncode == 1
    assert "the command broken cannot be loaded: No module named 'no_such_module'" in broken.stderr
