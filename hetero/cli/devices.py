"""``hetero devices``: what this machine or cluster offers."""

from __future__ import annotations

from typing import Any

import click

from hetero.cli.known_devices import KNOWN
from hetero.cli.options import core_options, with_core
from hetero.cli.terminal import print_json, progress, show
from hetero.core import Core
from hetero.report.text import Rows


@click.command()
@click.option("--all", "everything", is_flag=True, help="Also those that are not installed.")
@core_options
@with_core
def devices(core: Core, as_json: bool, everything: bool) -> None:
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
            "python": d.source.python if d.source else None,
            "error": d.error,
        }
        for d in found
    ]
    if everything:
        rows = [*rows, *_absent({d.plugin for d in found})]
        for row in rows:
            known = KNOWN.get(row["plugin"])
            row["install"] = known.install if known and row["error"] else None
            row["full_name"] = row["full_name"] or (known.what if known else "")
    if as_json:
        print_json("devices", {"devices": rows})
        return
    heads = {"device": "name", "threads": "threads"}
    heads |= {head: head for head in ("node", "python") if any(_said(row[head]) for row in rows)}
    heads["what it is"] = "full_name"
    table = Rows(*heads, wraps=("python", "what it is"))
    for row in rows:
        if not row["error"]:
            table.add(*(row[key] for key in heads.values()))
    show(table)
    for row in rows:
        if row["error"]:
            name = f"{row['name']} on {row['node']}" if _said(row["node"]) else row["name"]
            install = row.get("install") or ""
            fix = f" To install: {install}" if install and install not in row["error"] else ""
            show(f"{name}: {row['error'].rstrip('.')}.{fix}")


def _said(place: str | None) -> bool:
    """Return whether a node or interpreter needs saying: it is not simply this one."""
    return place not in (None, "", "local")


def _absent(plugins: set[str]) -> list[dict[str, Any]]:
    """Return rows of the known devices that no node has."""
    return [
        {
            "name": name,
            "plugin": name,
            "node": "",
            "full_name": known.what,
            "version": "",
            "capabilities": [],
            "threads": 0,
            "python": None,
            "error": known.missing or "its plugin is not installed",
        }
        for name, known in KNOWN.items()
        if name not in plugins
    ]
