"""``hetero pool up | status | down``: running devices that several clients share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.option_types import combine_options, json_option
from hetero.cli.options import ray_options
from hetero.cli.terminal import print_result, progress
from hetero.formatting import nbytes_text
from hetero.terminal_tables import Columns, table

if TYPE_CHECKING:
    from hetero.scheduler.ray.pool_service import PoolStatus


_options: Final = combine_options(
    click.option(
        "--address", help="Cluster, as HOST:PORT or 'auto'; by default this machine's own pool."
    ),
    json_option,
)


@click.group()
def pool() -> None:
    """Manage a pool of running devices that commands and programs share.

    Programs that use Ray on this machine, or in the cluster, find the pool automatically.
    """


@pool.command(cls=SectionedCommand)
@ray_options
def up(
    address: str | None,
    device_counts: dict[str, int],
    plugins: tuple[str, ...],
    provider_libraries: tuple[str, ...],
) -> None:
    """Start the devices of a pool; without --address also start Ray on this machine."""
    from hetero.scheduler.ray.pool_service import bring_up

    with progress("starting the pool"):
        _print_status(bring_up(address, device_counts, plugins + provider_libraries))


@pool.command(cls=SectionedCommand)
@_options
def status(address: str | None) -> None:
    """Show the pool's devices with their clients, tasks and memory."""
    from hetero.scheduler.ray.pool_service import look_at

    _print_status(look_at(address))


@pool.command(cls=SectionedCommand)
@_options
def down(address: str | None) -> None:
    """Stop the pool's devices, even if clients use them."""
    from hetero.scheduler.ray.pool_service import take_down

    with progress("stopping the pool"):
        names = take_down(address)
    line = f"stopped: {', '.join(names) or 'no device was running'}"
    print_result("pool", {"ended": names}, [line])


def _print_status(status: PoolStatus) -> None:
    document = {"address": status.address, "pool": status.pool, "devices": status.devices}
    columns: Columns = {
        "device": "name",
        "process": lambda row: row.process or "",
        "clients": "clients",
        "tasks": "tasks",
        "running": "running",
        "keeps": ("kept_nbytes", nbytes_text),
        "error": "error",
    }
    devices = table(status.devices, columns, wraps=("error",))
    print_result("pool", document, [f"pool at {status.address}", devices])
