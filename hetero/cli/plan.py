"""``hetero plan``: which device each node should get by cost, and how good that is."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.inputs import shape_option
from hetero.cli.job import Job
from hetero.cli.options import model_options, with_core
from hetero.cli.planning import planned_at, planning_options
from hetero.cli.report import command_line, render, report_options
from hetero.cli.terminal import progress, steps
from hetero.report import build_report


@click.command()
@model_options
@planning_options
@shape_option("The shape of an input to plan for.")
@report_options
@with_core(plans=True)
def plan(job: Job, **forms: Any) -> None:
    """Plan MODEL by cost over the devices of the list, without compiling it."""
    source = job.read()
    job.config = planned_at(job.config, job.shapes, plans=True)
    job.start()
    with progress("asking the devices"):
        survey = job.survey(source)
    with steps("planning") as tell:
        report = job.core.plan_model(
            source, job.device, job.config, affinity=job.pins or None, progress=tell
        )
        document = build_report(survey, report, command=command_line())
    render(document, source, **forms)
