"""``hetero compare``: run a model on two devices and find the first node that differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click
from rich.console import RenderableType

from hetero.cli.help_sections import SectionedCommand
from hetero.cli.inputs import input_options
from hetero.cli.model_command import ModelCommand
from hetero.cli.option_types import FiniteFloat
from hetero.cli.options import affinity_option, cache_option, config_option, core_options, with_core
from hetero.cli.preprocessing_options import preprocess_options
from hetero.cli.terminal import print_result, progress
from hetero.comparison.compare import Comparison
from hetero.comparison.compare import compare as compare_devices
from hetero.terminal_tables import Columns, Rows, table
from hetero.verify.difference import ATOL, RTOL, Difference


def _parse_devices(
    context: click.Context, parameter: click.Parameter, value: tuple[str, ...]
) -> tuple[str, str]:
    """Parse two devices from one option with both, or from two options."""
    names = list(value)
    if len(value) == 1:
        # The commas after HETERO belong to its list.
        singles, hetero, device_list = value[0].partition("HETERO")
        names = [name.strip() for name in singles.split(",") if name.strip()]
        names += [hetero + device_list] if hetero else []
    if len(names) != 2:
        raise click.BadParameter(
            f"got {', '.join(value)}, expected two devices, such as CPU,ORT or "
            "-d CPU -d HETERO:ORT,CPU."
        )
    return names[0], names[1]


@click.command(cls=SectionedCommand)
@click.argument("model")
@click.option(
    "--device",
    "-d",
    "devices",
    required=True,
    multiple=True,
    metavar="A,B",
    callback=_parse_devices,
    help="Two devices, the reference first, such as ORT,CPU. Either may be a list: "
    "CPU,HETERO:ORT,CPU or -d HETERO:ORT,CPU -d CPU.",
)
@affinity_option
@config_option
@cache_option
@input_options
@preprocess_options
@click.option("--rtol", type=FiniteFloat(min=0), default=RTOL, show_default=True)
@click.option("--atol", type=FiniteFloat(min=0), default=ATOL, show_default=True)
@core_options
@with_core
def compare(command: ModelCommand, devices: tuple[str, str], rtol: float, atol: float) -> None:
    """Run MODEL on two devices; if they differ, show the first differing node and exit with 1."""
    source = command.read()
    values = command.values(source)
    command.start()
    with progress("comparing"):
        comparison = compare_devices(
            command.core,
            source,
            devices,
            values,
            rtol=rtol,
            atol=atol,
            config=command.config,
            affinity=command.pins,
        )
    print_result("compare", comparison.to_dict(), _parts(comparison, devices))
    if not comparison.agrees:
        raise click.exceptions.Exit(1)


def _parts(comparison: Comparison, devices: Sequence[str]) -> Iterator[RenderableType]:
    yield _table("output", comparison.outputs, devices)
    if comparison.values:
        title = f"outputs of {comparison.node} ({comparison.op_type})"
        yield _table(title, comparison.values, devices)
    if comparison.alone:
        yield _table("outputs of the node run alone", comparison.alone, devices)
    if len(comparison.suspects) > 1:
        yield f"one of {len(comparison.suspects)} nodes: {', '.join(comparison.suspects)}"
    yield comparison.sentence()


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
