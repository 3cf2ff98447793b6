"""Conversion of models to OpenVINO's representation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

import openvino

from hetero.devices.model.model import Model
from hetero.devices.openvino.runtime import core

#: Weights up to this many bytes are passed in memory, more in a file that OpenVINO maps.
_IN_MEMORY_NBYTES: Final = 1 << 30


def convert(model: Model) -> tuple[openvino.Model, list[str], dict[str, str]]:
    """Convert a model; RuntimeError if OpenVINO cannot read it.

    Also returns the names of the converted model's inputs in its order, because OpenVINO may drop
    some, and the aliases: outputs that equal an input or another output, mapped to its name. These
    outputs are removed from the converted model, because OpenVINO does not fill their tensors.
    """
    converted_model = _read(model)
    inputs = _input_names(converted_model, [port.name for port in model.inputs])
    sources = [port.get_node().get_friendly_name() for port in converted_model.inputs]
    names = {(source, 0): name for source, name in zip(sources, inputs, strict=True)}
    aliases = {}
    for port, result in zip(model.outputs, converted_model.get_results(), strict=True):
        source = result.input_value(0)
        key = (source.get_node().get_friendly_name(), source.get_index())
        first = names.setdefault(key, port.name)
        if first != port.name:
            aliases[port.name] = first
            converted_model.remove_result(result)
    return converted_model, inputs, aliases


def _input_names(converted_model: openvino.Model, inputs: list[str]) -> list[str]:
    """Return the original names of a converted model's inputs.

    An input that is also an output may have lost its name in OpenVINO.
    """
    matches = [
        next((name for name in port.get_names() if name in inputs), "")
        for port in converted_model.inputs
    ]
    others = iter([name for name in inputs if name not in matches])
    names = [match or next(others) for match in matches]
    if "" in matches and next(others, None) is not None:
        raise RuntimeError(
            f"cannot match OpenVINO's inputs to {inputs}: it renamed one and dropped others"
        )
    return names


def _read(model: Model) -> openvino.Model:
    if model.weight_nbytes <= _IN_MEMORY_NBYTES:
        return core().read_model(model.to_bytes())
    with tempfile.TemporaryDirectory(prefix="hetero-openvino-") as folder:
        path = Path(folder) / "model.onnx"
        model.save(path)
        return core().read_model(path)
