"""Models and blobs as arguments: reading, compiling, importing, and what went where."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from devices.errors import ModelError
from devices.model.model import Model
from hetero.cli.pairs import pairs, together
from hetero.cli.planning import PROPERTIES
from hetero.cli.terminal import progress, show
from hetero.compile.compiled_model import CompiledModel
from hetero.core import Core
from hetero.observe.sample_inputs import sample_shapes
from hetero.planning.cost.work import value_nbytes, with_shapes
from hetero.report.table import subgraph_table
from hetero.report.units import counted
from scheduler.formats.blob_format import MAGIC
from scheduler.formats.weightless import is_weightless


def blob_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--remap OLD=NEW`` and ``--weights MODEL``."""
    return together(
        click.option(
            "--remap", multiple=True, metavar="OLD=NEW", callback=pairs("OLD=NEW, as ORT=CPU"),
            help="For a blob: the device here that takes the place of one it was compiled for.",
        ),
        click.option(
            "--weights", metavar="MODEL",
            help="For a blob that was compiled with --weightless: the model that it is of.",
        ),
    )(function)  # fmt: skip


def is_blob(model: str) -> bool:
    """Whether a model argument is a blob's file."""
    path = Path(model)
    if not path.is_file():
        return False
    if not path.stat().st_size:
        raise ModelError(f"{model} is empty: not an ONNX model, and no blob.")
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC or is_weightless(path)


def read(core: Core, model: str) -> Model:
    """Read a model, for commands that cannot use a blob.

    Raises click.UsageError for a blob.
    """
    if is_blob(model):
        raise click.UsageError(
            f"{model} is a compiled model (a blob), cut already; give the ONNX model it was made "
            "from. `hetero inspect` shows what is in it, `hetero run` and `hetero bench` run it."
        )
    return core.read_model(model)


def load(
    core: Core,
    model: str,
    source: Model | None,
    device: str,
    config: dict[str, Any],
    pins: dict[str, str],
    remap: dict[str, str],
    weights: str | None = None,
) -> CompiledModel:
    """Compile a model that was read, or import a blob where `source` is None.

    Raises click.UsageError: options that only the other of the two has.
    """
    if source is None:
        if pins:
            raise click.UsageError("--affinity is for models; a blob is cut already.")
        if planning := sorted(set(PROPERTIES.values()) & config.keys()):
            raise click.UsageError(f"{', '.join(planning)}: for models; a blob is planned already.")
        given = click.get_current_context().get_parameter_source("device")
        chosen = None if given is click.core.ParameterSource.DEFAULT else device
        with progress(f"importing {model}"):
            return core.import_model(model, chosen, config, remap, weights=weights)
    if remap:
        raise click.UsageError("--remap is for blobs; name the devices with --device.")
    if weights:
        raise click.UsageError("--weights is for blobs; a model has its own.")
    with progress(f"compiling {source.name}"):
        return core.compile_model(source, device, config, affinity=pins or None)


def subgraph_rows(
    compiled: CompiledModel, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> list[dict[str, Any]]:
    """Return the subgraphs as plain rows; open dimensions are those of the shapes, or 1."""
    source = compiled.partition.source
    specs = with_shapes(source, sample_shapes(source, shapes)).spec
    crossing = {wire.tensor for wire in compiled.partition.wires}

    def nbytes(values: Iterable[str]) -> int:
        return sum(value_nbytes(specs(value)) for value in values)

    return [
        {
            "index": s.index,
            "device": s.device,
            "nodes": list(s.node_names),
            "inputs": list(s.inputs),
            "outputs": list(s.outputs),
            "in_nbytes": nbytes(s.inputs),
            "out_nbytes": nbytes(s.outputs),
            "crossing_nbytes": nbytes(v for v in s.outputs if v in crossing),
        }
        for s in compiled.subgraphs
    ]


def show_subgraphs(
    compiled: CompiledModel, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> None:
    """Print which device got which subgraph."""
    rows = subgraph_rows(compiled, shapes)
    nodes = sum(len(row["nodes"]) for row in rows)
    show(f"{compiled.plan.name}: {counted(nodes, 'node')} in {counted(len(rows), 'subgraph')}")
    show(subgraph_table(rows))
