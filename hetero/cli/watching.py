"""Options with which requests are looked at while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from hetero.cli.files import output_file
from hetero.cli.terminal import remark
from hetero.core import Core

#: What the options are called.
WATCH: Final = ("trace",)


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--trace``; `with_core` takes it."""
    option = output_file(
        "--trace", metavar="FILE.json",
        help="Write how each request ran: every stage, queue and wire of every device, for "
        "https://ui.perfetto.dev or chrome://tracing.",
    )  # fmt: skip
    added: Callable[..., Any] = option(function)
    return added


@contextmanager
def watched(core: Core, *, trace: Path | None = None) -> Iterator[None]:
    """Have a Core's requests traced, in the block."""
    if trace is None:
        yield
        return
    try:
        with core.trace(trace):
            yield
    finally:
        if trace.exists():
            remark(f"wrote {trace}")
