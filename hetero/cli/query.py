"""``hetero query``: which node runs where, why not elsewhere, and what crosses."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.inputs import shape_option
from hetero.cli.job import Job
from hetero.cli.options import model_options, with_core
from hetero.cli.planning import SHAPES
from hetero.cli.report import command_line, render, report_options
from hetero.cli.terminal import progress
from hetero.report import build_report


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
    job.start()
    with progress("asking the devices"):
        survey = job.survey(source)
        document = build_report(survey, command=command_line())
    render(document, source, **forms)
