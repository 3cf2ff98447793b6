"""``hetero top``: live devices, stages and request rates of a running process."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
from rich.console import Group
from rich.live import Live

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.metrics_snapshot import PERCENTILES, MetricsSnapshot, summarize_metrics
from hetero.cli.option_types import FiniteFloat, json_option
from hetero.cli.terminal import console, print_note, print_result, wants_json
from hetero.formatting import nbytes_text, seconds_text
from hetero.terminal_tables import Columns, Rows, styled_text, table

if TYPE_CHECKING:
    from http.client import HTTPResponse

#: Time limit of one HTTP response.
_RESPONSE_S: Final = 5.0
#: Size limit of one response; a thousand models on a thousand devices take less.
_RESPONSE_NBYTES: Final = 2**26


@click.command(cls=SectionedCommand)
@click.argument("address")
@click.option(
    "--interval",
    type=FiniteFloat(min=0.1),
    default=2.0,
    show_default=True,
    help="Seconds between updates.",
)
@click.option("--once", is_flag=True, help="Print totals since the process started, and exit.")
@json_option
def top(address: str, interval: float, once: bool) -> None:
    """Show live metrics of the process at ADDRESS; Ctrl-C ends it.

    ADDRESS is a port of this machine, HOST:PORT or a URL. Start the process with `--metrics-port`
    of `hetero run` or `hetero bench`, or call `Core.serve_metrics`.
    """
    url = _url(address)
    before, now = MetricsSnapshot(), read_snapshot(url)
    if wants_json() or once or not console().is_terminal:
        document = summarize_metrics(now, before)
        print_result("top", {"address": url, **document}, _tables(document))
        return
    with Live(console=console(), auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            live.update(Group(*_tables(summarize_metrics(now, before))), refresh=True)
            time.sleep(interval)
            try:
                before, now = now, read_snapshot(url)
            except click.ClickException:
                print_note(f"{url} stopped responding: its process has ended or hangs.")
                return


def _url(address: str) -> str:
    if "://" not in address:
        host = f"127.0.0.1:{address}" if address.isdigit() else address
        address = f"http://{host}/metrics"
    if not address.startswith(("http://", "https://")):
        raise click.BadParameter(f"got {address}, expected a port, HOST:PORT or an http URL.")
    return address


def read_snapshot(url: str) -> MetricsSnapshot:
    """Read the metrics that a process serves at a URL."""
    import urllib.error  # imported here: HTTP modules would slow down every other command
    import urllib.request
    from http.client import HTTPException

    from hetero.observe.metrics_server import read_text

    try:
        with urllib.request.urlopen(url, timeout=_RESPONSE_S) as response:
            look = MetricsSnapshot(read_text(_read_response(response).decode()))
    except (OSError, HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise click.ClickException(
            f"cannot read metrics from {url}: {reason}. Start the process with --metrics-port "
            "PORT, and pass that port."
        ) from error
    if not look.labels("uptime_seconds"):
        raise click.ClickException(
            f"{url} has no metrics of hetero: another program serves it, or its cluster does not "
            "respond."
        )
    return look


def _read_response(response: HTTPResponse) -> bytes:
    """Read a response; raise ValueError if it takes too long or is too long."""
    deadline_s = time.monotonic() + _RESPONSE_S
    body = bytearray()
    while part := response.read1():
        body += part
        if len(body) > _RESPONSE_NBYTES or time.monotonic() > deadline_s:
            raise ValueError("the response does not end")
    return bytes(body)


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
        "heartbeat": "{silent_s:.1f} s ago",
    }
    stages: Columns = {
        "stage": "stage",
        "model": "model",
        "device": "device",
        "runs/s": "{runs_per_s:.1f}",
        "run": ("run_s", seconds_text),
        "wait": ("wait_s", seconds_text),
        "busy": "{utilisation:.1%}",
        "output/s": ("output_nbytes_per_s", nbytes_text),
    }
    interval = (
        f"last {seconds_text(document['seconds'])}; "
        f"{nbytes_text(document['in_flight_nbytes'])} in flight"
    )
    rows = ({**row, **row["latency_s"]} for row in document["models"])
    return [
        styled_text(interval),
        table(rows, models, wraps=("model",)),
        table(document["devices"], devices, style=lambda row: None if row["up"] else "red"),
        table(document["stages"], stages, wraps=("model",)),
    ]
