"""The README and the guides: their blocks run and print what they say; no command is missing."""

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

from hetero.cli import cli
from tests.support.command_line import Shell

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
#: Pages that people write, besides those that are made of the code.
PAGES = (
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").glob("*.md") if p.stem not in ("reference", "behaviours")),
)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the text block after it, which is what comes out."""

    page: str
    line: int
    language: str
    text: str
    output: str


def blocks(page: Path) -> list[Block]:
    """Return a page's blocks; an output belongs to the block before it in its section."""
    fence = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    content = page.read_text()
    found = list(fence.finditer(content))
    rows = []
    for block, after in zip_longest(found, found[1:]):
        told = after is not None and after[1] == "text"
        if told and "\n#" in content[block.end() : after.start()]:
            told = False
        line = content[: block.start()].count("\n") + 1
        output = after[2] if told and after else ""
        rows.append(Block(page.name, line, block[1], block[2], output))
    return rows


BLOCKS = [block for page in PAGES for block in blocks(page)]


def stable(text: str) -> list[str]:
    """Return an output's words without what differs from run to run: times, versions, machines."""
    varying = re.compile(r"^(latency: |compiled in | *(OV.CPU|ORT|CPU) +(OV|ORT|CPU) )")
    lines = [line for line in text.splitlines() if not varying.match(line)]
    text = re.sub(r"\d+(\.\d+)? [mµu]?s\b", "", " ".join(lines))
    return re.sub(r"[━┏┳┓┡╇┩└┴┘─│┃]", " ", text).split()


def commands() -> list[Any]:
    """Return the commands that run here as they are printed, each line's as one case.

    Not those that install, test, or need other machines or another interpreter.
    """
    mine = "query|run|generate|plan|compile|inspect|compare|bench|serve"
    here = re.compile(rf"hetero ({mine})\b|python -m hetero\b")
    found = []
    for block in BLOCKS:
        for line in block.text.splitlines() if block.language == "sh" else ():
            parts = [part.strip() for part in line.partition(" #")[0].split("&&")]
            run = [part for part in parts if here.match(part) and "@" not in part]
            if run and "..." not in line and "--address" not in line:
                only = block.output if block.text.count("\n") == 1 else ""
                found.append(
                    pytest.param(run, only, id=f"{block.page}:{block.line}: {run[-1][:40]}")
                )
    return found


@pytest.mark.parametrize(("parts", "output"), commands())
def test_its_commands_run_and_print_what_it_says(
    parts: list[str], output: str, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any("OV" in part for part in parts):
        pytest.importorskip("openvino", reason="the command runs three vendors' runtimes")
    monkeypatch.chdir(tmp_path)
    for part in parts:
        words = shlex.split(part)
        if words[0] == "hetero":
            done = shell(shlex.join(words[1:]), ray="query" in words)
            assert done.code == 0
            printed = done.out
        else:
            with monkeypatch.context() as patch:
                patch.setattr("sys.argv", words[2:])
                patch.delitem(sys.modules, words[2], raising=False)
                runpy.run_module(words[2], run_name="__main__")
    if output:
        assert stable(printed) == stable(output)


@pytest.mark.parametrize(
    "block",
    [pytest.param(b, id=f"{b.page}:{b.line}") for b in BLOCKS if b.language == "python"],
)
def test_its_python_runs_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.StringIO()
    monkeypatch.chdir(tmp_path)
    with contextlib.redirect_stdout(printed):
        exec(compile(block.text, block.page, "exec"), {"__name__": "__main__"})
    assert stable(printed.getvalue()) == stable(block.output)


def test_its_modules_are_files_of_the_package() -> None:
    """What begins with a docstring is a whole module, which other blocks import."""
    files = {path.read_text() for path in (ROOT / "hetero" / "examples").glob("*.py")}
    modules = [b for b in BLOCKS if b.language == "python" and b.text.startswith('"""')]
    assert [(b.page, b.line) for b in modules if b.text not in files] == []


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
    for page in PAGES:
        for name in re.findall(r"\]\((?!http)([\w./]+)\)", page.read_text()):
            assert (page.parent / name).is_file(), (page, name)
