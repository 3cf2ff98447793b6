"""Models as OpenVINO reads them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import openvino

from hetero.devices.model.model import Model
from hetero.devices.openvino.runtime import core

#: Weights up to this many bytes are handed over in memory, more in a file that is mapped.
_IN_MEMORY_NBYTES: Final = 1 << 30


def convert(model: Model) -> tuple[openvino.Model, list[str], dict[str, str]]:
    """Return a model as OpenVINO reads it; RuntimeError if it cannot.

    With it the inputs that it has, in its order: it may leave some out. And outputs that are other
    values under a new name, and are taken off: OpenVINO does not fill the tensor that it is given
    for them. They map to an input, or to an output that stays.
    """
    read = _read(model)
    inputs = _input_names(read, [port.name for port in model.inputs])
    sources = [port.get_node().get_friendly_name() for port in read.inputs]
    known = {(source, 0): name for source, name in zip(sources, inputs, strict=True)}
    same = {}
    for port, result in zip(model.outputs, read.get_results(), strict=True):
        source = result.input_value(0)
        key = (source.get_node().get_friendly_name(), source.get_index())
        first = known.setdefault(key, port.name)
        if first != port.name:
            same[port.name] = first
            read.remove_result(result)
    return read, inputs, same


def _input_names(read: openvino.Model, inputs: list[str]) -> list[str]:
    """Return which of `inputs` OpenVINO's are; one that is given out may have lost its name."""
    found = [next((n for n in port.get_names() if n in inputs), "") for port in read.inputs]
    lost = iter([name for name in inputs if name not in found])
    named = [name or next(lost) for name in found]
    if "" in found and next(lost, None) is not None:
        raise RuntimeError(f"it is not clear which of the inputs {inputs} it takes")
    return named


def _read(model: Model) -> openvino.Model:
    if model.weight_nbytes <= _IN_MEMORY_NBYTES:
        return core().read_model(model.to_bytes())
    with tempfile.TemporaryDirectory(prefix="hetero-openvino-") as folder:
        path = Path(folder) / "model.onnx"
        model.save(path)
        return core().read_model(path)
