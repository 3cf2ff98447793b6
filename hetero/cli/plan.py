"""``hetero plan``: plan a model by cost, without compiling it."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import shape_option
from hetero.cli.model_command import ModelCommand
from hetero.cli.options import model_options, with_core
from hetero.cli.planning_options import plan_for_shapes, planning_options
from hetero.cli.query import command_line, render_report, report_options, survey_devices
from hetero.cli.terminal import progress_bar
from hetero.report import build_report


@click.command(cls=SectionedCommand)
@model_options
@planning_options
@shape_option("Shape of an input to plan for.")
@report_options
@with_core(plans=True)
def plan(command: ModelCommand, **outputs: Any) -> None:
    """Plan MODEL by cost for the devices of the list, without compiling it."""
    source = command.read()
    command.config = plan_for_shapes(command.config, command.shapes, plans=True)
    survey = survey_devices(command, source)
    with progress_bar("planning") as step:
        report = command.core.plan_model(
            source, command.device, command.config, affinity=command.pins or None, progress=step
        )
    render_report(build_report(survey, report, command=command_line()), source, **outputs)
