"""``hetero profile``: measure the times of nodes, subgraphs and transfers; write a cost file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import RenderableType

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import input_options
from hetero.cli.model_command import ModelCommand
from hetero.cli.option_types import FiniteFloat
from hetero.cli.options import model_options, with_core
from hetero.cli.output_files import check_file, output_file, refuse_weights
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.signals import INTERRUPTED
from hetero.cli.terminal import print_result, progress_bar
from hetero.devices.errors import DeviceError, PlanError
from hetero.devices.model.light_models import PREFIX
from hetero.devices.model.model import Model
from hetero.planning.cost.cost_file import read_costs, to_document, write_costs
from hetero.planning.cost.costs import Costs
from hetero.terminal_tables import Rows


@click.command("profile", cls=SectionedCommand)
@model_options
@output_file("--output", "-o", help="Cost file to write; by default MODEL.costs.json.")
@input_options
@preprocess_options
@click.option(
    "--seconds",
    "-t",
    type=FiniteFloat(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="Time limit; profiling ends earlier if the measurements are stable.",
)
@with_core(runs_model=True)
def profile_command(command: ModelCommand, output: Path | None, seconds: float) -> None:
    """Measure MODEL on every device of the list and write a cost file.

    Ctrl-C ends the profiling, writes the measurements so far and exits with 130. If a device
    cannot be measured, the exit code is 1.
    """
    if command.pins:
        raise click.UsageError("--affinity: a profile measures every device; use pins to plan.")
    source = command.read()
    path = output or _default_path(command.model, source)
    refuse_weights(source, path)
    values = command.values(source)
    command.start()
    with progress_bar("profiling") as step:
        costs = command.core.profile_model(
            source, command.device, command.config, inputs=values, seconds=seconds, progress=step
        )
    if not costs.devices:
        reasons = "; ".join(f"{d}: {r}" for d, r in costs.missing.items()) or "interrupted"
        raise DeviceError(f"model {source.name!r}: no device could be measured: {reasons}")
    write_costs(costs, path)
    parts = [*render_costs(costs), f"wrote {path}"]
    print_result("profile", {"file": path, **to_document(costs)}, parts)
    if costs.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)
    if costs.missing:
        raise click.exceptions.Exit(1)


def _default_path(model: str, source: Model) -> Path:
    """Return ``MODEL.costs.json`` in the current folder; refuse another model's cost file."""
    path = Path(f"{Path(model.removeprefix(PREFIX)).stem}.costs.json")
    check_file(click.get_current_context(), click.Option(["--output"]), path)
    if path.exists():
        try:
            other = read_costs(path)
        except PlanError as error:
            raise click.UsageError(
                f"{path} exists and is not a cost file of this version; to overwrite it, pass it "
                "with -o."
            ) from error
        if other.model_hash != source.content_hash:
            raise click.UsageError(
                f"{path} exists with the costs of another model ({other.model}); choose a file "
                "with -o."
            )
    return path


def render_costs(costs: Costs) -> Iterator[RenderableType]:
    """Yield tables of the costs of devices and transfers."""
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
            summarize_metrics = (
                t.latency.a * 1e3,
                t.latency.b * 1e9,
                t.busy.a * 1e3,
                t.busy.b * 1e9,
            )
            table.add(sender, receiver, *(f"{f:.3f}" for f in summarize_metrics))
        yield table
    for name, reason in costs.missing.items():
        yield f"{name} was not measured: {reason}"
    if costs.interrupted:
        yield "interrupted: missing measurements are estimated or omitted"
