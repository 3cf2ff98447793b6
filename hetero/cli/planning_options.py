"""Options for placement: by priority or by cost, and the goal and limits of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import click

from hetero.cli.inputs import input_shapes
from hetero.cli.option_types import FiniteFloat, combine_options, name_value_pairs
from hetero.devices.model.model import Model
from hetero.planning.memory.device_memory import parse_nbytes
from hetero.properties.replicas_property import AUTO, PLAN, REPLICAS

#: Option's name in Python -> the property that it sets.
PROPERTIES: Final = {
    "policy": "MODEL_DISTRIBUTION_POLICY",
    "hint": "PERFORMANCE_HINT",
    "costs": "COST_FILE",
    "plan_seconds": "PLAN_SECONDS",
    "seed": "PLAN_SEED",
    "max_subgraphs": "MAX_SUBGRAPHS",
}
#: Options of plans that fit -> the property that they set.
MEMORY_PROPERTIES: Final = {"fit": "FIT_MEMORY", "memory": "DEVICE_MEMORY_NBYTES"}
SHAPES: Final = "PLAN_SHAPES"


def _parse_size(text: str) -> int:
    """Return the bytes of a size with a unit; a plain number would hide a forgotten unit."""
    if text[-1:].isdigit():
        raise ValueError("expected a unit")
    return parse_nbytes(text)


class _Word(click.Choice[str]):
    """A choice of words in any case; the error lists them as the documentation writes them."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """Return the error message for another word."""
        return f"expected {' or '.join(map(str, self.choices))}, got {value!r}."


class _ReplicasType(click.IntRange):
    """A positive number, a range, ``auto`` or ``plan``."""

    name = "number, range, auto or plan"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, the range or the word."""
        if ".." in str(value) or str(value).lower() in (AUTO, PLAN):
            return REPLICAS.parse(value)
        return super().convert(value, param, ctx)


