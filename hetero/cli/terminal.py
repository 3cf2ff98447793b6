"""Output of commands: tables and lines for people, JSON for programs, and progress."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hetero.cli.option_types import WANTS_JSON
from hetero.formatting import visible
from hetero.terminal_tables import styled_text

#: Version of the JSON documents; increases when the meaning of a field changes.
VERSION: Final = 2
#: Width of output that is not a terminal: lines do not wrap.
UNLIMITED_WIDTH: Final = 100_000


def console(*, stderr: bool = False) -> Console:
    """Return a console for the current stream, as wide as the terminal or ``COLUMNS``."""
    result = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not result.is_terminal and "COLUMNS" not in os.environ:
        result.width = UNLIMITED_WIDTH
    return result


def show(*parts: RenderableType) -> None:
    """Print tables and lines of text for people."""
    for part in parts:
        console().print(styled_text(part) if isinstance(part, str) else part, crop=False)


def print_note(text: str) -> None:
    """Print a line on stderr."""
    console(stderr=True).print(styled_text(text))


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show a spinner with a text; only on a terminal."""
    with console(stderr=True).status(styled_text(text)):
        yield


@contextmanager
def progress_bar(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a progress bar, only on a terminal; yield a function (done, total, description)."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    terminal = console(stderr=True)
    # Without a terminal, an interrupted bar would still print an empty line.
    disable = not terminal.is_terminal
    with Progress(*columns, console=terminal, transient=True, disable=disable) as bar:
        task = bar.add_task(visible(text), total=None)

        def update(done: int, total: int, description: str) -> None:
            bar.update(task, completed=done, total=total, description=visible(description))

        yield update


def wants_json() -> bool:
    """Whether ``--json`` was given."""
    return bool(click.get_current_context().meta.get(WANTS_JSON))


def print_result(kind: str, document: Mapping[str, Any], parts: Iterable[RenderableType]) -> None:
    """Print a command's result: with ``--json`` the document, otherwise the parts for people."""
    if wants_json():
        print_json(kind, document)
    else:
        show(*parts)


def print_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print a document with the schema ``hetero.<kind>``; infinities and NaN become null.

    Names that end in ``_s`` are in seconds, in ``_nbytes`` in bytes.
    """
    schema = {"name": f"hetero.{kind}", "version": VERSION}
    click.echo(json_text({"schema": schema, **document}))


def json_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON in ASCII."""

    def to_builtin(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if hasattr(value, "item"):
            return value.item()
        return str(value) if isinstance(value, Path | BaseException) else repr(value)

    text = json.dumps(msgspec.to_builtins(document, str_keys=True, enc_hook=to_builtin))
    return json.dumps(json.loads(text, parse_constant=lambda number: None), indent=2)
