"""``hetero plan``: plan a model by cost, without compiling it."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.inputs import shape_option
from hetero.cli.model_command import Job
from hetero.cli.options import model_options, with_core
from hetero.cli.planning_options import planned_at, planning_options
from hetero.cli.query import command_line, render_report, report_options, survey_devices
from hetero.cli.terminal import steps
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
    survey = survey_devices(job, source)
    with steps("planning") as step:
        report = job.core.plan_model(
            source, job.device, job.config, affinity=job.pins or None, progress=step
        )
    render_report(build_report(survey, report, command=command_line()), source, **forms)
