"""``hetero top``: devices, stages and rates of a running process, live."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group
from rich.live import Live

from hetero.cli.metrics_snapshot import PERCENTILES, Look, figures
from hetero.cli.option_types import Finite, json_option
from hetero.cli.terminal import console, remark, tell, wants_json
from hetero.formatting import nbytes_text, seconds_text
from hetero.terminal_tables import Columns, Rows, styled, table

if TYPE_CHECKING:
    from http.client import HTTPResponse

#: Seconds that a process may take to answer.
_ANSWER_S: Final = 5.0
#: The longest answer that is read: a thousand models on a thousand devices take less.
_ANSWER_NBYTES: Final = 2**26


@click.command()
@click.argument("address")
@click.option(
    "--interval",
    type=Finite(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Show everything since counting began, and end.")
@json_option
def top(address: str, interval: float, once: bool) -> None:
    """Show what the process at ADDRESS does; Ctrl-C ends it.

    ADDRESS is a port of this machine, HOST:PORT or a URL: what `--metrics-port` of `hetero run` and
    `hetero bench`, or `Core.serve_metrics`, serves.
    """
    url = _url(address)
    before, now = Look(), _look(url)
    if wants_json() or once or not console().is_terminal:
        document = figures(now, before)
        tell("top", {"address": url, **document}, _tables(document))
        return
    with Live(console=console(), auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            live.update(Group(*_tables(figures(now, before))), refresh=True)
            time.sleep(interval)
            try:
                before, now = now, _look(url)
            except click.ClickException:
                remark(f"{url} gives no more metrics: its process has ended, or does not answer.")
                return


def _url(address: str) -> str:
    if "://" not in address:
        host = f"127.0.0.1:{address}" if address.isdigit() else address
        address = f"http://{host}/metrics"
    if not address.startswith(("http://", "https://")):
        raise click.BadParameter(f"{address}: wanted a port, HOST:PORT or an http URL.")
    return address


def _look(url: str) -> Look:
    import urllib.error  # here: to import HTTP takes longer than the other commands have time for
    import urllib.request
    from http.client import HTTPException

    from hetero.observe.metrics_server import read_text

    try:
        with urllib.request.urlopen(url, timeout=_ANSWER_S) as response:
            look = Look(read_text(_whole(response).decode()))
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise click.ClickException(
            f"{url} gives no metrics: {reason}. Start the process with --metrics-port PORT, and "
            "give that port."
        ) from error
    if not look.labels("uptime_seconds"):
        raise click.ClickException(
            f"{url} has no metrics of hetero: another program serves it, or its cluster does not "
            "answer."
        )
    return look


def _whole(response: HTTPResponse) -> bytes:
    """Read an answer; ValueError if it takes too long, or is too long."""
    until_s = time.monotonic() + _ANSWER_S
    found = bytearray()
    while part := response.read1():
        found += part
        if len(found) > _ANSWER_NBYTES or time.monotonic() > until_s:
            raise ValueError("the answer does not end")
    return bytes(found)


def _tables(document: dict[str, Any]) -> list[Rows | Any]:
    models: Columns = {
        "model": "model",
        "waiting": "{waiting:.0f}",
        "in flight": "{in_flight:.0f}",
        "answered/s": "{answered_per_s:.1f}",
        **{f"p{p}": (str(p), seconds_text) for p in PERCENTILES},
        "failed": "{not_answered:.0f}",
        "retries": "{retries:.0f}",
        "input/s": ("input_nbytes_per_s", nbytes_text),
    }
    devices: Columns = {
        "device": "device",
        "node": "node",
        "state": lambda row: "up" if row["up"] else "lost",
        "queued": "{queued:.0f}",
        "running": "{running:.0f}",
        "busy": "{utilisation:.1%}",
        "losses": "{losses:.0f}",
        "heard": "{silent_s:.1f} s ago",
    }
    stages: Columns = {
        "stage": "stage",
        "of": "model",
        "device": "device",
        "runs/s": "{runs_per_s:.1f}",
        "takes": ("run_s", seconds_text),
        "waits": ("wait_s", seconds_text),
        "busy": "{utilisation:.1%}",
        "output/s": ("output_nbytes_per_s", nbytes_text),
    }
    about = (
        f"of the last {seconds_text(document['seconds'])}; "
        f"{nbytes_text(document['in_flight_nbytes'])} in flight"
    )
    served = ({**row, **row["latency_s"]} for row in document["models"])
    return [
        styled(about),
        table(served, models, wraps=("model",)),
        table(document["devices"], devices, style=lambda row: None if row["up"] else "red"),
        table(document["stages"], stages, wraps=("of",)),
    ]
