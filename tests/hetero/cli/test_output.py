"""Terminal and JSON output: pipes, narrow terminals, control characters and schemas."""

from __future__ import annotations

import _thread
import io
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from rich.console import Console

import hetero.core
from hetero.devices import Model, Program, RunContext, Value
from hetero.devices.null.plugin import NullPlugin
from hetero.report.document import NAME as REPORT_NAME
from hetero.report.document import VERSION as REPORT_VERSION
from hetero.scheduler import create_executor
from hetero.terminal_tables import Rows

SPLIT = ("-d", "HETERO:ORT,CPU", "-a", "op:Tanh=CPU")
EVIL = "\x1b[2J[red]n[/red]\x07"


def write_model(path: Path, *names: str) -> Path:
    """Write a chain of Relu nodes with these names; the first also names the graph."""
    values = ["x", *(f"value {name}" for name in names)]
    nodes = [
        helper.make_node("Relu", [values[i]], [values[i + 1]], name) for i, name in enumerate(names)
    ]
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in (values[0], values[-1])
    ]
    graph = helper.make_graph(nodes, names[0], ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    onnx.save_model(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize(
    "line", ["inspect", "query --nodes", "compile -d CPU", "run -d CPU", "bench -d CPU -n 2"]
)
def test_names_cannot_control_the_terminal(shell, tmp_path, line):
    path = write_model(tmp_path / "evil.onnx", EVIL, "n2")
    result = shell(line, path, ray=line == "inspect")
    assert result.code == 0, result.err
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", result.out + result.err)
    assert r"\x1b[2J[red]n[/red]\x07" in result.out


def test_errors_cannot_control_the_terminal(shell, tmp_path):
    result = shell("run -a nope=CPU", write_model(tmp_path / "evil.onnx", EVIL, "n2"))
    assert result.code == 1
    assert "\x1b" not in result.err


def test_pipe_gets_full_tables(shell, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    long_name = "layer_" * 60
    result = shell("query --nodes", write_model(tmp_path / "long.onnx", long_name, "n2"))
    (row,) = [text for text in result.out.splitlines() if text.startswith(f" {long_name}")]
    assert "Relu" in row


@pytest.mark.parametrize("columns", [30, 40, 80])
def test_narrow_terminal_shows_whole_device_names(shell, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = shell("devices --devices NULL=12")
    assert "…" not in result.out
    for name in ("CPU", "ORT", "NULL.0", "NULL.11"):
        assert re.search(rf"^ {re.escape(name)}\s", result.out, re.MULTILINE), result.out


@pytest.mark.parametrize("width", [1, 20, 40, 80])
def test_table_truncates_nothing(width):
    cells = ("1.31234e-06", "a_name_without_spaces" * 3, "words that may wrap")
    table = Rows("number", "name", "text", "short", wraps=("name", "text", "short"))
    table.add(*cells, "x")
    console = Console(width=width, file=io.StringIO())
    console.print(table, crop=False)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for cell in cells:
        for letter, count in Counter(cell.replace(" ", "")).items():
            assert text.count(letter) >= count, cell
    assert cells[0] in text
    assert "short" in text


def test_compile_without_a_file_states_how_to_keep_the_result(shell, model, tmp_path):
    assert "wrote nothing; add -o FILE" in shell("compile -d CPU", model).out
    assert "wrote nothing" not in shell("compile -d CPU", model, "-o", tmp_path / "m.hetero").out
    assert "wrote nothing" not in shell("compile -d CPU", model, "--cache", tmp_path).out


def test_one_item_is_singular(shell, model):
    assert "nodes in 1 subgraph\n" in shell("compile -d ORT", model).out
    assert "nodes in 3 subgraphs\n" in shell("compile", model, *SPLIT).out


def test_nodes_of_replicas_count_once(shell, model):
    first = shell("compile -d ORT", model).out.splitlines()[0]
    assert "nodes in 1 subgraph" in first
    result = shell("compile -d HETERO:ORT,CPU --replicas 2", model)
    assert result.out.splitlines()[0] == f"{first}, 2 replicas"


def test_query_and_inspect_show_inputs_and_outputs(shell, model):
    for result in (shell("query", model), shell("inspect", model, ray=True)):
        assert "input x: tensor(float) [N, 3]" in result.out
        assert "output y: tensor(float) [N, 4]" in result.out


def test_inspect_shows_a_model(shell, model):
    document = shell("inspect --json", model, ray=True).document
    proto = onnx.load(model)
    assert document["opsets"] == {i.domain or "ai.onnx": i.version for i in proto.opset_import}
    assert document["nodes"] == len(proto.graph.node)
    assert sum(row["nodes"] for row in document["operators"]) == len(proto.graph.node)
    assert {port["name"] for port in document["inputs"]} == {"x"}
    assert "MatMul" in shell("inspect", model, ray=True).out


def test_inspect_shows_a_blob(shell, model, tmp_path):
    blob = tmp_path / "m.hetero"
    assert shell("compile", model, *SPLIT, "-c", "PERF_COUNT=YES", "-o", blob).code == 0
    result = shell("inspect --verify", blob, ray=True)
    assert result.code == 0
    assert "all checksums match" in result.out
    (options_line,) = re.findall(r"^options: (.*(?:\n *[\w.]+=.*)*)", result.out, re.MULTILINE)
    options = " ".join(options_line.split())
    assert "PERF_COUNT=True" in options
    assert not re.search(r"=(\[\]|\(\)|\{\}|0|None|)(,|$)", options)


COMMANDS = (
    "devices",
    "inspect MODEL",
    "query MODEL",
    "compile MODEL",
    "run MODEL",
    "bench MODEL -n 2",
    "compare MODEL -d CPU,ORT",
    "profile MODEL -d NULL -t 0.1 -o costs.json",
    "plan MODEL -d NULL -c PROFILE_SECONDS=0.1",
    "cache list --dir .",
)


def keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from keys(item)


@pytest.mark.parametrize("line", COMMANDS)
def test_json_has_one_schema_and_one_unit(shell, model, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    needs_no_executor = line.startswith(("inspect", "cache"))
    result = shell(line.replace("MODEL", str(model)) + " --json", ray=needs_no_executor)
    assert result.code == 0, result.err
    assert re.fullmatch(r"hetero\.[a-z]+", result.document["schema"]["name"])
    is_report = result.document["schema"]["name"] == REPORT_NAME
    assert result.document["schema"]["version"] == (REPORT_VERSION if is_report else 2)
    keys_with_units = [
        k for k in keys(result.document) if k.endswith(("_ms", "_us")) or "segment" in k
    ]
    assert keys_with_units == []


def test_json_supports_file_names_that_are_not_text(shell, model, tmp_path):
    file = tmp_path / "m\udcff.hetero"
    assert shell("compile --json -d CPU", model, "-o", file).document["files"] == [str(file)]


# Executors.


@pytest.fixture
def started_executors(monkeypatch):
    """The kinds of executors that a command creates; Ray itself does not start."""
    kinds: list[str] = []

    def create(kind: str, **options: Any) -> Any:
        kinds.append(kind)
        if kind == "ray":
            raise KeyboardInterrupt
        return create_executor(kind, **options)

    monkeypatch.setattr(hetero.core_devices, "create_executor", create)
    return kinds


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("devices", "inprocess"),
        ("query MODEL", "inprocess"),
        ("compile MODEL -o FILE", "inprocess"),
        ("compare MODEL -d CPU,ORT", "inprocess"),
        ("plan MODEL --costs COSTS", "inprocess"),
        ("compile MODEL --hint LATENCY --costs COSTS", "inprocess"),
        ("plan MODEL", "ray"),
        ("compile MODEL --hint LATENCY", "ray"),
        ("run MODEL", "ray"),
        ("bench MODEL", "ray"),
        ("profile MODEL -o FILE", "ray"),
        ("query MODEL --executor ray", "ray"),
        ("query MODEL --address 127.0.0.1:6379", "ray"),
    ],
)
def test_ray_starts_only_for_commands_that_run(
    shell,
    model,
    tmp_path,
    monkeypatch,
    started_executors,
    line,
    kind,
):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    costs = tmp_path / "costs.json"
    if "COSTS" in line:
        assert shell("profile -t 0.1 -d NULL", model, "-o", costs).code == 0
        # Pretend a measurement on Ray, whose nodes have names.
        costs.write_text(costs.read_text().replace('"local"', '"10.0.0.1"'))
        started_executors.clear()
    replaced = {"MODEL": model, "FILE": tmp_path / "file", "COSTS": costs}
    for word, path in replaced.items():
        line = line.replace(word, str(path))
    result = shell(line, *(("-d", "NULL") if costs.exists() else ()), ray=True)
    assert started_executors == [kind]
    assert kind == "ray" or result.code == 0, result.err


@pytest.mark.parametrize("line", ["devices", "query MODEL", "compile MODEL"])
def test_named_cluster_is_used(
    shell,
    model,
    monkeypatch,
    started_executors,
    line,
):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    shell(line.replace("MODEL", str(model)), ray=True)
    assert started_executors == ["ray"]


# The command `bench`.


def test_plan_seconds_excludes_the_measurement(shell, model, monkeypatch):
    config: dict[str, Any] = {}

    def compile_model(self: Any, *arguments: Any, **kwargs: Any) -> Any:
        config.update(arguments[2])
        raise KeyboardInterrupt

    monkeypatch.setattr(hetero.core.Core, "compile_model", compile_model)
    shell("bench --hint LATENCY -t 5 --plan-seconds 0.5", model)
    assert config["PLAN_SECONDS"] == 0.5


class CountingProgram(Program):
    """Counts the runs of another program and interrupts the thirtieth."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def run(self, inputs: Any, context: RunContext) -> list[Value]:
        InterruptingPlugin.runs += 1
        if InterruptingPlugin.runs == 30:
            _thread.interrupt_main()
        return list(self.program.run(inputs, context))


class InterruptingPlugin(NullPlugin):
    """The NULL device with an interrupt in the thirtieth run."""

    name = "INTERRUPTING"
    runs = 0

    def compile(self, model: Model, config: Any) -> Program:
        return CountingProgram(super().compile(model, config))


def test_ctrl_c_prints_the_measurements_of_bench(shell, model):
    InterruptingPlugin.runs = 0
    plugin = ("--plugin", f"{__name__}:InterruptingPlugin", "-d", "INTERRUPTING")
    result = shell("bench -t 60 --json", model, *plugin)
    assert result.code == 130
    assert result.document["interrupted"] is True
    assert result.document["in_flight"] is None
    assert 20 <= result.document["one_at_a_time"]["requests"] <= 30
    assert "interrupted" in result.err


def test_bench_reports_wait_times_of_stages(shell, model):
    slow = ("-d", "NULL", "-c", "NULL_NODE_TIME_US=2000")
    in_flight = shell("bench -n 12 -j 4 --json", model, *slow).document["in_flight"]
    (stage,) = in_flight["stages"]
    # With four requests in flight on one device, each waits for about three others.
    assert stage["wait_s"] > stage["run_s"]


@pytest.mark.parametrize(
    ("redirection", "code", "more"),
    [
        pytest.param(">&-", 0, ["--json"], marks=pytest.mark.slow),
        (">/dev/full", 1, []),
        pytest.param(">&-", 0, [], marks=pytest.mark.slow),
        pytest.param(">/dev/full", 1, ["--json"], marks=pytest.mark.slow),
    ],
)
def test_full_output_device_prints_no_traceback(redirection, code, more):
    words = [sys.executable, "-m", "hetero", "devices", "--executor", "inprocess", *more]
    result = subprocess.run(
        ["sh", "-c", f"{shlex.join(words)} {redirection}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == code
    assert "Traceback" not in result.stderr
    assert not code or more or "No space left on device" in result.stderr
