"""``hetero probe``: what a node offers, for the command that starts Ray on it."""

from __future__ import annotations

import json

import click

from devices.registry import load_plugins


@click.command()
def probe() -> None:
    """Print this node's devices as Ray resources: for ``ray start --resources="$(hetero probe)"``.

    Always prints valid JSON and exits with 0, so that a node with a broken plugin still starts.
    """
    offered = {"hetero": 1000}
    for entry in load_plugins().values():
        if entry.plugin is not None:
            offered[f"hetero/{entry.name}"] = len(entry.plugin.device_ids())
    click.echo(json.dumps(offered))
