"""What needs no Core of the user's: compiling with one that all share, and writing a model."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from devices.model.model import Model
from devices.model.reader import Source, read_model
from devices.plugin.properties import Config
from hetero.compile.compiled_model import CompiledModel
from hetero.core import Core
from hetero.devices import ExecutorKind
from hetero.version import hetero_version

_lock: Final = threading.Lock()
_shared: Final[dict[ExecutorKind, Core]] = {}


def compile_model(
    model: Source | Model, device_name: str = "HETERO", config: Config | None = None
) -> CompiledModel:
    """Compile a model on a Core that the process keeps to its end, started on the first call.

    Parameters
    ----------
    model, device_name, config
        As for `Core.compile_model`.
    """
    return shared_core("ray").compile_model(model, device_name, config)


def shared_core(executor: ExecutorKind) -> Core:
    """Return the Core of an executor that the process keeps to its end."""
    with _lock:
        if executor not in _shared:
            _shared[executor] = Core(executor)
        return _shared[executor]


def save_model(model: Source | Model, output_model: str | Path) -> None:
    """Write a model as an ONNX file; large weights go to ``<name>.data`` beside it."""
    read_model(model).save(output_model)


def get_version() -> str:
    """Return this package's version."""
    return hetero_version()
