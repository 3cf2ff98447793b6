"""``hetero check``: whether a blob runs on the devices here, without loading it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import ModelCommand, is_blob, remap_option
from hetero.cli.options import config_option, core_options, with_core
from hetero.cli.terminal import print_result, progress
from hetero.formatting import seconds_text
from hetero.terminal_tables import Columns, table


@click.command("check", cls=SectionedCommand)
@core_options
@click.argument("model", metavar="BLOB")
@click.option(
    "--device",
    "-d",
    help="Devices that may run it, as for `hetero run`; by default those that it names.",
)
@remap_option
@config_option
@with_core
def check(command: ModelCommand) -> None:
    """Report whether BLOB runs here as it is, after recompilation, or not at all.

    Exit code 1: an import would be refused.
    """
    if not Path(command.model).exists():
        raise click.UsageError(
            f"{command.model} does not exist; write a blob with `hetero compile -o`."
        )
    if not is_blob(command.model):
        raise click.UsageError(f"{command.model} is not a blob; `hetero query` checks a model.")
    with progress("listing devices"):
        _ = command.core.available_devices
    began_s = time.perf_counter()
    result = command.core.check(
        command.model, command.device or None, command.config, command.remap
    )
    check_s = time.perf_counter() - began_s
    columns: Columns = {
        "stage": "index",
        "compiled for": "device",
        "runs on": "target",
        "export": lambda stage: stage["reason"] or "usable",
    }
    document: dict[str, Any] = {**result.to_json(), "check_s": check_s}
    stages = [table(document["stages"], columns, wraps=("export",))] if document["stages"] else []
    print_result("check", document, [*stages, f"{result} Checked in {seconds_text(check_s)}."])
    if result.refusal:
        raise click.exceptions.Exit(1)
