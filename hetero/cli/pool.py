"""``hetero pool up | status | down``: devices that several clients share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from hetero.cli.option_types import json_option, together
from hetero.cli.options import core_options
from hetero.cli.terminal import progress, tell
from hetero.formatting import nbytes_text
from hetero.terminal_tables import Columns, table

if TYPE_CHECKING:
    from hetero.scheduler.ray.pool_service import PoolStatus


_options: Final = together(
    click.option(
        "--address", help="The cluster, as HOST:PORT or 'auto'; by default this machine's own pool."
    ),
    json_option,
)


@click.group()
def pool() -> None:
    """Keep devices up, so that commands and programs find them started.

    Whoever uses Ray on this machine, or in the cluster, finds the pool by itself.
    """


@pool.command()
@core_options
def up(
    executor: str | None,
    address: str | None,
    device_counts: dict[str, int],
    plugins: tuple[str, ...],
) -> None:
    """Start the devices, and a Ray on this machine where no cluster is named."""
    if executor == "inprocess":
        raise click.UsageError("a pool is on Ray; leave out --executor inprocess.")
    from hetero.scheduler.ray.pool_service import bring_up

    with progress("starting the pool"):
        _tell(bring_up(address, device_counts, plugins))


@pool.command()
@_options
def status(address: str | None) -> None:
    """Show the pool's devices, what they have in hand, and for how many clients."""
    from hetero.scheduler.ray.pool_service import look_at

    _tell(look_at(address))


@pool.command()
@_options
def down(address: str | None) -> None:
    """End the pool's devices, whoever uses them."""
    from hetero.scheduler.ray.pool_service import take_down

    with progress("ending the pool"):
        names = take_down(address)
    ended = f"ended: {', '.join(names) or 'no device was started'}"
    tell("pool", {"ended": names}, [ended])


def _tell(found: PoolStatus) -> None:
    document = {"address": found.address, "pool": found.pool, "devices": found.devices}
    columns: Columns = {
        "device": "name",
        "process": lambda row: row.process or "",
        "clients": "clients",
        "tasks": "tasks",
        "running": "running",
        "keeps": ("kept_nbytes", nbytes_text),
        "error": "error",
    }
    shown = table(found.devices, columns, wraps=("error",))
    tell("pool", document, [f"pool at {found.address}", shown])
