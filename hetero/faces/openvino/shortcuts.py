"""Module-level functions of OpenVINO's API, which need no Core of the user."""

from __future__ import annotations

from pathlib import Path

from hetero.compile.compiled_model import CompiledModel
from hetero.devices.errors import ArgumentError, UnsupportedOperationError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import Source, read_model
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.unused_result import warn_if_unused
from hetero.devices.plugin.properties import Config
from hetero.shared_core import shared_core
from hetero.version import hetero_version


def compile_model(
    model: Source | Model, device_name: str = "HETERO", config: Config | None = None
) -> CompiledModel:
    """Compile a model on the Core that the process shares; the first call starts it.

    Parameters
    ----------
    model, device_name, config
        As for `Core.compile_model`.
    """
    return shared_core("ray").compile_model(model, device_name, config)


def save_model(
    model: Source | Model, output_model: str | Path, compress_to_fp16: bool = False
) -> None:
    """Write a model as an ONNX file; large weights go to ``<name>.data`` beside it.

    Raises
    ------
    UnsupportedOperationError
        `compress_to_fp16`: weights are written as they are.
    """
    if compress_to_fp16:
        raise UnsupportedOperationError(
            "compress_to_fp16: weights are written as the model has them; convert it first, as "
            "with onnxconverter_common.float16."
        )
    read_model(model).save(output_model)


def get_batch(model: Model) -> int | str | None:
    """Return the length of the batch's axis: of N in the inputs' layouts, the first without any.

    Raises
    ------
    ArgumentError
        Inputs differ in it.
    """
    found = {port.shape[_batch_axis(port)] for port in model.inputs if port.shape}
    if len(found) != 1:
        shown = ", ".join(f"{port.name!r} {port}" for port in model.inputs)
        raise ArgumentError(f"the inputs have no one batch: {shown}.")
    return next(iter(found))


def set_batch(model: Model, batch_size: int = -1) -> Model:
    """Return the model with another batch, of every input; -1 leaves it open."""
    shapes = {}
    for port in model.inputs:
        if port.shape:
            shape = port.partial_shape
            shape[_batch_axis(port)] = batch_size
            shapes[port.name] = shape
    changed = model.reshape(shapes)
    warn_if_unused("model = set_batch(model, ...)")
    return changed


def _batch_axis(port: TensorSpec) -> int:
    return max(port.layout.find("N"), 0)


def get_version() -> str:
    """Return this package's version."""
    return hetero_version()
