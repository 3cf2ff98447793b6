"""Options that several commands share, and the `Job` that they describe."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final

import click

from hetero.affinity.pins import parse_pins
from hetero.cli.model_command import Job
from hetero.cli.option_types import json_option, pairs, together
from hetero.cli.output_files import output_file, refuse_overwriting
from hetero.cli.planning_options import plans_by_cost, take_planning
from hetero.cli.terminal import remark
from hetero.core import Core
from hetero.core_devices import ExecutorKind
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.planning.cost.cost_file import read_costs

#: Options with which requests are looked at while they run; and those that a `Job` has.
_WATCH: Final = ("trace", "metrics_port")
_OF_JOB: Final = tuple(entry.name for entry in fields(Job) if entry.name != "core")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("not a number of devices")
    return int(text)


def _config(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Any:
    """Read ``--config KEY=VALUE`` options."""
    config: dict[str, Any] = {}
    for key, text in _properties(context, parameter, value).items():
        device, dot, name = key.rpartition(".")
        known = config
        if dot:
            known = config.setdefault("DEVICE_PROPERTIES", {}).setdefault(device, {})
        known[name] = text
    return config


_properties: Final = pairs("KEY=VALUE, as PERF_COUNT=YES")

#: Adds what describes the Core: executor, address, device counts, plugins; and ``--json``.
core_options: Final = together(
    click.option(
        "--executor",
        type=click.Choice(["ray", "inprocess"]),
        default=None,
        help="Where devices are: in Ray's actors, or in this process. run, generate, bench and "
        "profile start Ray by default; the others ask this machine alone where no cluster is "
        "named.",
    ),
    click.option(
        "--address",
        help="An existing Ray cluster, as HOST:PORT or 'auto'; RAY_ADDRESS says it too.",
    ),
    click.option(
        "--devices",
        "device_counts",
        metavar="NAME=N,...",
        callback=pairs("NAME=N with N at least 1, as ORT=2", _count, listed=True),
        help="How many devices of a plugin each node offers, as ORT=2,NULL=4.",
    ),
    click.option(
        "--plugin",
        "plugins",
        multiple=True,
        metavar="[NAME=]PLUGIN[@PYTHON]",
        help="A plugin that is not installed as an entry point, as MODULE:ATTR; an installed "
        "one under another NAME; or one of another interpreter's environment, as "
        "ORT_OPENVINO@/opt/ov/bin/python, which starts Ray. Repeatable.",
    ),
    json_option,
)
#: Adds ``--affinity``: pins by pattern.
affinity_option: Final = click.option(
    "--affinity",
    "-a",
    "pins",
    multiple=True,
    metavar="PATTERN=DEVICE|FILE",
    help="Pin nodes: a name, a glob or op:Type, as op:Concat=CPU; or a JSON or YAML file of "
    "such pairs. Repeatable; later ones win.",
)
#: Adds ``--config``.
config_option: Final = click.option(
    "--config",
    "-c",
    "config",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_config,
    help="A property, as INFERENCE_NUM_THREADS=2 or ORT.NUM_STREAMS=2 for one device.",
)
#: Adds what describes a compilation: the model, device string, pins and properties.
model_options: Final = together(
    core_options,
    click.argument("model"),
    click.option(
        "--device",
        "-d",
        default="HETERO",
        show_default=True,
        help="CPU, ORT.1, HETERO:ORT,CPU, or HETERO for every device.",
    ),
    affinity_option,
    config_option,
)
#: Adds ``--trace`` and ``--metrics-port``; `with_core` takes them.
watch_options: Final = together(
    output_file(
        "--trace",
        metavar="FILE.json",
        help="Write how each request ran: every stage, queue and wire of every device, for "
        "https://ui.perfetto.dev or chrome://tracing.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve figures for Prometheus and `hetero top` there, on this machine alone, "
        "while the command runs; 0 takes a free port.",
    ),
)


def with_core(
    function: Callable[..., Any] | None = None,
    *,
    runs_model: bool = False,
    plans: bool = False,
    imagines: bool = False,
) -> Callable[..., Any]:
    """Turn a command's options into its `Job`, whose Core is closed when the command ends.

    `runs_model`: whether the command runs or measures a model, and so starts Ray by default.
    `plans`: whether it plans by cost where no option says so.
    `imagines`: whether the devices that are counted need not exist; they are its `fleet` then.
    """
    if function is None:
        return partial(with_core, runs_model=runs_model, plans=plans, imagines=imagines)

    @wraps(function)
    def command(
        *,
        executor: ExecutorKind | None,
        address: str | None,
        device_counts: dict[str, int],
        plugins: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        refuse_overwriting(click.get_current_context())
        if address and executor == "inprocess":
            raise click.UsageError("--address names a Ray cluster; leave out --executor inprocess.")
        take_planning(rest, plans=plans)
        if imagines:
            rest["fleet"], device_counts = device_counts, _measured(rest["config"])
        if "pins" in rest:
            rest["pins"] = parse_pins(rest["pins"])
        named = address or os.environ.get("RAY_ADDRESS")
        if executor is None:
            elsewhere = any(PluginSource.read(plugin).python for plugin in plugins)
            starts = runs_model or _measures(rest.get("config", {}), plans)
            executor = "ray" if named or elsewhere or starts else "inprocess"
        if plugins:  # a module beside which the user stands, as `python -m` would find it
            sys.path.insert(0, str(Path.cwd()))
        # What is imagined has a trace of its own.
        watch = {name: rest.pop(name) for name in _WATCH if name in rest and not imagines}
        about = {name: rest.pop(name) for name in _OF_JOB if name in rest}
        with (
            Core(executor, address=address, devices=device_counts, plugins=plugins) as core,
            _watched(core, **watch),
        ):
            return function(Job(core, **about), **rest)

    return command


@contextmanager
def _watched(
    core: Core, *, trace: Path | None = None, metrics_port: int | None = None
) -> Iterator[None]:
    """Have a Core's requests traced and counted, in the block."""
    with ExitStack() as stack:
        if trace is not None:
            block = core.trace(trace)
            stack.callback(lambda: remark(f"wrote {trace}") if block.is_written else None)
            stack.enter_context(block)
        if metrics_port is not None:
            server = stack.enter_context(core.serve_metrics(metrics_port))
            remark(f"metrics: {server.url}")
        yield


def _measures(config: dict[str, Any], plans: bool) -> bool:
    """Whether a command measures a model where it will run, in order to plan."""
    if not plans and not plans_by_cost(config):
        return False
    costs = config.get("COST_FILE")
    # Costs of one node are enough to plan for it.
    return not costs or len({d.identity.node for d in read_costs(costs).devices.values()}) > 1


def _measured(config: dict[str, Any]) -> dict[str, int]:
    """Return how many devices of each plugin a cost file is of: those that a plan is for."""
    path = config.get("COST_FILE")
    found = read_costs(path).devices.values() if path else ()
    return dict(Counter(device.identity.plugin for device in found))
