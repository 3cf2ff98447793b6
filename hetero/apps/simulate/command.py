"""``hetero simulate``: capacity planning with the real scheduler in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from pathlib import Path

import click
from rich.console import RenderableType

from hetero.apps.simulate.page import page_html
from hetero.apps.simulate.simulation import Simulation
from hetero.cli.help_sections import SectionedCommand
from hetero.cli.model_command import ModelCommand
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import output_file
from hetero.cli.planning_options import planning_options
from hetero.cli.terminal import print_result, progress_bar
from hetero.devices.errors import ArgumentError
from hetero.formatting import seconds_text
from hetero.scheduler.formats.publish import publish
from hetero.terminal_tables import Columns, table

#: Parts of the fleet that the table shows; ``--json`` has all.
_MAX_PARTS = 12


@click.command(cls=SectionedCommand)
@model_options
@planning_options
@click.option(
    "--arrivals",
    metavar="poisson:RATE/s|gamma:RATE/s:VARIATION|FILE",
    help="Arrival process; by default a closed loop, as fast as possible.",
)
@click.option("--slo", metavar="TIME", help="Deadline of a request, for example 50ms or 0.5s.")
@click.option(
    "--batch",
    metavar="ROWS[:TIME]",
    help="Batch requests, as AUTO_BATCH_SIZE=ROWS does; a full batch takes TIME times as long "
    "as one row (default: ROWS times).",
)
@click.option(
    "--cluster",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of devices, links and clients that replaces the plan's devices.",
)
@click.option(
    "--requests",
    "-n",
    type=click.IntRange(min=100),
    default=10_000,
    show_default=True,
    help="Number of requests.",
)
@output_file("--trace", help="Write at most a thousand requests as a trace for Perfetto.")
@output_file(
    "--html",
    metavar="FILE.html",
    help="Write an HTML page: latency and utilisation against the load.",
)
@with_core(plans=True, simulates=True)
def simulate(
    command: ModelCommand,
    fleet: dict[str, int],
    arrivals: str | None,
    slo: str | None,
    batch: str | None,
    cluster: Path | None,
    requests: int,
    trace: Path | None,
    html: Path | None,
) -> None:
    """Simulate serving MODEL on hypothetical hardware: rates, latencies, bottleneck, advice.

    The real scheduler runs in virtual time, with the times of the cost file (--costs). --devices
    gives the number of devices of each plugin; they need not exist.
    """
    if cluster and fleet:
        raise click.UsageError("--cluster lists the devices; leave out --devices.")
    source = command.read()
    command.start()
    with progress_bar("simulating") as step:
        simulation = command.core.simulate(
            source,
            command.device,
            command.config,
            affinity=command.pins or None,
            devices=fleet,
            cluster=cluster,
            arrivals=arrivals,
            slo_s=inf if slo is None else _seconds(slo),
            requests=requests,
            batch=batch,
            trace=trace,
            curve=html is not None,
            progress=step,
        )
    if html is not None:
        publish(html, lambda file: file.write(page_html(simulation).encode()))
    print_result("simulation", simulation.document(), _parts(simulation))


def _seconds(text: str) -> float:
    number, unit = (text[:-2], 1e-3) if text.endswith("ms") else (text.removesuffix("s"), 1.0)
    try:
        seconds = float(number) * unit
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentError(f"--slo {text!r}: expected a time, for example 50ms or 0.5s.")
    return seconds


def _parts(simulation: Simulation) -> Iterator[RenderableType]:
    outcome = simulation.outcome
    yield f"{simulation.model}: {simulation.basis}"
    results: Columns = {
        "requests": lambda _: simulation.arrivals,
        "results/s": "{throughput_per_s:.5g}",
        "in time/s": "{goodput_per_s:.5g}" if simulation.slo_s < inf else lambda _: "-",
        **{name: (f"{name}_s", seconds_text) for name in ("p50", "p95", "p99")},
        "failed": "failed",
    }
    yield table([outcome], results)
    used: Columns = {
        "part": "kind",
        "name": "name",
        "busy": "{busy:.1%}",
        "waiting per request": ("queued_s", seconds_text),
    }
    yield table(outcome.used[:_MAX_PARTS], used)
    if len(outcome.used) > _MAX_PARTS:
        yield f"{len(outcome.used) - _MAX_PARTS} more: --json lists them"
    yield f"capacity {simulation.capacity_per_s:.5g} requests/s: {simulation.bottleneck}"
    if simulation.knee_per_s is not None:
        yield f"99 % meet the deadline up to {simulation.knee_per_s:.5g} requests/s"
    changes: Columns = {
        "change": "name",
        "results/s": lambda c: f"{c.rate_per_s:.5g}" if c.rate_per_s else "none",
        "gain": "{gain:+z.1%}",
        "price": lambda c: f"{c.price:g}" if c.price else "-",
        "gain per price": lambda c: f"{c.gain_per_price:+z.3%}" if c.price else "-",
    }
    yield table((*simulation.added, *simulation.removed), changes)
