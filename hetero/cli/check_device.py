"""``hetero check-device``: run the conformance suite on a plugin or a list of devices."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.option_types import json_option
from hetero.cli.terminal import print_result, progress
from hetero.comparison.core_subject import CoreSubject
from hetero.core import Core
from hetero.devices.plugin.install_command import install_command
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.registry import find_plugin, load_plugins
from hetero.devices.testing import CheckResult, device_results, drawn_results, operator_results
from hetero.formatting import count_text
from hetero.scheduler.types.device_names import parse_device
from hetero.terminal_tables import Columns, table


@click.command("check-device", cls=SectionedCommand)
@click.argument("name")
@click.option(
    "--plugin",
    "plugins",
    multiple=True,
    metavar="MODULE:ATTR",
    help="A plugin without an entry point; repeatable.",
)
@click.option(
    "--operators",
    is_flag=True,
    help="Also run every case of ONNX's own test suite that the device supports; takes minutes.",
)
@click.option(
    "--drawn",
    type=click.IntRange(min=1),
    metavar="N",
    help="Also run N random cases of the operators that the device supports, in all opsets, and "
    "compare them with device CPU.",
)
@json_option
def check_device_command(
    name: str, plugins: tuple[str, ...], operators: bool, drawn: int | None
) -> None:
    """Run the conformance suite on device NAME; the exit code is 1 if a check fails.

    NAME may be a list such as HETERO:ORT,CPU: neighbouring nodes then run on different devices.
    """
    if plugins:  # modules in the current folder, as with `python -m`
        sys.path.insert(0, str(Path.cwd()))
    is_list = parse_device(name).hetero
    if is_list and (operators or drawn):
        raise click.UsageError("--operators and --drawn run on one device; got a list.")
    with progress(f"checking {name}"):
        if is_list:
            subject = name
            with Core("inprocess", plugins=plugins) as core:
                results = [*device_results(CoreSubject(core, name))]
        else:
            plugin = find_plugin(load_plugins(plugins), name)
            subject = f"{plugin.name} {plugin.version()}"
            results = [*_results(plugin, operators, drawn)]
    failed = [result for result in results if result.error]
    summary = (
        f"{subject}: passes {len(results) - len(failed)} of {count_text(len(results), 'check')}"
    )
    columns: Columns = {
        "check": lambda result: result.name.removeprefix("check_").replace("_", " "),
        "error": lambda result: " ".join((result.error or "").split()),
    }
    tables = [table(failed, columns, wraps=columns)] if failed else []
    rows = [{"name": result.name, "error": result.error} for result in results]
    print_result("check-device", {"device": name, "checks": rows}, [*tables, summary])
    if failed:
        raise click.exceptions.Exit(1)


def _results(plugin: Plugin, operators: bool, drawn: int | None) -> Iterator[CheckResult]:
    yield from device_results(plugin)
    if operators or drawn:
        try:
            if operators:
                yield from operator_results(plugin)
            if drawn:
                yield from drawn_results(plugin, drawn)
        except ImportError as error:
            raise click.UsageError(
                f"--operators, --drawn: {error}. ONNX's suite requires it: "
                f"{install_command('test')}."
            ) from error
