"""Raising the operator set of a model."""

from __future__ import annotations

from copy import deepcopy

from hetero.devices.errors import ModelError
from hetero.devices.model.model import Model
from hetero.devices.model.reader import read_model


def upgrade_opset(model: Model, version: int) -> Model:
    """Return the model at a newer version of the standard operators, by onnx's converter.

    ModelError if it cannot convert the model.
    """
    from onnx import version_converter

    proto = model.to_proto()
    try:
        converted = read_model(version_converter.convert_version(proto, version))
    except (ModelError, RuntimeError, ValueError) as error:
        raise ModelError(
            f"model {model.name!r} is of opset {model.opset_imports.get('', 0)}, this needs "
            f"{version}, and onnx's converter fails: {error}. Export the model for opset {version} "
            "or newer."
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
