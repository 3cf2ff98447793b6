"""What ``query`` and ``plan`` share: the report's options, and its writing in every form."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from devices.model.model import Model
from hetero.cli.files import output_file, refuse_weights, write_models
from hetero.cli.option_kinds import together
from hetero.cli.terminal import plain, remark, show, wants_json
from hetero.report import (
    annotated_model,
    report_html,
    report_table,
    strict_problems,
)
from scheduler.formats.publish import publish


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the forms a report can take; they arrive as `html`, `annotate`, ..."""
    return together(
        output_file(
            "--html", metavar="FILE.html", help="Write the report as one page that stands alone."
        ),
        output_file(
            "--annotate", metavar="FILE.onnx",
            help="Write the model with each node's device and reason in it.",
        ),
        click.option("--nodes", is_flag=True, help="List every node, not only counts."),
        click.option(
            "--strict", is_flag=True,
            help="Exit with 1 if a node falls back or a requested device is not used.",
        ),
    )(function)  # fmt: skip


def render(
    document: dict[str, Any],
    model: Model,
    *,
    html: Path | None = None,
    annotate: Path | None = None,
    nodes: bool = False,
    strict: bool = False,
) -> None:
    """Print a report and write its files.

    `document`: as `hetero.report.build_report` makes it.
    `model`: the model that it is about, for `annotate`.
    `strict`: whether a fallback or an unused device is an error.
    Raises click.exceptions.Exit with 1 if a node has no device, or under `strict` if anything is
        not as requested.
    """
    for path in (html, annotate):
        refuse_weights(path, model)
    if html:
        publish(html, partial(write_text, report_html(document)))
    if annotate:
        write_models(annotate.parent, {annotate.name: annotated_model(model, document)})
    if wants_json():
        click.echo(json.dumps(plain(document), indent=2, allow_nan=False))
    else:
        show(report_table(document, nodes=nodes))
    for path in (html, annotate):
        if path:
            remark(f"wrote {path}")
    problems = strict_problems(document) if strict else []
    for problem in problems:
        remark(f"strict: [{problem['code']}] {problem['message']}")
    if problems or document["verdict"]["unsupported"]:
        raise click.exceptions.Exit(1)


def write_text(text: str, file: BinaryIO) -> None:
    """Write what `publish` opened."""
    file.write(text.encode())


def command_line() -> str:
    """Return what was typed, quoted for a shell."""
    return shlex.join(["hetero", *sys.argv[1:]])
