"""``hetero simulate``: what a cluster, there or not, would do with a model."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import click
from rich.console import RenderableType

from hetero.apps.simulate.advise import Simulation
from hetero.apps.simulate.page import page_html
from hetero.cli.model_command import Job
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import output_file
from hetero.cli.planning_options import planning_options
from hetero.cli.terminal import steps, tell
from hetero.devices.errors import ArgumentError
from hetero.formatting import seconds_text
from hetero.scheduler.formats.publish import publish
from hetero.terminal_tables import Columns, table

#: Devices, links and clients shown before the rest is left to ``--json``.
_SHOWN = 12


@click.command()
@model_options
@planning_options
@click.option(
    "--arrivals",
    metavar="poisson:RATE/s|gamma:RATE/s:VARIATION|FILE",
    help="When requests come; without it, as fast as they are answered.",
)
@click.option("--slo", metavar="TIME", help="What counts as in time, as 50ms or 0.5s.")
@click.option(
    "--batch",
    metavar="ROWS[:TIME]",
    help="Requests are joined, as by AUTO_BATCH_SIZE=ROWS; a full batch takes TIME times "
    "as long as one row, by default ROWS times.",
)
@click.option(
    "--cluster",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file of devices, links and clients in place of the plan's.",
)
@click.option(
    "--requests",
    "-n",
    type=click.IntRange(min=100),
    default=10_000,
    show_default=True,
    help="How many requests come.",
)
@output_file("--trace", help="Write the requests, a thousand at most, as a trace for Perfetto.")
@output_file("--page", help="Write an HTML page: times and use against the load, tables.")
@with_core(plans=True, imagines=True)
def simulate(
    job: Job,
    fleet: dict[str, int],
    arrivals: str | None,
    slo: str | None,
    batch: str | None,
    cluster: Path | None,
    requests: int,
    trace: Path | None,
    page: Path | None,
) -> None:
    """Serve MODEL's requests in virtual time: rates, times, what limits them, what to add.

    The scheduler is the real one; times are the cost file's (--costs). --devices says how many
    devices of each plugin there are, which need not exist.
    """
    if cluster and fleet:
        raise click.UsageError("--cluster lists the devices; leave out --devices.")
    source = job.read()
    job.start()
    with steps("simulating") as step:
        found = job.core.simulate(
            source,
            job.device,
            job.config,
            affinity=job.pins or None,
            devices=fleet,
            cluster=cluster,
            arrivals=arrivals,
            slo_s=inf if slo is None else _seconds(slo),
            requests=requests,
            batch=batch,
            trace=trace,
            curve=page is not None,
            progress=step,
        )
    if page is not None:
        publish(page, lambda file: file.write(page_html(found).encode()))
    tell("simulation", found.document(), _parts(found))


def _seconds(text: str) -> float:
    number, unit = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentError(f"--slo {text!r}: wanted a time, as 50ms or 0.5s.")
    return seconds


def _parts(found: Simulation) -> Iterator[RenderableType]:
    outcome = found.outcome
    yield f"{found.model}: {found.basis}"
    served: Columns = {
        "requests": lambda _: found.arrivals,
        "answers/s": "{throughput_per_s:.5g}",
        "in time/s": "{goodput_per_s:.5g}" if found.slo_s < inf else lambda _: "-",
        **{name: (f"{name}_s", seconds_text) for name in ("p50", "p95", "p99")},
        "failed": "failed",
    }
    yield table([outcome], served)
    used: Columns = {
        "part": "kind",
        "name": "name",
        "busy": "{busy:.1%}",
        "waited for, a request": ("queued_s", seconds_text),
    }
    yield table(outcome.used[:_SHOWN], used)
    if len(outcome.used) > _SHOWN:
        yield f"{len(outcome.used) - _SHOWN} more: --json lists them"
    yield f"it can answer {found.capacity_per_s:.5g} a second: {found.bottleneck}"
    if found.knee_per_s is not None:
        yield f"99 % in time up to {found.knee_per_s:.5g} a second"
    changes: Columns = {
        "change": "name",
        "answers/s": lambda c: f"{c.rate_per_s:.5g}" if c.rate_per_s else "none",
        "gain": "{gain:+.1%}",
        "price": lambda c: f"{c.price:g}" if c.price else "-",
        "gain per price": lambda c: f"{c.gain_per_price:+.3%}" if c.price else "-",
    }
    yield table((*found.added, *found.lost), changes)
