"""``hetero compare``: run a model on two devices and name the first node that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType

from hetero.cli.inputs import input_options
from hetero.cli.model_command import Job
from hetero.cli.option_types import Finite
from hetero.cli.options import affinity_option, config_option, core_options, with_core
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.terminal import progress, tell
from hetero.comparison.compare import Comparison
from hetero.comparison.compare import compare as compare_devices
from hetero.comparison.difference import ATOL, RTOL, Difference
from hetero.terminal_tables import Columns, Rows, table


def _parse_devices(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, str]:
    """Read two devices: one option with both, or two options."""
    names = list(value)
    if len(value) == 1:
        # A split's own commas are its own: it takes the rest.
        whole, split, listed = value[0].partition("HETERO")
        names = [name.strip() for name in whole.split(",") if name.strip()]
        names += [split + listed] if split else []
    if len(names) != 2:
        raise click.BadParameter(
            f"{', '.join(value)}: wanted two devices, as CPU,ORT or -d CPU -d HETERO:ORT,CPU."
        )
    return names[0], names[1]


@click.command()
@click.argument("model")
@click.option(
    "--device",
    "-d",
    "devices",
    required=True,
    multiple=True,
    metavar="A,B",
    callback=_parse_devices,
    help="Two devices, the reference first, as ORT,CPU. Either may be a split; it takes all that "
    "follows, or is given alone: CPU,HETERO:ORT,CPU or -d HETERO:ORT,CPU -d CPU.",
)
@affinity_option
@config_option
@input_options
@preprocess_options
@click.option("--rtol", type=Finite(min=0), default=RTOL, show_default=True)
@click.option("--atol", type=Finite(min=0), default=ATOL, show_default=True)
@core_options
@with_core
def compare(job: Job, devices: tuple[str, str], rtol: float, atol: float) -> None:
    """Run MODEL on two devices; exit code 1 if they differ, with the first node that does."""
    source = job.read()
    values = job.values(source)
    job.start()
    with progress("comparing"):
        found = compare_devices(
            job.core,
            source,
            devices,
            values,
            rtol=rtol,
            atol=atol,
            config=job.config,
            affinity=job.pins,
        )
    tell("compare", found.to_dict(), _parts(found, devices))
    if not found.agrees:
        raise click.exceptions.Exit(1)


def _parts(found: Comparison, devices: Sequence[str]) -> Iterator[RenderableType]:
    yield _table("output", found.outputs, devices)
    if found.values:
        yield _table(f"made by {found.node} ({found.op_type})", found.values, devices)
    if found.alone:
        yield _table("the same, run alone", found.alone, devices)
    if len(found.suspects) > 1:
        yield f"one of {len(found.suspects)} nodes: {', '.join(found.suspects)}"
    yield found.sentence()


def _table(title: str, rows: Sequence[Difference], names: Sequence[str]) -> Rows:
    def types(row: Difference) -> str:
        both = zip(row.dtypes, row.shapes, strict=True)
        return " / ".join(dict.fromkeys(f"{dtype} {list(shape)}" for dtype, shape in both))

    def text(value: float | str) -> str:
        return value if isinstance(value, str) else f"{value:.6g}"

    columns: Columns = {
        title: "name",
        "type": types,
        "differ": "{differing:,} of {size:,}",
        "max abs": "{max_abs:.3g}",
        "max rel": "{max_rel:.3g}",
        "worst at": lambda row: list(row.position),
        names[0]: lambda row: text(row.values[0]),
        names[1]: lambda row: text(row.values[1]),
    }
    if any(any(row.nans + row.infs) for row in rows):
        columns |= {"NaN": "{nans[0]} / {nans[1]}", "inf": "{infs[0]} / {infs[1]}"}
    return table(
        rows,
        columns,
        wraps=(title, "type", "differ"),
        style=lambda row: None if row.agrees else "bold red",
    )
