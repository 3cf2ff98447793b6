"""Output types of the body of a loop that makes no trip, which give its scan outputs' types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import onnx

from hetero.devices.interpreter.implementations import Scope
from hetero.devices.model.model import Constant
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.type_inference import infer_types

#: Element type and shape (a size, symbol or None for each axis) of one output; None if unknown.
BodyOutput = tuple[np.dtype | None, tuple[int | str | None, ...] | None]


#: Captured integers up to this many elements may be shapes, axes or sizes.
_LARGEST_SHAPE: Final = 64


def body_outputs(
    graph: onnx.GraphProto, captures: Sequence[str], values: Sequence[Any], scope: Scope
) -> list[BodyOutput]:
    """Infer the type of each of a body's outputs by ONNX's shape inference.

    `values` are the inputs and then the captures of a call. Their types and shapes, and the
    elements of captured shapes, count more than what the body declares.
    """
    model = onnx.ModelProto(ir_version=onnx.IR_VERSION)
    model.graph.CopyFrom(graph)
    inputs = {info.name: info for info in model.graph.input}
    for name, value in zip((*inputs, *captures), values, strict=True):
        if not hasattr(value, "dtype"):
            continue
        if name not in inputs and _may_be_shape(value):
            model.graph.initializer.append(Constant(name, value).to_proto())
            continue
        info = inputs.get(name) or model.graph.input.add()
        info.CopyFrom(TensorSpec.from_array(name, value).to_proto())
    for domain, version in scope.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.functions.extend(scope.functions.values())
    declared = [TensorSpec.from_proto(info) for info in graph.output]
    for info in model.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    inferred = map(TensorSpec.from_proto, infer_types(model).output)
    return [_with_declared_sizes(*specs) for specs in zip(inferred, declared, strict=True)]


def _may_be_shape(value: Any) -> bool:
    is_integer = isinstance(value, np.ndarray) and value.dtype.kind == "i"
    return is_integer and value.size <= _LARGEST_SHAPE


def _with_declared_sizes(inferred: TensorSpec, declared: TensorSpec) -> BodyOutput:
    """Return an inferred type; sizes that inference does not find are those that are declared."""
    shape, hint = inferred.shape, declared.shape
    if shape is None:
        shape = hint
    elif hint is not None and len(hint) == len(shape):
        shape = tuple(n if isinstance(n, int) else m for n, m in zip(shape, hint, strict=True))
    return inferred.dtype or declared.dtype, shape
