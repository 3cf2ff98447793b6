"""Output types of the body of a loop that makes no trip, which give its scan outputs' types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

from hetero.devices.interpreter.implementations import Scope
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.type_inference import infer_types

#: Element type and shape (a size, symbol or None for each axis) of one output; None if unknown.
BodyOutput = tuple[np.dtype | None, tuple[int | str | None, ...] | None]


def body_outputs(
    graph: onnx.GraphProto, captures: Sequence[str], values: Sequence[Any], scope: Scope
) -> list[BodyOutput]:
    """Infer the type of each of a body's outputs by ONNX's shape inference.

    `values` are the inputs and then the captures of a call; they give types to the values whose
    types the body does not declare.
    """
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.graph.CopyFrom(graph)
    inputs = {info.name: info for info in model.graph.input}
    for name, value in zip((*inputs, *captures), values, strict=True):
        if hasattr(value, "dtype") and not (
            name in inputs and inputs[name].type.WhichOneof("value")
        ):
            info = inputs.get(name) or model.graph.input.add()
            info.CopyFrom(TensorSpec.from_array(name, value).to_proto())
    for domain, version in scope.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.functions.extend(scope.functions.values())
    specs = map(TensorSpec.from_proto, infer_types(model).output)
    return [(spec.dtype, spec.shape) for spec in specs]
