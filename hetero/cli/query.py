"""``hetero query``: show the device of each node, with the reason; write reports."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Final

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import shape_option
from hetero.cli.model_command import ModelCommand
from hetero.cli.option_types import combine_options
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import output_file, write_models
from hetero.cli.planning_options import SHAPES, replicas_option
from hetero.cli.terminal import json_text, print_note, progress, show, wants_json
from hetero.devices.model.model import Model
from hetero.query.survey import Survey
from hetero.report import annotated_model, build_report, report_html, report_table, strict_problems
from hetero.scheduler.formats.publish import publish

#: Adds the report's output options; commands pass their values on to `render_report`.
report_options: Final = combine_options(
    output_file(
        "--html", metavar="FILE.html", help="Write the report as a self-contained HTML page."
    ),
    output_file(
        "--annotate",
        metavar="FILE.onnx",
        help="Write the model with each node's device and reason as metadata, for Netron.",
    ),
    click.option("--nodes", is_flag=True, help="List every node."),
    click.option(
        "--strict",
        is_flag=True,
        help="Exit with 1 if a node falls back to another device or a device is unused.",
    ),
)


@click.command(cls=SectionedCommand)
@model_options
@replicas_option
@shape_option("Shape of an input for the sizes shown.")
@report_options
@with_core
def query(command: ModelCommand, **outputs: Any) -> None:
    """Show which devices support each node of MODEL; exit with 1 if no device supports a node."""
    source = command.read()
    if command.shapes:
        command.config = {**command.config, SHAPES: command.shapes}
    survey = survey_devices(command, source)
    render_report(build_report(survey, command=command_line()), source, **outputs)


def survey_devices(command: ModelCommand, source: Model) -> Survey:
    """Start the devices and query them about every node of the model."""
    command.start()
    with progress("querying the devices"):
        return command.survey(source)


def render_report(
    document: dict[str, Any],
    model: Model,
    *,
    html: Path | None,
    annotate: Path | None,
    nodes: bool,
    strict: bool,
) -> None:
    """Print a report and write its files; exit with 1 if a node has no device, or by `strict`."""
    if html:
        publish(html, lambda file: file.write(report_html(document).encode()))
    if annotate:
        write_models(annotate.parent, {annotate.name: annotated_model(model, document)})
    if wants_json():
        click.echo(json_text(document))
    else:
        show(report_table(document, nodes=nodes))
    for path in (html, annotate):
        if path:
            print_note(f"wrote {path}")
    problems = strict_problems(document) if strict else []
    for problem in problems:
        print_note(f"strict: [{problem['code']}] {problem['message']}")
    if problems or document["verdict"]["unsupported"]:
        raise click.exceptions.Exit(1)


def command_line() -> str:
    """Return the command line of this process, quoted for a shell."""
    return shlex.join(["hetero", *sys.argv[1:]])
