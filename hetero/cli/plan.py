"""``hetero plan``: which device each node should get by cost, and how good that is."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.inputs import shape_option
from hetero.cli.loading import read
from hetero.cli.options import model_options, start, with_core
from hetero.cli.planning import planned_at, planning_options
from hetero.cli.report import command_line, render, report_options
from hetero.cli.terminal import progress, steps
from hetero.core import Core
from hetero.report import build_report


@click.command()
@model_options
@planning_options
@shape_option("The shape of an input to plan for.")
@report_options
@with_core(plans=True)
def plan(
    core: Core,
    model: str,
    device: str,
    pins: dict[str, str],
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    **forms: Any,
) -> None:
    """Plan MODEL by cost over the devices of the list, without compiling it."""
    source = read(core, model)
    config = planned_at(config, shapes, plans=True)
    start(core)
    affinity = pins or None
    with progress("asking the devices"):
        survey = core.survey_model(source, device, config, affinity=affinity)
    with steps("planning") as tell:
        report = core.plan_model(source, device, config, affinity=affinity, progress=tell)
        document = build_report(survey, report, command=command_line())
    render(document, source, **forms)
