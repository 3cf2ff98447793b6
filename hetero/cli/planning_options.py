"""Options that say how nodes get their devices: by priority, or by cost and for what."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from hetero.cli.option_types import Finite, together
from hetero.devices.model.model import Model

#: Option's name in Python -> the property that it stands for.
PROPERTIES: Final = {
    "policy": "MODEL_DISTRIBUTION_POLICY",
    "hint": "PERFORMANCE_HINT",
    "costs": "COST_FILE",
    "plan_seconds": "PLAN_SECONDS",
    "seed": "PLAN_SEED",
    "max_subgraphs": "MAX_SUBGRAPHS",
    "max_variants": "MAX_VARIANTS",
}
SHAPES: Final = "PLAN_SHAPES"
#: Adds the options; `take_planning` turns them into properties.
planning_options: Final = together(
    click.option(
        "--policy",
        type=click.Choice(["PRIORITY", "PIPELINE_PARALLEL", "AUTO"], case_sensitive=False),
        help="How nodes get their devices: in the list's order, or by cost.",
    ),
    click.option(
        "--hint",
        type=click.Choice(["THROUGHPUT", "LATENCY"], case_sensitive=False),
        help="What a plan by cost makes small: the time between answers, or that of one.",
    ),
    click.option(
        "--costs",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="A cost file of `hetero profile`; without one, costs are measured briefly.",
    ),
    click.option(
        "--plan-seconds",
        type=Finite(min=0, min_open=True),
        help="The most time for the search.",
    ),
    click.option("--seed", type=int, help="Seed of the search."),
    click.option("--max-subgraphs", type=click.IntRange(min=0), help="The most subgraphs; 0: any."),
    click.option(
        "--max-variants",
        type=click.IntRange(min=0),
        help="How many plans may share the requests.",
    ),
)


def take_planning(values: dict[str, Any], *, plans: bool) -> None:
    """Move the planning options out of a command's values and into its configuration.

    `plans`: whether the command plans by cost where nothing else is said.
    """
    if "policy" not in values:  # the command has none of them; its seed, if any, is another
        return
    taken = ((name, values.pop(name, None)) for name in PROPERTIES)
    given = {name: str(v) if isinstance(v, Path) else v for name, v in taken if v is not None}
    config = values["config"]
    for name in given:
        if PROPERTIES[name] in config:
            raise click.UsageError(
                f"{_flag(name)} and --config {PROPERTIES[name]} say the same; keep one."
            )
    config = {**config, **{PROPERTIES[name]: value for name, value in given.items()}}
    policy = config.get("MODEL_DISTRIBUTION_POLICY")
    judges = {"policy", "costs"} if values.get("profile") else {"policy"}
    idle = [_flag(name) for name in given if name not in judges]
    # Who plans in any case judges a priority list by its costs.
    if idle and not plans:
        if policy == "PRIORITY":
            raise click.UsageError(
                f"{', '.join(idle)}: a plan in the list's order (--policy PRIORITY) has no use for "
                "it; leave one out."
            )
        if not policy and "PERFORMANCE_HINT" not in config:
            raise click.UsageError(
                f"{', '.join(idle)}: for plans by cost; say --hint THROUGHPUT or LATENCY, or "
                "--policy AUTO."
            )
    values["config"] = config


def plans_by_cost(config: Mapping[str, Any]) -> bool:
    """Whether a model is planned by cost with this configuration."""
    policy = config.get("MODEL_DISTRIBUTION_POLICY")
    return policy not in (None, "PRIORITY") or "PERFORMANCE_HINT" in config


def planned_at(
    config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], *, plans: bool = False
) -> dict[str, Any]:
    """Return a command's configuration, with the shapes that a plan by cost is made for."""
    if not shapes or not (plans or plans_by_cost(config)):
        return config
    if SHAPES in config:
        raise click.UsageError(f"--shape and --config {SHAPES} say the same; keep one.")
    return {**config, SHAPES: shapes}


def planned_for(config: dict[str, Any], model: Model, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a command's configuration, with a plan by cost being made for the inputs it runs.

    Costs of a file say themselves what they were measured with.
    """
    if "COST_FILE" in config or SHAPES in config:
        return config
    opened = (port.name for port in model.inputs if port.is_tensor and not port.is_static)
    shapes = {name: np.shape(values[name]) for name in opened if name in values}
    return planned_at(config, shapes)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
