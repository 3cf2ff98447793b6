"""``hetero simulate``: what a cluster, there or not, would do with a model."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import click
from rich.console import RenderableType

from devices.errors import ArgumentError
from hetero.cli.files import output_file
from hetero.cli.job import Job
from hetero.cli.options import model_options, with_core
from hetero.cli.planning import planning_options
from hetero.cli.terminal import steps, tell
from hetero.report.text import Rows
from hetero.report.units import seconds_text
from hetero.simulate.advise import Change, Simulation
from hetero.simulate.page import page_html
from scheduler.formats.publish import publish

#: Devices, links and clients shown before the rest is left to ``--json``.
_SHOWN = 12


@click.command()
@model_options
@planning_options
@click.option("--arrivals", metavar="poisson:RATE/s|gamma:RATE/s:VARIATION|FILE",
              help="When requests come; without it, as fast as they are answered.")  # fmt: skip
@click.option("--slo", metavar="TIME", help="What counts as in time, as 50ms or 0.5s.")
@click.option("--batch", metavar="ROWS[:TIME]",
              help="Requests are joined, as by AUTO_BATCH_SIZE=ROWS; a full batch takes TIME times "
              "as long as one row, by default ROWS times.")  # fmt: skip
@click.option("--cluster", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A YAML file of devices, links and clients in place of the plan's.")  # fmt: skip
@click.option("--requests", "-n", type=click.IntRange(min=100), default=10_000, show_default=True,
              help="How many requests come.")  # fmt: skip
@output_file("--trace",
              help="Write the requests, a thousand at most, as a trace for Perfetto.")  # fmt: skip
@output_file("--page",
              help="Write an HTML page: times and use against the load, tables.")  # fmt: skip
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
            source, job.device, job.config, affinity=job.pins or None, devices=fleet,
            cluster=cluster,
            arrivals=arrivals, slo_s=inf if slo is None else _seconds(slo), requests=requests,
            batch=batch, trace=trace, curve=page is not None, progress=step,
        )  # fmt: skip
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
    rows = Rows("requests", "answers/s", "in time/s", "p50", "p95", "p99", "failed")
    times = [seconds_text(t) for t in (outcome.p50_s, outcome.p95_s, outcome.p99_s)]
    in_time = "-" if found.slo_s == inf else f"{outcome.goodput_per_s:.5g}"
    rows.add(found.arrivals, f"{outcome.throughput_per_s:.5g}", in_time, *times, outcome.failed)
    yield rows
    used = Rows("part", "name", "busy", "waited for, a request")
    for part in outcome.used[:_SHOWN]:
        used.add(part.kind, part.name, f"{part.busy:.1%}", seconds_text(part.queued_s))
    yield used
    if len(outcome.used) > _SHOWN:
        yield f"{len(outcome.used) - _SHOWN} more: --json lists them"
    yield f"it can answer {found.capacity_per_s:.5g} a second: {found.bottleneck}"
    if found.knee_per_s is not None:
        yield f"99 % in time up to {found.knee_per_s:.5g} a second"
    changes = Rows("change", "answers/s", "gain", "price", "gain per price")
    for change in (*found.added, *found.lost):
        changes.add(*_cells(change))
    yield changes


def _cells(change: Change) -> tuple[str, ...]:
    per_price = change.gain_per_price
    return (
        change.name,
        f"{change.rate_per_s:.5g}" if change.rate_per_s else "none",
        f"{change.gain:+.1%}",
        f"{change.price:g}" if change.price else "-",
        "-" if per_price is None else f"{per_price:+.3%}",
    )
