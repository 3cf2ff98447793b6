"""``hetero query`` and ``hetero plan``: which node runs where and why, in every form."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Final

import click

from hetero.cli.inputs import shape_option
from hetero.cli.model_command import Job
from hetero.cli.option_types import together
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import output_file, write_models
from hetero.cli.planning_options import SHAPES
from hetero.cli.terminal import json_text, progress, remark, show, wants_json
from hetero.devices.model.model import Model
from hetero.query.survey import Survey
from hetero.report import annotated_model, build_report, report_html, report_table, strict_problems
from hetero.scheduler.formats.publish import publish

#: Adds the forms a report can take; they arrive as `html`, `annotate`, ...
report_options: Final = together(
    output_file(
        "--html", metavar="FILE.html", help="Write the report as one page that stands alone."
    ),
    output_file(
        "--annotate",
        metavar="FILE.onnx",
        help="Write the model with each node's device and reason in it.",
    ),
    click.option("--nodes", is_flag=True, help="List every node, not only counts."),
    click.option(
        "--strict",
        is_flag=True,
        help="Exit with 1 if a node falls back or a requested device is not used.",
    ),
)


@click.command()
@model_options
@shape_option("The shape of an input that sizes are told for.")
@report_options
@with_core
def query(job: Job, **forms: Any) -> None:
    """Ask every device what it can run of MODEL; exit code 1 if a node is left over."""
    source = job.read()
    if job.shapes:
        job.config = {**job.config, SHAPES: job.shapes}
    survey = survey_devices(job, source)
    render_report(build_report(survey, command=command_line()), source, **forms)


def survey_devices(job: Job, source: Model) -> Survey:
    """Start the devices and query them about every node of the model."""
    job.start()
    with progress("asking the devices"):
        return job.survey(source)


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
            remark(f"wrote {path}")
    problems = strict_problems(document) if strict else []
    for problem in problems:
        remark(f"strict: [{problem['code']}] {problem['message']}")
    if problems or document["verdict"]["unsupported"]:
        raise click.exceptions.Exit(1)


def command_line() -> str:
    """Return what was typed, quoted for a shell."""
    return shlex.join(["hetero", *sys.argv[1:]])
