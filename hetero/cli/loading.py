"""Compiling a model or importing a blob: what commands do that take either."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from devices.model import Model
from hetero.cli.options import affinity_argument, progress
from hetero.compiled_model import CompiledModel
from hetero.core import Core
from scheduler.blob_format import MAGIC


def remap_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--remap OLD=NEW``."""
    return click.option(
        "--remap", multiple=True, metavar="OLD=NEW", callback=_pairs,
        help="For a blob: the device here that takes the place of one it was compiled for.",
    )(function)  # fmt: skip


def is_blob(model: str) -> bool:
    """Whether a model argument is a blob's file."""
    path = Path(model)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def load(
    core: Core,
    model: str | Model,
    device: str,
    config: dict[str, Any],
    pins: tuple[str, ...],
    remap: dict[str, str],
) -> CompiledModel:
    """Import a blob, or compile a model.

    Raises
    ------
    click.UsageError
        Options that only the other of the two has.
    """
    if isinstance(model, str) and is_blob(model):
        if pins:
            raise click.UsageError("--affinity is for models; a blob is cut already.")
        source = click.get_current_context().get_parameter_source("device")
        given = source is not click.core.ParameterSource.DEFAULT
        with progress(core, f"importing {model}"):
            return core.import_model(model, device if given else None, config, remap)
    if remap:
        raise click.UsageError("--remap is for blobs; name the devices with --device.")
    with progress(core, f"compiling {model.name if isinstance(model, Model) else model}"):
        return core.compile_model(model, device, config, affinity=affinity_argument(pins))


def _pairs(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Any:
    pairs = {}
    for part in value:
        old, equals, new = part.partition("=")
        if not (old and equals and new):
            raise click.BadParameter(f"{part!r}: wanted OLD=NEW, as ORT=CPU")
        pairs[old] = new
    return pairs
