"""What commands print: parts for people, JSON documents for programs, progress."""

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
from hetero.terminal_tables import styled

#: Version of the JSON documents; it changes when a reader could be misled.
VERSION: Final = 2
#: Columns of an output that is not a terminal: nothing is folded there.
UNLIMITED: Final = 100_000


def console(*, stderr: bool = False) -> Console:
    """Return a console for the stream as it is now, as wide as the terminal or ``COLUMNS``."""
    made = Console(stderr=stderr, markup=False, emoji=False, highlight=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = UNLIMITED
    return made


def show(*parts: RenderableType) -> None:
    """Print tables and lines of text for people."""
    for part in parts:
        console().print(styled(part) if isinstance(part, str) else part, crop=False)


def remark(text: str) -> None:
    """Print a line on stderr, apart from the output."""
    console(stderr=True).print(styled(text))


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show that something long is going on, on a terminal only."""
    with console(stderr=True).status(styled(text)):
        yield


@contextmanager
def steps(text: str) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar, on a terminal only; what is yielded takes steps done, steps in all, and what."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as bar:
        task = bar.add_task(visible(text), total=None)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=visible(what))

        yield tell


def wants_json() -> bool:
    """Whether ``--json`` was given."""
    return bool(click.get_current_context().meta.get(WANTS_JSON))


def tell(kind: str, document: Mapping[str, Any], parts: Iterable[RenderableType]) -> None:
    """Print a document for programs, where ``--json`` asks for it; else its parts for people."""
    if wants_json():
        print_json(kind, document)
    else:
        show(*parts)


def print_json(kind: str, document: Mapping[str, Any]) -> None:
    """Print a document for programs: times in seconds (``_s``), sizes in bytes (``_nbytes``).

    Numbers that JSON has not become null; the schema is called ``hetero.<kind>``.
    """
    schema = {"name": f"hetero.{kind}", "version": VERSION}
    click.echo(json_text({"schema": schema, **document}))


def json_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON, in ASCII."""

    def written(value: Any) -> Any:
        if isinstance(value, Mapping):
            return dict(value)
        if hasattr(value, "item"):
            return value.item()
        return str(value) if isinstance(value, Path | BaseException) else repr(value)

    text = json.dumps(msgspec.to_builtins(document, str_keys=True, enc_hook=written))
    return json.dumps(json.loads(text, parse_constant=lambda number: None), indent=2)
