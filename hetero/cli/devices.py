"""``hetero devices``: what this machine or cluster offers."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table

from hetero.cli.options import OUT, core_options, print_json, progress, with_core
from hetero.core import Core


@click.command()
@core_options
@with_core
def devices(core: Core, as_json: bool) -> None:
    """List the devices, with the error of each plugin that does not work."""
    with progress(core, "asking every node for its devices"):
        found = core.device_descriptors
    rows: list[dict[str, Any]] = [
        {
            "name": d.name,
            "plugin": d.plugin,
            "node": d.node,
            "full_name": d.full_name,
            "version": d.version,
            "capabilities": list(d.capabilities),
            "threads": d.num_threads,
            "error": d.error,
        }
        for d in found
    ]
    if as_json:
        print_json({"devices": rows})
        return
    table = Table("device", "what it is", "version", "node", "threads", "error")
    for row in rows:
        cells = ("name", "full_name", "version", "node", "threads", "error")
        table.add_row(*("" if row[c] is None else str(row[c]) for c in cells))
    OUT.print(table)
