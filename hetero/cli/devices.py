"""``hetero devices`` and ``hetero probe``: installed and installable devices, and Ray labels."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import ModelCommand
from hetero.cli.options import core_options, with_core
from hetero.cli.terminal import print_result, progress
from hetero.properties.known_devices import known_devices
from hetero.scheduler.device.discovery import probe_node
from hetero.scheduler.types.device_descriptor import THIS_PROCESS, DeviceDescriptor
from hetero.terminal_tables import table


@click.command(cls=SectionedCommand)
@click.option("--all", "everything", is_flag=True, help="Also list devices that are not installed.")
@core_options
@with_core
def devices(command: ModelCommand, everything: bool) -> None:
    """List the devices, with the error of each plugin that does not work."""
    with progress("querying the devices of every node"):
        descriptors = list(command.core.device_descriptors)
    if everything:
        installed = {d.plugin for d in descriptors}
        descriptors += (
            DeviceDescriptor(
                name, name, "", "", device.description, error=device.missing, num_threads=0
            )
            for name, device in known_devices().items()
            if name not in installed
        )
    rows: list[dict[str, Any]] = [
        {
            "name": d.name,
            "plugin": d.plugin,
            "node": d.node,
            "full_name": d.full_name,
            "version": d.version,
            "capabilities": list(d.capabilities),
            "threads": d.num_threads,
            "python": d.source.python if d.source else None,
            "error": d.error,
        }
        for d in descriptors
    ]
    for row in rows if everything else ():
        device = known_devices().get(row["plugin"])
        row["install"] = device.install if device and row["error"] else None
        row["full_name"] = row["full_name"] or (device.description if device else "")
    heads = {"device": "name", "threads": "threads"}
    heads |= {
        head: head for head in ("node", "python") if any(is_remote_place(row[head]) for row in rows)
    }
    heads["description"] = "full_name"
    working_devices = [row for row in rows if not row["error"]]
    devices_table = table(working_devices, {**heads}, wraps=("python", "description"))
    print_result(
        "devices",
        {"devices": rows},
        [devices_table, *(_error_line(row) for row in rows if row["error"])],
    )


def _error_line(row: dict[str, Any]) -> str:
    name = f"{row['name']} on {row['node']}" if is_remote_place(row["node"]) else row["name"]
    install = row.get("install") or ""
    fix = f" To install: {install}" if install and install not in row["error"] else ""
    return f"{name}: {row['error'].rstrip('.')}.{fix}"


def is_remote_place(place: str | None) -> bool:
    """Whether a node or interpreter differs from this process's own."""
    return place not in (None, "", "local")


@click.command(cls=SectionedCommand)
def probe() -> None:
    """Print this node's devices as labels for ``ray start --labels="$(hetero probe)"``.

    Each label is the number of devices of one plugin; edit the numbers to offer more or fewer.
    Broken plugins are reported on stderr and omitted, so that the node still starts.
    """
    rows = probe_node(THIS_PROCESS)
    for row in rows:
        if row.error is not None:
            click.echo(f"hetero: {row.plugin} is not offered: {row.error}", err=True)
    offered = Counter(row.plugin for row in rows if row.error is None)
    click.echo(",".join(f"hetero/{plugin}={count}" for plugin, count in offered.items()))
