"""Module-level functions of OpenVINO's API: compile, save, batch sizes, and the version."""

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
    """Compile a model on the process's shared Core, which the first call starts.

    Parameters
    ----------
    model, device_name, config
        As for `Core.compile_model`.
    """
    return shared_core("ray").compile_model(model, device_name, config)


def save_model(
    model: Source | Model, output_model: str | Path, compress_to_fp16: bool = False
) -> None:
    """Write a model as an ONNX file; large weights go to ``<name>.data`` in the same folder.

    Raises
    ------
    UnsupportedOperationError
        If `compress_to_fp16` is true.
    """
    if compress_to_fp16:
        raise UnsupportedOperationError(
            "compress_to_fp16 is not supported; convert the model first, for example with "
            "onnxconverter_common.float16."
        )
    read_model(model).save(output_model)


def get_batch(model: Model) -> int | str | None:
    """Return the batch size: the length of axis N of the inputs' layouts, by default the first.

    Raises
    ------
    ArgumentError
        If inputs have different batch sizes.
    """
    batch_sizes = {port.shape[_batch_axis(port)] for port in _batch_ports(model) if port.shape}
    if len(batch_sizes) != 1:
        ports = ", ".join(f"{port.name!r} {port}" for port in model.inputs)
        raise ArgumentError(f"expected one batch size in all inputs, got {ports}.")
    return next(iter(batch_sizes))


def set_batch(model: Model, batch_size: int = -1) -> Model:
    """Return the model with another batch size; -1 makes it dynamic.

    It applies to the inputs with N in their layouts, or to the first axis of every input if no
    layout has N. A model of `hetero.openvino` changes in place.
    """
    shapes = {}
    for port in _batch_ports(model):
        if port.shape:
            shape = port.partial_shape
            shape[_batch_axis(port)] = batch_size
            shapes[port.name] = shape
    reshaped = model.reshape(shapes)
    if reshaped is not model:
        warn_if_unused("model = set_batch(model, ...)")
    return reshaped


def _batch_ports(model: Model) -> list[TensorSpec]:
    return [port for port in model.inputs if "N" in port.layout] or [*model.inputs]


def _batch_axis(port: TensorSpec) -> int:
    return max(port.layout.find("N"), 0)


def get_version() -> str:
    """Return this package's version."""
    return hetero_version()
