"""``hetero check-device``: the conformance suite for a plugin, or devices of this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hetero.cli.option_types import json_option
from hetero.cli.terminal import progress, tell
from hetero.comparison.core_subject import CoreSubject
from hetero.core import Core
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.registry import find_plugin, load_plugins
from hetero.devices.testing import CheckResult, device_results, operator_results
from hetero.formatting import counted
from hetero.scheduler.vocabulary.names import parse_device
from hetero.terminal_tables import Columns, table


@click.command("check-device")
@click.argument("name")
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="MODULE:ATTR",
    help="A plugin that is not installed as an entry point; repeatable.",
)
@click.option(
    "--operators",
    is_flag=True,
    help="Run ONNX's own suite as well, on all of its cases that the device takes: minutes.",
)
@json_option
def check_device_command(name: str, plugins: tuple[str, ...], operators: bool) -> None:
    """Check that the plugin of device NAME keeps the contract; exit code 1 if it does not.

    NAME may also be a list, HETERO:ORT,CPU: models cut between all their nodes are checked.
    """
    if plugins:  # a module beside which the user stands, as `python -m` would find it
        sys.path.insert(0, str(Path.cwd()))
    listed = parse_device(name).hetero
    if listed and operators:
        raise click.UsageError("--operators: ONNX's suite is run on one device, not on a list.")
    with progress(f"checking {name}"):
        if listed:
            subject = name
            with Core("inprocess", plugins=plugins) as core:
                results = [*device_results(CoreSubject(core, name))]
        else:
            plugin = find_plugin(load_plugins(plugins), name)
            subject = f"{plugin.name} {plugin.version()}"
            results = [*_results(plugin, operators)]
    failed = [result for result in results if result.error]
    kept = f"{subject}: keeps {len(results) - len(failed)} of {counted(len(results), 'check')}"
    columns: Columns = {
        "check": lambda result: result.name.removeprefix("check_").replace("_", " "),
        "what it found": lambda result: " ".join((result.error or "").split()),
    }
    shown = [table(failed, columns, wraps=columns)] if failed else []
    rows = [{"name": result.name, "error": result.error} for result in results]
    tell("check-device", {"device": name, "checks": rows}, [*shown, kept])
    if failed:
        raise click.exceptions.Exit(1)


def _results(plugin: Plugin, operators: bool) -> Iterator[CheckResult]:
    yield from device_results(plugin)
    if operators:
        try:
            yield from operator_results(plugin)
        except ImportError as error:
            raise click.UsageError(
                f"--operators: {error}. ONNX's suite wants it: pip install 'hetero[test]'."
            ) from error
