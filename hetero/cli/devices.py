"""``hetero devices``: what this machine or cluster offers."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.options import core_options, with_core
from hetero.cli.terminal import print_json, progress, show
from hetero.core import Core
from hetero.report.text import Rows


@click.command()
@core_options
@with_core
def devices(core: Core, as_json: bool) -> None:
    """List the devices, with the error of each plugin that does not work."""
    with progress("asking every node for its devices"):
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
        print_json("devices", {"devices": rows})
        return
    heads = {
        "device": "name", "what it is": "full_name", "version": "version", "node": "node",
        "threads": "threads",
    }  # fmt: skip
    if any(row["error"] for row in rows):
        heads["error"] = "error"
    table = Rows(*heads, wraps=("what it is", "version", "error"))
    for row in rows:
        table.add(*(row[key] for key in heads.values()))
    show(table)
