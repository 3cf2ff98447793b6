"""``hetero plan``: which device each node should get by cost, and how good that is."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.options import (
    affinity_argument,
    model_options,
    progress,
    start,
    with_core,
)
from hetero.cli.report import command_line, render, report_options
from hetero.core import Core
from hetero.report import build_report

#: Option -> the property that it stands for.
_PROPERTIES = {
    "policy": "MODEL_DISTRIBUTION_POLICY",
    "hint": "PERFORMANCE_HINT",
    "costs": "COST_FILE",
    "seconds": "PLAN_SECONDS",
    "seed": "PLAN_SEED",
    "max_subgraphs": "MAX_SUBGRAPHS",
    "max_variants": "MAX_VARIANTS",
}


def plan_options(function: Any) -> Any:
    """Add the options that say how to plan by cost; `plan_config` reads them."""
    decorators = (
        click.option(
            "--policy", type=click.Choice(["PRIORITY", "PIPELINE_PARALLEL", "AUTO"]),
            help="How nodes get their devices.",
        ),
        click.option(
            "--hint", type=click.Choice(["THROUGHPUT", "LATENCY"]),
            help="What a plan by cost makes small: time between answers, or of one.",
        ),
        click.option(
            "--costs", type=click.Path(exists=True, dir_okay=False),
            help="A cost file of `hetero profile`; without one, costs are measured briefly.",
        ),
        click.option("--plan-seconds", "seconds", type=float, help="Time for the search."),
        click.option("--seed", type=int, help="Seed of the search."),
        click.option("--max-subgraphs", type=int, help="The most subgraphs; 0: any."),
        click.option(
            "--max-variants", type=int, help="How many plans may share the requests.",
        ),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def plan_config(config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with `plan_options` in it; they are taken out of `given`."""
    found = {key: given.pop(name, None) for name, key in _PROPERTIES.items()}
    return {**config, **{key: value for key, value in found.items() if value is not None}}


@click.command()
@model_options
@plan_options
@report_options
@with_core
def plan(
    core: Core,
    model: str,
    device: str,
    pins: tuple[str, ...],
    config: dict[str, Any],
    **forms: Any,
) -> None:
    """Plan MODEL by cost over the devices of the list, without compiling it."""
    config = plan_config(config, forms)
    source = core.read_model(model)
    start(core)
    affinity = affinity_argument(pins)
    with progress(core, "asking the devices"):
        survey = core.survey_model(source, device, config, affinity=affinity)
    with progress(core, "measuring and planning"):
        report = core.plan_model(source, device, config, affinity=affinity)
        document = build_report(survey, report, command=command_line())
    render(document, source, **forms)
