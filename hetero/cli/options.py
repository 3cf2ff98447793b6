"""Options that several commands share, and the decorator that makes a `ModelCommand` of them."""

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
from hetero.cli.model_command import ModelCommand
from hetero.cli.option_types import combine_options, json_option, name_value_pairs
from hetero.cli.output_files import output_file, refuse_overwriting
from hetero.cli.planning_options import (
    fits_memory,
    move_planning_options,
    plans_by_cost,
    take_memory_options,
    take_replicas,
)
from hetero.cli.terminal import print_note
from hetero.core import Core
from hetero.core_devices import ExecutorKind
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.planning.cost.cost_file import read_costs

#: Options that observe running requests, and options that are fields of a `ModelCommand`.
_OBSERVE_OPTIONS: Final = ("trace", "metrics_port", "opentelemetry")
_COMMAND_FIELDS: Final = tuple(entry.name for entry in fields(ModelCommand) if entry.name != "core")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError("not a number of devices")
    return int(text)


def _config(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Any:
    """Parse ``--config KEY=VALUE`` options."""
    config: dict[str, Any] = {}
    for key, text in _properties(context, parameter, value).items():
        device, dot, name = key.rpartition(".")
        properties = config
        if dot:
            properties = config.setdefault("DEVICE_PROPERTIES", {}).setdefault(device, {})
        properties[name] = text
    return config


def _provider_libraries(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    """Check ``--ep NAME=LIBRARY`` options, and make the paths absolute for other processes."""
    plugins = []
    for text in value:
        name, _, path = text.partition("=")
        source = PluginSource.parse(f"{name}={Path(path).expanduser().absolute()}")
        if not source.is_library or not name.isidentifier():
            raise click.BadParameter(
                "expected NAME=LIBRARY, such as ggml=/opt/ggml/libonnxruntime_ggml.so; got "
                f"{text!r}."
            )
        plugins.append(str(source))
    return tuple(plugins)


_properties: Final = name_value_pairs("KEY=VALUE, such as PERF_COUNT=YES")

#: Adds the options of devices on Ray: address, device counts, plugins; and ``--json``.
ray_options: Final = combine_options(
    click.option(
        "--address",
        help="Existing Ray cluster, as HOST:PORT or 'auto'; default: RAY_ADDRESS.",
    ),
    click.option(
        "--devices",
        "device_counts",
        metavar="NAME=N,...",
        callback=name_value_pairs("NAME=N with N at least 1, such as ORT=2", _count, listed=True),
        help="Number of devices of each plugin on each node, such as ORT=2,NULL=4.",
    ),
    click.option(
        "--plugin",
        "plugins",
        multiple=True,
        metavar="[NAME=]PLUGIN[@PYTHON]",
        help="Plugin without an entry point, as MODULE:ATTR; an installed plugin under another "
        "NAME; or a plugin of another Python environment, such as "
        "ORT_OPENVINO@/opt/ov/bin/python, which needs Ray. Repeatable.",
    ),
    click.option(
        "--ep",
        "provider_libraries",
        multiple=True,
        metavar="NAME=LIBRARY",
        callback=_provider_libraries,
        help="Library of a plug-in execution provider of ONNX Runtime, such as "
        "ggml=/opt/ggml/libonnxruntime_ggml.so for device ORT_GGML. Repeatable.",
    ),
    json_option,
)
#: Adds the options of the Core: executor, address, device counts, plugins; and ``--json``.
core_options: Final = combine_options(
    click.option(
        "--executor",
        type=click.Choice(["ray", "inprocess"]),
        default=None,
        help="Run devices as Ray actors, or in this process. Default: Ray for commands that run "
        "a model or use a cluster.",
    ),
    ray_options,
)
#: Adds ``--affinity`` and ``--layers``: pins by pattern and by layer.
affinity_option: Final = combine_options(
    click.option(
        "--affinity",
        "-a",
        "pins",
        multiple=True,
        metavar="PATTERN=DEVICE|FILE",
        help="Pin nodes by name, glob or op:Type, for example op:Concat=CPU; or a JSON or YAML "
        "file with such pairs. Repeatable; later ones win.",
    ),
    click.option(
        "--layers",
        metavar="NUMBERS=DEVICE,...",
        callback=name_value_pairs("NUMBERS=DEVICE, such as 0-15=ORT.0,16-31=ORT.1", listed=True),
        help="Device of each layer of a decoder or encoder, such as 0-15=ORT.0,16-31=ORT.1; "
        "head=DEVICE for the nodes after the last layer. Pins of --affinity override it.",
    ),
)
#: Adds ``--config``.
config_option: Final = click.option(
    "--config",
    "-c",
    "config",
    multiple=True,
    metavar="KEY=VALUE",
    callback=_config,
    help="Property, such as INFERENCE_NUM_THREADS=2, or ORT.NUM_STREAMS=2 for one device.",
)
#: Adds ``--cache``, which becomes the property CACHE_DIR.
cache_option: Final = click.option(
    "--cache",
    "cache_dir",
    metavar="DIR",
    envvar="HETERO_CACHE_DIR",
    help="Folder of the cache of compiled models; default: HETERO_CACHE_DIR, or none.",
)
#: Adds the options of a compilation: the model, device string, pins and properties.
model_options: Final = combine_options(
    core_options,
    click.argument("model"),
    click.option(
        "--device",
        "-d",
        default="HETERO",
        show_default=True,
        help="Device string: CPU, ORT.1, HETERO:ORT,CPU, or HETERO for every device.",
    ),
    affinity_option,
    config_option,
    cache_option,
)
#: Adds ``--opentelemetry``, which `with_core` implements.
opentelemetry_option: Final = click.option(
    "--opentelemetry",
    is_flag=True,
    help="Send a span for each request and stage by OTLP, to OTEL_EXPORTER_OTLP_ENDPOINT.",
)
#: Adds ``--trace``, ``--metrics-port`` and ``--opentelemetry``, which `with_core` implements.
observe_options: Final = combine_options(
    output_file(
        "--trace",
        metavar="FILE.json",
        help="Write a trace of every request, stage, queue and wire, for "
        "https://ui.perfetto.dev or chrome://tracing.",
    ),
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve metrics for Prometheus and `hetero top` on this port of localhost while the "
        "command runs; 0 chooses a free port.",
    ),
    opentelemetry_option,
)


def with_core(
    function: Callable[..., Any] | None = None,
    *,
    runs_model: bool = False,
    plans: bool = False,
    simulates: bool = False,
) -> Callable[..., Any]:
    """Pass a command its options as a `ModelCommand`, and close the Core when the command ends.

    `runs_model`: whether the command runs or measures a model and therefore uses Ray by default.
    `plans`: whether the command plans by cost by default.
    `simulates`: whether ``--devices`` are simulated devices; they become the argument `fleet`.
    """
    if function is None:
        return partial(with_core, runs_model=runs_model, plans=plans, simulates=simulates)

    @wraps(function)
    def command(
        *,
        executor: ExecutorKind | None,
        address: str | None,
        device_counts: dict[str, int],
        plugins: tuple[str, ...],
        provider_libraries: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        refuse_overwriting(click.get_current_context())
        if address and executor == "inprocess":
            raise click.UsageError("--address needs Ray; remove --executor inprocess.")
        if cache_dir := rest.pop("cache_dir", None):
            rest["config"] = {"CACHE_DIR": cache_dir, **rest["config"]}
        take_replicas(rest)
        take_memory_options(rest)
        move_planning_options(rest, plans=plans)
        if simulates:
            rest["fleet"], device_counts = device_counts, _num_measured_devices(rest["config"])
        if "pins" in rest:
            layers = {f"layer:{numbers}": name for numbers, name in rest.pop("layers").items()}
            rest["pins"] = layers | parse_pins(rest["pins"])
        cluster = address or os.environ.get("RAY_ADDRESS")
        if executor is None:
            other_python = any(PluginSource.parse(plugin).python for plugin in plugins)
            needs_ray = runs_model or _measures(rest.get("config", {}), plans)
            executor = "ray" if cluster or other_python or needs_ray else "inprocess"
        if plugins:  # modules in the current folder, as with `python -m`
            sys.path.insert(0, str(Path.cwd()))
        plugins += provider_libraries
        # A simulation writes its own trace.
        observe = {n: rest.pop(n) for n in _OBSERVE_OPTIONS if n in rest and not simulates}
        command_fields = {name: rest.pop(name) for name in _COMMAND_FIELDS if name in rest}
        with (
            Core(executor, address=address, devices=device_counts, plugins=plugins) as core,
            _observers(core, **observe),
        ):
            return function(
                ModelCommand(core, uses_ray=executor == "ray", **command_fields), **rest
            )

    return command


@contextmanager
def _observers(
    core: Core,
    *,
    trace: Path | None = None,
    metrics_port: int | None = None,
    opentelemetry: bool = False,
) -> Iterator[None]:
    """Trace a Core's requests, serve its metrics and export its spans within the block."""
    with ExitStack() as stack:
        if opentelemetry:
            from hetero.observe.spans import otlp_provider

            stack.enter_context(core.export_spans(stack.enter_context(otlp_provider())))
        if trace is not None:
            block = core.trace(trace)
            stack.callback(lambda: print_note(f"wrote {trace}") if block.is_written else None)
            stack.enter_context(block)
        if metrics_port is not None:
            server = stack.enter_context(core.serve_metrics(metrics_port))
            print_note(f"metrics: {server.url}")
        yield


def _measures(config: dict[str, Any], plans: bool) -> bool:
    """Whether a command measures the model on its devices in order to plan."""
    if fits_memory(config) or not (plans or plans_by_cost(config)):
        return False
    costs = config.get("COST_FILE")
    # A cost file of one node needs no other node to plan for.
    return not costs or len({d.identity.node for d in read_costs(costs).devices.values()}) > 1


def _num_measured_devices(config: dict[str, Any]) -> dict[str, int]:
    """Return the number of devices of each plugin in the configured cost file."""
    path = config.get("COST_FILE")
    devices = read_costs(path).devices.values() if path else ()
    return dict(Counter(device.identity.plugin for device in devices))
