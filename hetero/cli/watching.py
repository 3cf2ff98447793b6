"""Options with which requests are looked at while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from hetero.cli.files import output_file
from hetero.cli.terminal import remark
from hetero.core import Core

#: What the options are called.
WATCH: Final = ("trace", "metrics_port")


def watch_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--trace`` and ``--metrics-port``; `with_core` takes them."""
    option = output_file(
        "--trace", metavar="FILE.json",
        help="Write how each request ran: every stage, queue and wire of every device, for "
        "https://ui.perfetto.dev or chrome://tracing.",
    )  # fmt: skip
    port = click.option(
        "--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
        help="Serve figures for Prometheus and `hetero top` there, on this machine alone, while "
        "the command runs; 0 takes a free port.",
    )  # fmt: skip
    added: Callable[..., Any] = option(port(function))
    return added


@contextmanager
def watched(
    core: Core, *, trace: Path | None = None, metrics_port: int | None = None
) -> Iterator[None]:
    """Have a Core's requests traced and counted, in the block."""
    with ExitStack() as stack:
        if trace is not None:
            block = core.trace(trace)
            stack.callback(lambda: remark(f"wrote {trace}") if block.is_written else None)
            stack.enter_context(block)
        if metrics_port is not None:
            server = stack.enter_context(core.serve_metrics(metrics_port))
            remark(f"metrics: {server.url}")
        yield
