"""Kernels take every element type that the schema allows, and give the type that it says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.defs import OpSchema

from devices.kernels import KERNELS
from tests.kernels.oracle import run_kernel

FAMILIES = {"elementwise", "logical", "activation", "reduction", "softmax", "quantize"}
OLDEST = 6

#: What a node of one-element tensors cannot do without.
ATTRIBUTES: dict[str, dict[str, Any]] = {
    "BitShift": {"direction": "LEFT"},
    "Mod": {"fmod": 1},
    "Softmax": {"axis": 0},
    "LogSoftmax": {"axis": 0},
    "Hardmax": {"axis": 0},
    "QuantizeLinear": {"axis": 0},
    "DequantizeLinear": {"axis": 0},
}
#: The types of quantised and real numbers are not free of one another; other tests pair them.
PAIRED = {"QuantizeLinear", "DequantizeLinear", "QLinearMatMul"}
#: Inputs that name axes.
AXES = {"axis", "axes"}


def dtype(type_name: str) -> Any:
    found = re.fullmatch(r"tensor\((\w+)\)", type_name)
    assert found
    return np.dtype(helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(found[1].upper())))


def type_cases() -> list[Any]:
    cases = []
    for schema in onnx.defs.get_all_schemas_with_history():
        kernel = KERNELS.find(schema.domain, schema.name, schema.since_version)
        if kernel is None or schema.domain or schema.name in PAIRED:
            continue
        function = getattr(kernel.function, "__wrapped__", kernel.function)
        if function.__module__.rpartition(".")[2] not in FAMILIES or "Conv" in schema.name:
            continue
        if schema.since_version < OLDEST:
            continue
        for constraint in schema.type_constraints:
            for name in constraint.allowed_type_strs:
                if "complex" not in name and "float6" not in name:
                    case = f"{schema.name}-{schema.since_version}-{name}"
                    cases.append(pytest.param(schema, constraint.type_param_str, name, id=case))
    return cases


@pytest.mark.parametrize(("schema", "parameter", "name"), type_cases())
def test_types(schema: OpSchema, parameter: str, name: str) -> None:
    types = {c.type_param_str: c.allowed_type_strs[0] for c in schema.type_constraints}
    types[parameter] = name

    def of(formal: OpSchema.FormalParameter) -> Any:
        return dtype(types.get(formal.type_str, formal.type_str))

    inputs: list[Any] = []
    for formal in schema.inputs:
        kind = of(formal)
        value = np.zeros(1, np.int64) if formal.name in AXES else np.ones((1,))
        inputs.append(value.astype(str).astype(object) if kind.kind == "O" else value.astype(kind))
    if schema.name == "MatMulInteger":
        inputs = [value.reshape(1, 1) for value in inputs[:2]] + inputs[2:]
    results = run_kernel(
        schema.name, inputs, ATTRIBUTES.get(schema.name), schema.since_version,
        n_outputs=len(schema.outputs),
    )  # fmt: skip
    for result, formal in zip(results, schema.outputs, strict=True):
        assert result.dtype == of(formal), formal.name
