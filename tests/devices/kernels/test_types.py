"""Kernels accept every float type that the schema allows, and return the type that it declares.

Each operator runs on a case of ONNX's suite, converted to each type; results are compared with
those of float64.
"""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx.defs import OpSchema

from hetero.devices.conformance.onnx_suite import Case, backend_cases
from hetero.devices.kernels import KERNELS
from hetero.devices.model.attributes import attribute_value
from tests.support.kernel_oracle import run_kernel
from tests.support.rows import for_each_row


def dtype(type_name: str) -> Any:
    """Return the element type of ``tensor(...)``."""
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(type_name[7:-1].upper()))


BFLOAT16 = dtype("tensor(bfloat16)")

#: Relative and absolute tolerance of a result in this type.
TOLERANCES = {"float16": 2e-2, "bfloat16": 1e-1, "float": 1e-3}

#: Operators whose results in one type cannot be compared with those in another.
LEFT_OUT = {
    "Bernoulli": "random",
    "Multinomial": "random",
    "RandomNormalLike": "random",
    "RandomUniformLike": "random",
    "Dropout": "random when it trains",
    "BitCast": "wants types of equal width",
    "Cast": "the result's type is an attribute",
    "CastLike": "the result's type is the second input's",
    "QuantizeLinear": "the types of quantised and real numbers depend on each other",
    "DequantizeLinear": "the types of quantised and real numbers depend on each other",
    "DynamicQuantizeLinear": "a step of the quantised scale is not a float's tolerance",
    "SequenceMap": "has a body",
}


@cache
def samples() -> dict[str, Case]:
    """Return one case of a single node for each operator that reads floats, a seeded choice."""
    candidates: dict[str, list[Case]] = {}
    for case in backend_cases():
        if case.kind == "node" and case.case.model is not None:
            nodes = case.case.model.graph.node
            if len(nodes) == 1 and not any(a.HasField("g") for a in nodes[0].attribute):
                candidates.setdefault(nodes[0].op_type, []).append(case)
    cases_by_operator = {}
    for op_type, cases in candidates.items():
        domain = cases[0].model().graph.node[0].domain
        real = [c for c in cases if any(is_float(x) for x in c.data_sets(c.model())[0][0])]
        if real and op_type not in LEFT_OUT and KERNELS.versions(domain, op_type):
            cases_by_operator[op_type] = real[zlib.crc32(op_type.encode()) % len(real)]
    return cases_by_operator


def is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype == np.float32


def test_nearly_every_kernel_has_a_case():
    assert len(samples()) > 120


@for_each_row("op_type", sorted(samples()))
def test_types(op_type):
    case = samples()[op_type]
    model = case.model()
    (node,) = model.graph.node
    (opset,) = (e.version for e in model.opset_import if e.domain == node.domain)
    schema = onnx.defs.get_schema(op_type, opset, node.domain)
    values = iter(case.data_sets(model)[0][0])
    inputs = [next(values) if name else None for name in node.input]
    attributes = {a.name: attribute_value(a) for a in node.attribute}
    formals = [schema.inputs[min(i, len(schema.inputs) - 1)] for i in range(len(inputs))]
    real = {f.type_str for f, x in zip(formals, inputs, strict=True) if is_float(x)}

    def run(name: str) -> list[Any]:
        changed = [
            x.astype(BFLOAT16).astype(dtype(name))  # numbers that every type holds
            if is_float(x) and name in types_of(schema, f.type_str)
            else x
            for f, x in zip(formals, inputs, strict=True)
        ]
        return run_kernel(op_type, changed, attributes, opset, node.domain, len(node.output))

    names = {name for type_str in real for name in types_of(schema, type_str)}
    exact = run("tensor(double)") if "tensor(double)" in names else run("tensor(float)")
    for name in ("float16", "bfloat16", "float"):
        if f"tensor({name})" not in names:
            continue
        results = zip(run(f"tensor({name})"), exact, schema.outputs, strict=False)
        for actual, expected, formal in results:
            if formal.type_str in real and isinstance(actual, np.ndarray):
                assert actual.dtype == dtype(f"tensor({name})"), (name, formal.name)
            if isinstance(actual, np.ndarray) and actual.dtype.kind in "fV":
                with np.errstate(over="ignore"):
                    rounded = expected.astype(actual.dtype).astype(np.float64)
                np.testing.assert_allclose(
                    actual.astype(np.float64),
                    rounded,
                    rtol=TOLERANCES[name],
                    atol=TOLERANCES[name],
                    err_msg=f"{name} {formal.name}",
                )


def types_of(schema: OpSchema, type_str: str) -> list[str]:
    types = [c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == type_str]
    return list(types[0]) if types else [type_str]
