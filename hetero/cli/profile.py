"""``hetero profile``: measure what a model's nodes, subgraphs and transfers take on devices."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from devices.errors import DeviceError
from hetero.cli.inputs import model_inputs, parse_shapes
from hetero.cli.options import ERR, OUT, model_options, print_json, start, with_core
from hetero.core import Core
from hetero.planning.cost import Costs
from hetero.planning.cost.cost_file import to_document, write_costs


@click.command("profile")
@model_options
@click.option("--output", "-o", type=click.Path(path_type=Path, dir_okay=False),
              help="The cost file to write; MODEL.costs.json here by default.")  # fmt: skip
@click.option("--input", "-i", "inputs", multiple=True, metavar="[NAME=]FILE",
              help="A .npy, .npz or .pb file; inputs without one are generated.")  # fmt: skip
@click.option("--shape", "shapes", multiple=True, metavar="NAME:1,3,...", callback=parse_shapes,
              help="The shape of a generated input.")  # fmt: skip
@click.option("--seconds", "-t", type=click.FloatRange(min=0, min_open=True), default=60.0,
              show_default=True, help="Time to spend, about.")  # fmt: skip
@with_core
def profile_command(
    core: Core,
    model: str,
    device: str,
    pins: tuple[str, ...],
    config: dict[str, Any],
    output: Path | None,
    inputs: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    seconds: float,
    as_json: bool,
) -> None:
    """Measure MODEL on every device of the list and write a cost file.

    Ctrl-C ends it and keeps what was measured; the exit code is 1 then, and when a device could
    not be measured.
    """
    if pins:
        raise click.UsageError("--affinity: a profile measures every device; pin when planning.")
    source = core.read_model(model)
    values = model_inputs(model, source, inputs, shapes)
    start(core)
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=ERR, transient=True) as bar:
        task = bar.add_task("profiling")

        def tell(done: int, steps: int, text: str) -> None:
            bar.update(task, completed=done, total=steps, description=text)

        costs = core.profile_model(
            source, device, config, inputs=values, seconds=seconds, progress=tell
        )
    if not costs.devices:
        reasons = "; ".join(f"{d}: {r}" for d, r in costs.missing.items()) or "interrupted"
        raise DeviceError(f"model {source.name!r}: nothing was measured: {reasons}")
    path = output or Path(f"{source.name or 'model'}.costs.json".replace("/", "_"))
    write_costs(costs, path)
    if as_json:
        print_json({"file": str(path), **to_document(costs)})
    else:
        print_costs(costs)
        OUT.print(f"wrote {path}")
    if costs.missing or costs.interrupted:
        raise click.exceptions.Exit(1)


def print_costs(costs: Costs) -> None:
    """Print what devices and transfers cost."""
    OUT.print(f"{costs.model}: costs of {len(costs.devices)} devices")
    table = Table(
        "device", "nodes ms", "measured", "estimated", "a subgraph ms", "fusion", "under load",
        "a call ms",
    )  # fmt: skip
    for name, device in costs.devices.items():
        sources = Counter(t.source for t in device.nodes.values())
        table.add_row(
            name,
            f"{sum(t.seconds for t in device.nodes.values()) * 1e3:.2f}",
            str(sources["measured"] + sources["calibrated"]),
            str(sources["estimated"]),
            f"{device.dispatch.seconds * 1e3:.3f}",
            f"× {device.fusion.seconds:.2f}",
            f"× {device.load.seconds:.2f}",
            f"{device.overhead.seconds * 1e3:.3f}",
        )
    OUT.print(table)
    if costs.transfers:
        table = Table("from", "to", "a tensor ms", "and each MB ms", "busy ms", "and each MB ms")
        for (sender, receiver), t in costs.transfers.items():
            figures = (t.latency.a * 1e3, t.latency.b * 1e9, t.busy.a * 1e3, t.busy.b * 1e9)
            table.add_row(sender, receiver, *(f"{f:.3f}" for f in figures))
        OUT.print(table)
    for name, reason in costs.missing.items():
        OUT.print(f"[bold]{name} was left out:[/bold] {reason}")
    if costs.interrupted:
        OUT.print("[bold]interrupted:[/bold] what was not measured is estimated or left out")
