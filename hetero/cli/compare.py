"""``hetero compare``: run a model on two devices and name the first node that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich import box
from rich.markup import escape
from rich.table import Table

from hetero.cli.inputs import model_inputs, parse_shapes
from hetero.cli.options import (
    OUT,
    core_options,
    parse_config,
    print_json,
    progress,
    start,
    with_core,
)
from hetero.compare import compare as compare_devices
from hetero.core import Core
from hetero.difference import ATOL, RTOL, Difference


@click.command()
@click.argument("model")
@click.option(
    "--device", "-d", required=True, metavar="A,B", help="Two devices, the reference first."
)
@click.option(
    "--config", "-c", "config", multiple=True, metavar="KEY=VALUE", callback=parse_config,
    help="A property for both, as INFERENCE_NUM_THREADS=1.",
)  # fmt: skip
@click.option(
    "--input", "-i", "inputs", multiple=True, metavar="[NAME=]FILE",
    help="A .npy, .npz or .pb file; inputs without one are generated.",
)  # fmt: skip
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME:1,3,...", callback=parse_shapes,
    help="The shape of a generated input; open dimensions are 1 otherwise.",
)  # fmt: skip
@click.option("--rtol", type=click.FloatRange(min=0), default=RTOL, show_default=True)
@click.option("--atol", type=click.FloatRange(min=0), default=ATOL, show_default=True)
@core_options
@with_core
def compare(
    core: Core,
    model: str,
    device: str,
    config: dict[str, Any],
    inputs: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    rtol: float,
    atol: float,
    as_json: bool,
) -> None:
    """Run MODEL on two devices; exit code 1 if they differ, with the first node that does."""
    names = [name.strip() for name in device.split(",") if name.strip()]
    if len(names) != 2:
        raise click.UsageError(f"--device {device}: wanted two devices, as CPU,ORT.")
    source = core.read_model(model)
    values = model_inputs(model, source, inputs, shapes)
    start(core)
    with progress(core, "comparing"):
        found = compare_devices(core, source, names, values, rtol=rtol, atol=atol, config=config)
    if as_json:
        print_json(found.to_dict())
    else:
        OUT.print(_table("output", found.outputs, names))
        if found.values:
            OUT.print(_table(f"made by {found.node} ({found.op_type})", found.values, names))
        if found.alone:
            OUT.print(_table("the same, run alone", found.alone, names))
        if len(found.suspects) > 1:
            OUT.print(f"one of {len(found.suspects)} nodes: {escape(', '.join(found.suspects))}")
        OUT.print(escape(found.sentence()))
    if not found.agrees:
        raise click.exceptions.Exit(1)


def _table(title: str, rows: Sequence[Difference], names: Sequence[str]) -> Table:
    odd = any(any(row.nans + row.infs) for row in rows)
    columns = [escape(title), "type", "differ", "max abs", "max rel", "worst at", *names]
    columns += ["NaN", "inf"] if odd else []
    table = Table(*columns, box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for row in rows:
        types = (
            f"{dtype} {list(shape)}" for dtype, shape in zip(row.dtypes, row.shapes, strict=True)
        )
        table.add_row(
            escape(row.name),
            escape(" / ".join(dict.fromkeys(types))),
            f"{row.differing:,} of {row.size:,}",
            f"{row.max_abs:.3g}",
            f"{row.max_rel:.3g}",
            escape(str(list(row.position))),
            *(escape(_text(value)) for value in row.values),
            *((" / ".join(map(str, pair)) for pair in (row.nans, row.infs)) if odd else ()),
            style=None if row.agrees else "bold red",
        )
    return table


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"
