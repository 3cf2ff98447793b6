"""``hetero top``: devices, stages and rates of a running process, live."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group
from rich.live import Live

from hetero.cli.figures import PERCENTILES, Look, figures
from hetero.cli.option_kinds import Finite
from hetero.cli.terminal import console, print_json, remark, show
from hetero.report.text import Rows, styled
from hetero.report.units import nbytes_text, seconds_text

if TYPE_CHECKING:
    from http.client import HTTPResponse

#: Seconds that a process may take to answer.
_ANSWER_S: Final = 5.0
#: The longest answer that is read: a thousand models on a thousand devices take less.
_ANSWER_NBYTES: Final = 2**26


@click.command()
@click.argument("address")
@click.option("--interval", type=Finite(min=0.1), default=2.0, show_default=True,
              help="Seconds between two looks.")  # fmt: skip
@click.option("--once", is_flag=True, help="Show everything since counting began, and end.")
@click.option("--json", "as_json", is_flag=True, help="The same as JSON for programs.")
def top(address: str, interval: float, once: bool, as_json: bool) -> None:
    """Show what the process at ADDRESS does; Ctrl-C ends it.

    ADDRESS is a port of this machine, HOST:PORT or a URL: what `--metrics-port` of `hetero run` and
    `hetero bench`, or `Core.serve_metrics`, serves.
    """
    url = _url(address)
    before, now = Look(), _look(url)
    if as_json:
        print_json("top", {"address": url, **figures(now, before)})
        return
    if once or not console().is_terminal:
        show(*_tables(figures(now, before)))
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

    from hetero.observe.exposition import read_text

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
        raise click.ClickException(f"{url} gives metrics of another program than hetero.")
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
    percentiles = (f"p{p}" for p in PERCENTILES)
    models = Rows("model", "waiting", "in flight", "answered/s", *percentiles, "failed", "retries",
                  "input/s", wraps=("model",))  # fmt: skip
    for row in document["models"]:
        models.add(
            row["model"],
            f"{row['waiting']:.0f}",
            f"{row['in_flight']:.0f}",
            f"{row['answered_per_s']:.1f}",
            *(_seconds(row["latency_s"][str(p)]) for p in PERCENTILES),
            f"{row['not_answered']:.0f}",
            f"{row['retries']:.0f}",
            nbytes_text(row["input_nbytes_per_s"]),
        )
    devices = Rows("device", "node", "state", "queued", "running", "busy", "losses", "heard")
    for row in document["devices"]:
        devices.add(
            row["device"],
            row["node"],
            "up" if row["up"] else "lost",
            f"{row['queued']:.0f}",
            f"{row['running']:.0f}",
            f"{row['utilisation']:.1%}",
            f"{row['losses']:.0f}",
            f"{row['silent_s']:.1f} s ago",
            style=None if row["up"] else "red",
        )
    stages = Rows("stage", "of", "device", "runs/s", "takes", "waits", "busy", "output/s",
                  wraps=("of",))  # fmt: skip
    for row in document["stages"]:
        stages.add(
            row["stage"],
            row["model"],
            row["device"],
            f"{row['runs_per_s']:.1f}",
            _seconds(row["run_s"]),
            _seconds(row["wait_s"]),
            f"{row['utilisation']:.1%}",
            nbytes_text(row["output_nbytes_per_s"]),
        )
    about = (
        f"of the last {seconds_text(document['seconds'])}; "
        f"{nbytes_text(document['in_flight_nbytes'])} in flight"
    )
    return [styled(about), models, devices, stages]


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else seconds_text(seconds)
