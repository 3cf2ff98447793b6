"""Conversion of a model to a newer operator set."""

from __future__ import annotations

from copy import deepcopy

from hetero.devices.errors import ModelError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model


def upgrade_opset(model: Model, version: int) -> Model:
    """Return the model converted to a newer opset by onnx's version converter.

    Raises ModelError if the conversion fails.
    """
    from onnx import version_converter

    proto = model.to_proto()
    try:
        converted = read_model(version_converter.convert_version(proto, version))
    except (ModelError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"model {model.name!r}: expected opset {version} or newer, got "
            f"{model.opset_imports.get('', 0)}, and onnx cannot convert it: {error}. Export the "
            f"model for opset {version}."
        ) from error
    header = deepcopy(model.header)
    for entry in header.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = version
    header.ir_version = max(header.ir_version, converted.header.ir_version)
    return converted.replace(
        header=header,
        inputs=model.inputs,
        outputs=model.outputs,
        optional_inputs=model.optional_inputs,
    )
