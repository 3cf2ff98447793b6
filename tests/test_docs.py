"""README and guides: code blocks run and print the output shown; every command is documented."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from hetero.cli.main import cli

ROOT = Path(__file__).parents[1]
COMMANDS = (ROOT / "docs" / "commands.md").read_text()
#: Pages with code blocks.
PAGES = (
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if p.stem not in ("reference", "behaviours")),
)


@dataclass(frozen=True)
class Block:
    """A fenced code block with its expected output, the text block after it."""

    page: str
    line: int
    language: str
    text: str
    output: str


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks; an output belongs to the block before it in the same section."""
    fence = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    content = page.read_text()
    matches = list(fence.finditer(content))
    rows = []
    for block, after in zip_longest(matches, matches[1:]):
        has_output = after is not None and after[1] == "text"
        if has_output and "\n#" in content[block.end() : after.start()]:
            has_output = False
        line = content[: block.start()].count("\n") + 1
        output = after[2] if has_output and after else ""
        rows.append(Block(page.name, line, block[1], block[2], output))
    return rows


BLOCKS = [block for page in PAGES for block in blocks(page)]


def stable(text: str) -> list[str]:
    """Return an output's words without varying parts: times, versions, machines."""
    varying = re.compile(r"^(latency: |compiled in | *(OV.CPU|ORT|CPU) +(OV|ORT|CPU) )")
    lines = [line for line in text.splitlines() if not varying.match(line)]
    text = re.sub(r"\d+(\.\d+)? [mµu]?s\b", "", " ".join(lines))
    return re.sub(r"[━┏┳┓┡╇┩└┴┘─│┃]", " ", text).split()


def commands() -> list[Any]:
    """Return the commands to run, with one case for each block.

    Lines that install, run tests, need other machines, another interpreter or a file of another
    block are omitted.
    """
    tested = (
        "query|run|generate|profile|plan|simulate|compile|inspect|check|compare|bench|cache|serve"
    )
    runnable = re.compile(rf"hetero ({tested})\b|python -m hetero\b")
    cases = []
    for block in BLOCKS:
        run: list[str] = []
        for line in block.text.splitlines() if block.language == "sh" else ():
            if not re.search(r"\.\.\.|--address|--tokens|ORT_QNN|--ep ", line):
                parts = [part.strip() for part in line.partition(" #")[0].split("&&")]
                run += [part for part in parts if runnable.match(part) and "@" not in part]
        if run:
            output = block.output if block.text.count("\n") == 1 else ""
            name = f"{block.page}:{block.line}: {run[-1][:40]}"
            # A profile takes as long as `-t` allows.
            marks = [pytest.mark.slow] if any("hetero profile" in part for part in run) else []
            cases.append(pytest.param(run, output, id=name, marks=marks))
    return cases


@pytest.mark.parametrize(("parts", "output"), commands())
def test_commands_run_and_print_the_output_shown(parts, output, shell, tmp_path, monkeypatch):
    if any("OV" in part for part in parts):
        pytest.importorskip("openvino", reason="the command needs OpenVINO")
    monkeypatch.setattr("hetero.cli.run.REPEATS", 1)
    monkeypatch.chdir(tmp_path)
    for part in parts:
        words = shlex.split(part)
        if words[:2] == ["hetero", "profile"] and "-t" not in words:
            words += ["-t", "2"]  # by default 20 s
        if words[0] == "hetero":
            # These commands run without an executor, or start none.
            has_no_executor = words[1] in ("query", "cache")
            result = shell(shlex.join(words[1:]), ray=has_no_executor)
            assert result.code == 0
            printed = result.out
        else:
            with monkeypatch.context() as patch:
                patch.setattr("sys.argv", words[2:])
                patch.delitem(sys.modules, words[2], raising=False)
                runpy.run_module(words[2], run_name="__main__")
    if output:
        assert stable(printed) == stable(output)


def python_blocks() -> list[Any]:
    """Return the blocks of Python code; those that start Ray are slow."""
    return [
        pytest.param(
            block,
            id=f"{block.page}:{block.line}",
            marks=[pytest.mark.slow] if "hetero.Core(devices=" in block.text else [],
        )
        for block in BLOCKS
        if block.language == "python"
    ]


@pytest.mark.parametrize("block", python_blocks())
def test_python_blocks_run_and_print_the_output_shown(block, tmp_path, monkeypatch):
    printed = io.StringIO()
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.page, "exec"), {"__name__": "__main__"})
    assert stable(printed.getvalue()) == stable(block.output)


def test_module_blocks_equal_the_examples():
    """A block that starts with a docstring is a module of `hetero.examples`."""
    files = {path.read_text() for path in (ROOT / "hetero" / "examples").glob("*.py")}
    modules = [b for b in BLOCKS if b.language == "python" and b.text.startswith('"""')]
    assert [(b.page, b.line) for b in modules if b.text not in files] == []


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_command_is_documented_and_has_an_example(shell, name):
    assert re.search(rf"^\| `hetero {name}\b.*` \| .+ \|$", COMMANDS, re.MULTILINE)
    help_text = shell(f"{name} --help", ray=True).out
    assert f"Usage: hetero {name} [OPTIONS]" in help_text
    assert f"hetero {name}" in help_text.partition("Example:")[2]


def test_documented_commands_exist():
    documented = set(re.findall(r"^\| `hetero ([\w-]+)", COMMANDS, re.MULTILINE))
    assert documented == set(cli.commands)


def test_every_search_method_is_explained():
    """The methods are the names that the search adds plans under."""
    source = (ROOT / "hetero" / "planning" / "solver" / "search.py").read_text()
    methods = set(re.findall(r'self\.add\(f?"([a-z ]+?)[ {]*(?:name})?"', source))
    assert {"single", "priority", "annealing"} <= methods
    table = (ROOT / "docs" / "split-by-cost.md").read_text()
    names = set(re.findall(r"^\| `([a-z ]+?)(?: ORT)?` \|", table, re.MULTILINE))
    assert names == methods | {"replicas"}


def test_linked_files_exist():
    for name in ("CHANGELOG.md", "cluster.yaml", "LICENSE"):
        assert (ROOT / name).is_file()
    for page in PAGES:
        for name in re.findall(r"\]\((?!http)([\w./]+)\)", page.read_text()):
            assert (page.parent / name).is_file(), (page, name)
