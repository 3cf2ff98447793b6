"""``hetero query``: which node runs where, why not elsewhere, and what crosses."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.inputs import shape_option
from hetero.cli.loading import read
from hetero.cli.options import model_options, start, with_core
from hetero.cli.planning import SHAPES
from hetero.cli.report import command_line, render, report_options
from hetero.cli.terminal import progress
from hetero.core import Core
from hetero.report import build_report


@click.command()
@model_options
@shape_option("The shape of an input that sizes are told for.")
@report_options
@with_core
def query(
    core: Core,
    model: str,
    device: str,
    pins: dict[str, str],
    config: dict[str, Any],
    shapes: dict[str, tuple[int, ...]],
    **forms: Any,
) -> None:
    """Ask every device what it can run of MODEL; exit code 1 if a node is left over."""
    source = read(core, model)
    if shapes:
        config = {**config, SHAPES: shapes}
    start(core)
    with progress("asking the devices"):
        survey = core.survey_model(source, device, config, affinity=pins or None)
        document = build_report(survey, command=command_line())
    render(document, source, **forms)
