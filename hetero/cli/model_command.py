"""Context of a command that uses a model: the Core, the model or blob, devices and options."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import click
from rich.console import RenderableType

from hetero.cli.inputs import model_inputs
from hetero.cli.option_types import combine_options, name_value_pairs
from hetero.cli.output_files import refuse_weights
from hetero.cli.planning_options import PROPERTIES, plan_for_inputs
from hetero.cli.preprocessing_options import Preprocessing
from hetero.cli.terminal import console, print_note, progress, progress_bar
from hetero.compile.compiled_model import CompiledModel
from hetero.core import Core
from hetero.devices.errors import ModelError
from hetero.devices.file_reader import open_regular
from hetero.devices.model.model import Model
from hetero.devices.model.variables import variables_of
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.devices.plugin.registry import GROUP
from hetero.formatting import count_text
from hetero.measure.sample_inputs import sample_shapes
from hetero.planning.cost.estimation import value_nbytes, with_input_shapes
from hetero.query.survey import Survey
from hetero.report.terminal_report import subgraph_table
from hetero.scheduler.formats.blob_format import MAGIC
from hetero.scheduler.formats.weightless import is_weightless

#: A start of Ray that takes longer prints a hint to use a pool.
SLOW_START_S: Final = 3.0


#: Adds ``--remap OLD=NEW``.
remap_option: Final = click.option(
    "--remap",
    multiple=True,
    metavar="OLD=NEW",
    callback=name_value_pairs("OLD=NEW, as ORT=CPU"),
    help="For a blob: replace device OLD, for which it was compiled, by NEW.",
)
#: Adds ``--remap`` and ``--weights MODEL``.
blob_options: Final = combine_options(
    remap_option,
    click.option(
        "--weights",
        metavar="MODEL",
        help="For a blob that was compiled with --weightless: the model with its weights.",
    ),
)


@dataclass
class ModelCommand:
    """A Core and the options of a command; options that the command lacks are empty.

    `model`: the argument MODEL: a file, ``light:NAME``, or a blob.
    `inputs`, `shapes`: arguments of `hetero.cli.inputs.model_inputs`.
    `remap`, `weights`: arguments of `Core.import_model` for blobs.
    """

    core: Core
    model: str = ""
    device: str = "HETERO"
    pins: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    inputs: Sequence[str] = ()
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    remap: dict[str, str] = field(default_factory=dict)
    weights: str | None = None
    #: Whether the devices are Ray actors.
    uses_ray: bool = False
    #: Duration of the compilation or import.
    compile_s: float = 0.0

    def read(self) -> Model:
        """Read the model and add the requested preprocessing; refuse a blob."""
        if is_blob(self.model):
            raise click.UsageError(
                f"{self.model} is a compiled model (a blob); pass the original ONNX model. "
                "`hetero inspect` shows a blob's contents; `hetero run` and `hetero bench` run it."
            )
        model = self.core.read_model(self.model)
        refuse_weights(model)
        return self.preprocessing.apply(model, self.inputs)

    def read_unless_blob(self) -> Model | None:
        """Read the model; return None for a blob, which contains its preprocessing."""
        if not is_blob(self.model):
            return self.read()
        if self.preprocessing:
            raise click.UsageError(
                "--layout, --mean and --scale need a model, not a blob; pass them to `hetero "
                "compile`."
            )
        return None

    def values(self, model: Model, *, with_states: bool = True) -> dict[str, Any]:
        """Return a value for each input of the model, and for its states if requested."""
        hidden = [] if with_states else [variable.name for variable in variables_of(model)]
        return model_inputs(self.model, model, self.inputs, self.shapes, hidden=hidden)

    def survey(self, source: Model) -> Survey:
        """Query every device about every node of the model."""
        return self.core.survey_model(source, self.device, self.config, affinity=self.pins or None)

    def start(self) -> None:
        """Start Ray and list the devices, with a spinner; refuse a plugin that did not load."""
        began_s = time.monotonic()
        with progress("starting Ray" if self.uses_ray else "starting devices"):
            self.core.executor  # noqa: B018 - the first use starts it
        started_s = time.monotonic()
        with progress("listing the devices"):
            rows = self.core.device_descriptors
        listed_s = time.monotonic()
        if listed_s - began_s > SLOW_START_S and self.uses_ray and console(stderr=True).is_terminal:
            print_note(
                f"Ray took {started_s - began_s:.1f} s to start, and the list of devices "
                f"{listed_s - started_s:.1f} s; `hetero pool up` keeps Ray and the devices running "
                "between commands."
            )
        plugins = click.get_current_context().params.get("plugins") or ()
        requested = {PluginSource.parse(plugin).label for plugin in plugins}
        installed = requested and entry_points(group=GROUP).names - requested
        for row in rows:
            if requested and row.error is not None and row.plugin not in installed:
                raise click.UsageError(f"--plugin {row.plugin}: {row.error}")

    def compile(self, source: Model | None) -> CompiledModel:
        """Compile a model, or import the blob if `source` is None."""
        began_s = time.perf_counter()
        if source is None:
            compiled = self._import()
        else:
            if self.remap:
                raise click.UsageError("--remap needs a blob; choose devices with --device.")
            if self.weights:
                raise click.UsageError("--weights needs a blob; a model has its own weights.")
            with progress_bar(f"compiling {source.name}") as update:
                compiled = self.core.compile_model(
                    source, self.device, self.config, affinity=self.pins or None, progress=update
                )
        self.compile_s = time.perf_counter() - began_s
        if compiled.get_property("LOADED_FROM_CACHE"):
            saved_s = compiled.cache_saved_s
            saved = "" if saved_s is None else f" ({saved_s:.1f} s saved)"
            print_note(f"loaded from the cache in {self.compile_s * 1e3:.0f} ms{saved}")
        return compiled

    def cache_fields(self, compiled: CompiledModel) -> dict[str, Any]:
        """Return the entries of a JSON document about the compilation and the cache."""
        return {"compile_s": self.compile_s, **cache_fields(compiled)}

    def compile_with_inputs(
        self, source: Model | None, *, with_states: bool
    ) -> tuple[CompiledModel, dict[str, Any]]:
        """Start the devices and compile; return the compiled model and a value for each input.

        Invalid inputs are reported before any device starts.
        """
        values = None
        if source is not None:
            values = self.values(source, with_states=with_states)
            self.config = plan_for_inputs(self.config, source, values)
        self.start()
        compiled = self.compile(source)
        if values is None:
            values = self.values(compiled.partition.source, with_states=with_states)
        return compiled, values

    def _import(self) -> CompiledModel:
        if self.pins:
            raise click.UsageError("--affinity needs a model; a blob's placement is fixed.")
        if planning := sorted(set(PROPERTIES.values()) & self.config.keys()):
            raise click.UsageError(
                f"{', '.join(planning)}: expected a model; a blob's placement is fixed."
            )
        source = click.get_current_context().get_parameter_source("device")
        device = None if source is click.core.ParameterSource.DEFAULT else self.device
        with progress(f"importing {self.model}"):
            return self.core.import_model(
                self.model, device, self.config, self.remap, weights=self.weights
            )


def cache_fields(compiled: CompiledModel) -> dict[str, Any]:
    """Return the entries of a JSON document about the cache."""
    return {
        "loaded_from_cache": compiled.get_property("LOADED_FROM_CACHE"),
        "cache_saved_s": compiled.cache_saved_s,
    }


def is_blob(model: str) -> bool:
    """Whether a MODEL argument is a blob file."""
    path = Path(model)
    if not path.is_file():
        return False
    if not path.stat().st_size:
        raise ModelError(f"{model} is empty; expected an ONNX model or a blob.")
    with open_regular(path) as file:
        return file.read(len(MAGIC)) == MAGIC or is_weightless(path)


def subgraph_rows(
    compiled: CompiledModel, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> list[dict[str, Any]]:
    """Return the subgraphs as rows for JSON; open dimensions have sizes from `shapes`, or 1."""
    source = compiled.partition.source
    specs = with_input_shapes(source, sample_shapes(source, shapes)).spec
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


def render_subgraphs(
    compiled: CompiledModel, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Iterator[RenderableType]:
    """Yield a summary and a table of the subgraphs with their devices."""
    subgraphs = compiled.placements[0].partition.subgraphs
    nodes = count_text(sum(len(s.node_names) for s in subgraphs), "node")
    text = f"{compiled.plan.name}: {nodes} in {count_text(len(subgraphs), 'subgraph')}"
    if len(compiled.placements) > 1:
        text += f", {len(compiled.placements)} replicas"
    yield text
    yield subgraph_table(subgraph_rows(compiled, shapes))
