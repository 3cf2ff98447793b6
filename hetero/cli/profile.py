"""``hetero profile``: measure what a model's nodes, subgraphs and transfers take on devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import RenderableType

from hetero.cli.inputs import input_options
from hetero.cli.model_command import Job
from hetero.cli.option_types import Finite
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import check_file, output_file, refuse_weights
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.signals import INTERRUPTED
from hetero.cli.terminal import steps, tell
from hetero.devices.errors import DeviceError, PlanError
from hetero.devices.model.light_models import PREFIX
from hetero.devices.model.model import Model
from hetero.planning.cost.cost_file import read_costs, to_document, write_costs
from hetero.planning.cost.costs import Costs
from hetero.terminal_tables import Rows


@click.command("profile")
@model_options
@output_file("--output", "-o", help="The cost file to write; MODEL.costs.json here by default.")
@input_options
@preprocess_options
@click.option(
    "--seconds",
    "-t",
    type=Finite(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="The most time; it ends once figures settle.",
)
@with_core(runs_model=True)
def profile_command(job: Job, output: Path | None, seconds: float) -> None:
    """Measure MODEL on every device of the list and write a cost file.

    Ctrl-C ends it and keeps what was measured; the exit code is 1 then, and when a device could
    not be measured.
    """
    if job.pins:
        raise click.UsageError("--affinity: a profile measures every device; pin when planning.")
    source = job.read()
    path = output or _default_path(job.model, source)
    refuse_weights(source, path)
    values = job.values(source)
    job.start()
    with steps("profiling") as step:
        costs = job.core.profile_model(
            source, job.device, job.config, inputs=values, seconds=seconds, progress=step
        )
    if not costs.devices:
        reasons = "; ".join(f"{d}: {r}" for d, r in costs.missing.items()) or "interrupted"
        raise DeviceError(f"model {source.name!r}: nothing was measured: {reasons}")
    write_costs(costs, path)
    parts = [*cost_parts(costs), f"wrote {path}"]
    tell("profile", {"file": path, **to_document(costs)}, parts)
    if costs.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if costs.missing:
        raise click.exceptions.Exit(1)


def _default_path(model: str, source: Model) -> Path:
    """Return ``MODEL.costs.json`` in the current folder, unless that is another model's."""
    path = Path(f"{Path(model.removeprefix(PREFIX)).stem}.costs.json")
    check_file(click.get_current_context(), click.Option(["--output"]), path)
    if path.exists():
        try:
            other = read_costs(path)
        except PlanError as error:
            raise click.UsageError(
                f"{path} is not a cost file of this version; name it, or another one, with -o."
            ) from error
        if other.model_hash != source.content_hash:
            raise click.UsageError(
                f"{path} is there, with the costs of another model ({other.model}); name a file "
                "with -o."
            )
    return path


def cost_parts(costs: Costs) -> Iterator[RenderableType]:
    """Yield what devices and transfers cost, for people."""
    yield f"{costs.model}: {costs.basis()}"
    table = Rows("device", "all nodes ms", "measured", "estimated", "busy alone", "busy with all")
    for name, device in costs.devices.items():
        sources = Counter(t.source for t in device.nodes.values())
        table.add(
            name,
            f"{sum(t.seconds for t in device.nodes.values()) * 1e3:.2f}",
            sources["measured"] + sources["calibrated"],
            sources["estimated"],
            *(
                f"× {load.time_factor:.2f} + {load.overhead_s * 1e3:.3f} ms"
                for load in (device.single_load, device.concurrent_load)
            ),
        )
    yield table
    if costs.transfers:
        table = Rows(
            "from", "to", "latency ms", "latency ms per MB", "occupies ms", "occupies ms per MB"
        )
        for (sender, receiver), t in costs.transfers.items():
            figures = (t.latency.a * 1e3, t.latency.b * 1e9, t.busy.a * 1e3, t.busy.b * 1e9)
            table.add(sender, receiver, *(f"{f:.3f}" for f in figures))
        yield table
    for name, reason in costs.missing.items():
        yield f"{name} was left out: {reason}"
    if costs.interrupted:
        yield "interrupted: what was not measured is estimated or left out"
