"""``hetero probe``: what a node offers, for the command that starts Ray on it."""

from __future__ import annotations

from collections import Counter

import click

from scheduler.device.probe import probe_node
from scheduler.vocabulary.rows import THIS_PROCESS


@click.command()
def probe() -> None:
    """Print this node's devices as Ray labels: for ``ray start --labels="$(hetero probe)"``.

    What it prints is how many devices of each plugin the node offers; edit it to offer other
    numbers. It succeeds with broken plugins too, which it reports on the error stream: such a
    node still starts.
    """
    rows = probe_node(THIS_PROCESS)
    for row in rows:
        if row.error is not None:
            click.echo(f"hetero: {row.plugin} is not offered: {row.error}", err=True)
    offered = Counter(row.plugin for row in rows if row.error is None)
    click.echo(",".join(f"hetero/{plugin}={count}" for plugin, count in offered.items()))
