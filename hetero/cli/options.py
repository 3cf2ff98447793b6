"""Options that several commands share, and the Core that they describe."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from hetero.core import Core

#: People's output; programs get `--json` on stdout.
OUT = Console(soft_wrap=False)
#: Progress and remarks.
ERR = Console(stderr=True)


def core_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what describes the Core: executor, address, device counts, plugins; and ``--json``."""
    decorators = (
        click.option(
            "--executor", type=click.Choice(["ray", "inprocess"]), default="ray",
            show_default=True, help="Where models run: Ray's actors, or threads of this process.",
        ),
        click.option(
            "--address",
            help="An existing Ray cluster, as HOST:PORT or 'auto'; RAY_ADDRESS says it too.",
        ),
        click.option(
            "--devices", "device_counts", metavar="NAME=N,...", callback=_counts,
            help="How many devices of a plugin each node offers, as ORT=2,NULL=4.",
        ),
        click.option(
            "--plugin", "plugins", multiple=True, metavar="MODULE:ATTR",
            help="A plugin that is not installed as an entry point; repeatable.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def model_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add what describes a compilation: the model, device string, pins and properties."""
    decorators = (
        click.argument("model"),
        click.option(
            "--device", "-d", default="HETERO", show_default=True,
            help="CPU, ORT.1, HETERO:ORT,CPU, or HETERO for every device.",
        ),
        click.option(
            "--affinity", "-a", "pins", multiple=True, metavar="PATTERN=DEVICE|FILE",
            help="Pin nodes: a name, a glob or op:Type, as op:Concat=CPU; or a JSON or YAML file "
            "of such pairs. Repeatable; later ones win.",
        ),
        click.option(
            "--config", "-c", "config", multiple=True, metavar="KEY=VALUE", callback=parse_config,
            help="A property, as INFERENCE_NUM_THREADS=2 or ORT.NUM_STREAMS=2 for one device.",
        ),
    )  # fmt: skip
    for decorator in reversed(decorators):
        function = decorator(function)
    return core_options(function)


def with_core(function: Callable[..., Any]) -> Callable[..., Any]:
    """Turn the Core's options into a Core, closed when the command ends."""

    @wraps(function)
    def command(
        *,
        executor: Any,
        address: str | None,
        device_counts: dict[str, int],
        plugins: tuple[str, ...],
        **rest: Any,
    ) -> Any:
        if address and executor != "ray":
            raise click.UsageError("--address is a Ray cluster's; leave --executor at ray.")
        if plugins:  # a module beside which the user stands, as `python -m` would find it
            sys.path.insert(0, str(Path.cwd()))
        with Core(executor, address=address, devices=device_counts, plugins=plugins) as core:
            return function(core=core, **rest)

    return command


@contextmanager
def progress(core: Core, text: str) -> Iterator[None]:
    """Show that something long is going on, on a terminal only."""
    with ERR.status(text):
        yield


def start(core: Core) -> None:
    """Start the devices, saying so."""
    with progress(core, "starting devices"):
        _ = core.device_descriptors


def print_json(document: Any) -> None:
    """Print a document for programs."""
    click.echo(json.dumps(document, indent=2, default=_plain))


def affinity_argument(pins: tuple[str, ...]) -> list[str] | None:
    """Return ``--affinity`` options as `Core.compile_model` takes them."""
    return list(pins) or None


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not JSON")


def _counts(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    counts = {}
    for part in (value or "").split(","):
        if not part.strip():
            continue
        name, equals, number = part.partition("=")
        if not equals or not number.strip().isdigit() or int(number) < 1:
            raise click.BadParameter(f"{part!r}: wanted NAME=N with N at least 1, as ORT=2")
        counts[name.strip()] = int(number)
    return counts


def parse_config(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Any:
    """Read ``--config KEY=VALUE`` options."""
    config: dict[str, Any] = {}
    for part in value:
        key, equals, text = part.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{part!r}: wanted KEY=VALUE, as PERF_COUNT=YES")
        device, dot, name = key.rpartition(".")
        if dot:
            config.setdefault("DEVICE_PROPERTIES", {}).setdefault(device, {})[name] = text
        else:
            config[key] = text
    return config
