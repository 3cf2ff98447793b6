"""What ``query`` and ``plan`` share: the report's options, and its writing in every form."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from devices.model import Model
from hetero.cli.options import ERR, OUT, print_json
from hetero.report import (
    annotated_model,
    model_explorer_overlay,
    report_dot,
    report_html,
    report_table,
    strict_problems,
)


def report_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the forms a report can take; they arrive as `html`, `dot`, `annotate`, ..."""

    def file(option: str, suffix: str, text: str) -> Callable[..., Any]:
        kind = click.Path(path_type=Path, dir_okay=False)
        return click.option(option, type=kind, metavar=f"FILE{suffix}", help=text)

    decorators = (
        file("--html", ".html", "Write the report as one page that needs nothing else."),
        file("--dot", ".dot", "Write the graph for Graphviz."),
        file("--annotate", ".onnx", "Write the model with each node's device and reason in it."),
        file("--overlay", ".json", "Write node data for Model Explorer."),
        click.option("--nodes", is_flag=True, help="List every node, not only counts."),
        click.option(
            "--strict", is_flag=True,
            help="Exit with 1 if a node falls back or a requested device is not used.",
        ),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def render(
    document: dict[str, Any],
    model: Model,
    *,
    as_json: bool = False,
    html: Path | None = None,
    dot: Path | None = None,
    annotate: Path | None = None,
    overlay: Path | None = None,
    nodes: bool = False,
    strict: bool = False,
) -> None:
    """Print a report and write its files.

    Parameters
    ----------
    document : dict
        As `hetero.report.build_report` makes it.
    model : Model
        The model that it is about, for `annotate`.
    as_json : bool
        Print the document itself, not tables.
    html, dot, annotate, overlay : Path, optional
        Files to write.
    nodes : bool
        Whether the tables list every node.
    strict : bool
        Whether a fallback or an unused device is an error.

    Raises
    ------
    click.exceptions.Exit
        With 1 if a node has no device, or under `strict` if anything is not as requested.
    """
    if html:
        html.write_text(report_html(document), encoding="utf-8")
    if dot:
        dot.write_text(report_dot(document), encoding="utf-8")
    if annotate:
        annotated_model(model, document).save(annotate)
    if overlay:
        overlay.write_text(model_explorer_overlay(document), encoding="utf-8")
    if as_json:
        print_json(document)
    else:
        OUT.print(report_table(document, nodes=nodes))
    for path in (html, dot, annotate, overlay):
        if path:
            ERR.print(f"wrote {path}", markup=False)
    problems = strict_problems(document) if strict else []
    for problem in problems:
        ERR.print(f"strict: [{problem['code']}] {problem['message']}", markup=False)
    if problems or document["verdict"]["unsupported"]:
        raise click.exceptions.Exit(1)


def command_line() -> str:
    """Return what was typed, quoted for a shell."""
    return shlex.join(["hetero", *sys.argv[1:]])