#: Adds ``--replicas``, which `take_replicas` turns into the property REPLICAS.
replicas_option: Final = click.option(
    "--replicas",
    type=_ReplicasType(min=1),
    metavar="N|MIN..MAX|auto|plan",
    help="Devices that run each subgraph and share its requests; a range, or auto for all devices "
    "of the same kind: as many as the load needs; plan (default): the best number of a plan by "
    "cost for THROUGHPUT, otherwise 1.",
)
#: Adds ``--fit`` and ``--memory``, which `take_memory_options` turns into properties.
memory_options: Final = combine_options(
    click.option(
        "--fit",
        is_flag=True,
        help="Keep the predicted memory of each device's process within its memory: by priority, "
        "as much as fits on the first device, the rest on the next.",
    ),
    click.option(
        "--memory",
        metavar="DEVICE=SIZE,...",
        callback=name_value_pairs(
            "DEVICE=SIZE with a unit, such as ORT.0=2GB or GPU=1.5GiB", _parse_size, listed=True
        ),
        help="Memory that a device's process may take, such as ORT.0=2GB,ORT.1=1GB; by default "
        "the device's own memory.",
    ),
)
#: Adds the options; `move_planning_options` turns them into properties.
planning_options: Final = combine_options(
    replicas_option,
    memory_options,
    click.option(
        "--policy",
        type=_Word(["PRIORITY", "PIPELINE_PARALLEL", "AUTO"], case_sensitive=False),
        metavar="PRIORITY|PIPELINE_PARALLEL|AUTO",
        help="Place nodes by the priority of the device list, as a chain of stages, or by cost "
        "(property MODEL_DISTRIBUTION_POLICY).",
    ),
    click.option(
        "--hint",
        type=_Word(["THROUGHPUT", "LATENCY"], case_sensitive=False),
        metavar="THROUGHPUT|LATENCY",
        help="Goal of a plan by cost: requests per second, or the time of one request (property "
        "PERFORMANCE_HINT).",
    ),
    click.option(
        "--costs",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Cost file of `hetero profile`; without one, costs are measured briefly (property "
        "COST_FILE).",
    ),
    click.option(
        "--plan-seconds",
        type=FiniteFloat(min=0, min_open=True),
        help="Time limit of the search (property PLAN_SECONDS).",
    ),
    click.option("--seed", type=int, help="Seed of the search (property PLAN_SEED)."),
    click.option(
        "--max-subgraphs",
        type=click.IntRange(min=0),
        help="Most subgraphs; 0: no limit (property MAX_SUBGRAPHS).",
    ),
)


def take_replicas(values: dict[str, Any]) -> None:
    """Move ``--replicas`` from a command's values into its configuration."""
    replicas = values.pop("replicas", None)
    if replicas is None:
        return
    if REPLICAS.name in values["config"]:
        raise click.UsageError(
            f"--replicas and --config {REPLICAS.name} set the same property; keep one."
        )
    values["config"] = {**values["config"], REPLICAS.name: replicas}


def take_memory_options(values: dict[str, Any]) -> None:
    """Move ``--fit`` and ``--memory`` from a command's values into its configuration."""
    if values.get("memory") and not (values["fit"] or fits_memory(values["config"])):
        raise click.UsageError("--memory limits plans that fit; add --fit.")
    for name, key in MEMORY_PROPERTIES.items():
        value = values.pop(name, None)
        if not value:
            continue
        if key in values["config"]:
            raise click.UsageError(f"--{name} and --config {key} set the same property; keep one.")
        values["config"] = {**values["config"], key: value}


def move_planning_options(values: dict[str, Any], *, plans: bool) -> None:
    """Move the planning options from a command's values into its configuration.

    `plans`: whether the command plans by cost by default.
    """
    if "policy" not in values:  # the command has no planning options; its seed is unrelated
        return
    popped = ((name, values.pop(name, None)) for name in PROPERTIES)
    options = {name: str(v) if isinstance(v, Path) else v for name, v in popped if v is not None}
    config = values["config"]
    for name in options:
        if PROPERTIES[name] in config:
            raise click.UsageError(
                f"{_flag(name)} and --config {PROPERTIES[name]} set the same property; keep one."
            )
    config = {**config, **{PROPERTIES[name]: value for name, value in options.items()}}
    policy = config.get("MODEL_DISTRIBUTION_POLICY")
    used_without_plan = {"policy", "costs"} if values.get("profile") else {"policy"}
    unused = [_flag(name) for name in options if name not in used_without_plan]
    # A command that always plans evaluates a priority list by its costs.
    if unused and not plans:
        if policy == "PRIORITY":
            raise click.UsageError(
                f"{', '.join(unused)}: not used with --policy PRIORITY; remove one of them."
            )
        if not policy and "PERFORMANCE_HINT" not in config:
            raise click.UsageError(
                f"{', '.join(unused)}: needs a plan by cost; add --hint THROUGHPUT or LATENCY, or "
                "--policy AUTO."
            )
    values["config"] = config


def plans_by_cost(config: Mapping[str, Any]) -> bool:
    """Whether this configuration plans a model by cost, or by its memory."""
    policy = config.get("MODEL_DISTRIBUTION_POLICY")
    by_cost = policy not in (None, "PRIORITY") or "PERFORMANCE_HINT" in config
    return by_cost or fits_memory(config)


def fits_memory(config: Mapping[str, Any]) -> bool:
    """Whether this configuration plans a model to fit the devices' memory."""
    return str(config.get("FIT_MEMORY", "NO")).upper() in ("TRUE", "YES", "1")


def plan_for_shapes(
    config: dict[str, Any], shapes: Mapping[str, tuple[int, ...]], *, plans: bool = False
) -> dict[str, Any]:
    """Return a command's configuration with the shapes to plan for, if it plans by cost."""
    if not shapes or not (plans or plans_by_cost(config)):
        return config
    if SHAPES in config:
        raise click.UsageError(f"--shape and --config {SHAPES} set the same property; keep one.")
    return {**config, SHAPES: shapes}


def plan_for_inputs(
    config: dict[str, Any], model: Model, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a command's configuration with the shapes of its inputs, if it plans by cost.

    A cost file contains the shapes that it was measured with.
    """
    if "COST_FILE" in config or SHAPES in config:
        return config
    return plan_for_shapes(config, input_shapes(model, values))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
