"""The README: its Python runs, its output is what comes out, and nothing of the CLI is missing."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest

from hetero.cli import cli
from tests.support.command_line import Shell

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the README's fenced blocks of a language, each with the text block after it."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def block_with(language: str, words: str) -> str:
    (found,) = [block for block in blocks(language) if words in block]
    return found


def output_after(words: str) -> str:
    """Return the first text block after `words`."""
    _, _, rest = README.partition(words)
    found = re.search(r"^```text\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def stable(text: str) -> list[str]:
    """Return an output's words without what differs from run to run: times, versions, machines."""
    varying = re.compile(r"^(latency: |compiled in | *(OV.CPU|ORT|CPU) +(OV|ORT|CPU) )")
    lines = [line for line in text.splitlines() if not varying.match(line)]
    return re.sub(r"[━┏┳┓┡╇┩└┴┘─│┃]", " ", " ".join(lines)).split()


def test_its_first_command_prints_what_it_says(shell: Shell) -> None:
    pytest.importorskip("openvino", reason="the first command runs three vendors' runtimes")
    line = block_with("sh", "light:shufflenet").split("&&")[1].strip()
    _, *arguments = shlex.split(line)
    done = shell(shlex.join(arguments))
    assert done.code == 0
    assert stable(done.out) == stable(output_after(line))


def test_its_query_prints_what_it_says(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino", reason="the query asks three vendors' runtimes")
    line = block_with("sh", "hetero query").strip()
    make, ask = (shlex.split(command) for command in line.split("&&"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", make[2:])
    runpy.run_module(make[2], run_name="__main__")
    done = shell(shlex.join(ask[1:]), ray=True)
    assert done.code == 0
    assert stable(done.out) == stable(output_after(line))


@pytest.mark.parametrize(
    ("words", "last"),
    [
        ("queue.set_callback", "queue.wait_all()"),
        ("PrePostProcessor(", ".uint8))[0]"),
        ("core.add_extension", "-0.5]))[0])"),
        ("queue.stream(", "asyncio.run(main())"),
        ("AUTO_BATCH_SIZE", "print(error)"),
    ],
)
def test_its_python_runs_and_prints_what_it_says(words: str, last: str) -> None:
    program = block_with("python", words)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    assert printed.getvalue() == output_after(last)


def test_its_operator_is_the_file_that_is_tested() -> None:
    file = (ROOT / "tests" / "examples" / "custom_operator.py").read_text()
    assert block_with("python", "def fraction") == file


def test_what_it_shows_of_a_request_is_what_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = block_with("python", "core.trace(")
    printed = io.StringIO()
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "README.md", "exec"), {})
    times = re.compile(r"\d+\.\d+ ms")
    assert times.sub("", printed.getvalue()) == times.sub("", output_after("core.trace("))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_its_plugin_is_the_file_that_is_tested_and_short() -> None:
    file = (ROOT / "tests" / "examples" / "third_party_plugin.py").read_text()
    assert block_with("python", "class DensePlugin") == file
    assert len(file.splitlines()) < 30


def test_its_conformance_example_runs() -> None:
    program = block_with("python", "check_device(")
    found: dict[str, Any] = {}
    exec(compile(program, "README.md", "exec"), found)


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_command_is_in_it_and_has_help_with_an_example(shell: Shell, name: str) -> None:
    assert re.search(rf"^\| `hetero {name}\b.*` \| .+ \|$", README, re.MULTILINE)
    told = shell(f"{name} --help", ray=True).out
    assert f"Usage: hetero {name} [OPTIONS]" in told
    assert f"hetero {name}" in told.partition("Example:")[2]


def test_every_command_that_it_names_is_there() -> None:
    named = set(re.findall(r"^\| `hetero ([\w-]+)", README, re.MULTILINE))
    assert named == set(cli.commands)


def test_the_files_that_it_names_are_there() -> None:
    for name in ("CHANGELOG.md", "cluster.yaml", "LICENSE"):
        assert (ROOT / name).is_file()
    for name in re.findall(r"`([A-Z]+\.md)`", README):
        assert (ROOT / name).is_file(), name
