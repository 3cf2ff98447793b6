"""Every kernel has the signature of its operator's schema, at each opset that it supports."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, helper
from onnx.defs import OpSchema
from onnxruntime.capi import onnxruntime_pybind11_state as runtime_state

from hetero.devices.kernels import ALL, KERNELS, Kernel, op
from hetero.devices.kernels.microsoft import MICROSOFT
from tests.support.rows import for_each_row

#: The oldest opset in ONNX's suite.
OLDEST = 6
OPTION = OpSchema.FormalParameterOption
#: Kernels of operators that ONNX defines; another test compares those of ONNX Runtime with it.
STANDARD = [
    kernel
    for kernel in KERNELS
    if kernel.domain not in ("hetero", MICROSOFT)
    and kernel.op_type != "SimplifiedLayerNormalization"
]

SCHEMAS: dict[tuple[str, str], dict[int, OpSchema]] = {}
for _schema in onnx.defs.get_all_schemas_with_history():
    SCHEMAS.setdefault((_schema.domain, _schema.name), {})[_schema.since_version] = _schema


@cache
def served() -> dict[str, list[tuple[Kernel, OpSchema]]]:
    """Yield each operator's kernels with each schema version that they implement."""
    cases: dict[str, list[tuple[Kernel, OpSchema]]] = {}
    for kernel in STANDARD:
        for version, schema in sorted(SCHEMAS.get((kernel.domain, kernel.op_type), {}).items()):
            later = [v for v in SCHEMAS[kernel.domain, kernel.op_type] if v > version]
            # The last opset at which the schema is valid, and its kernel.
            last = min(later) - 1 if later else onnx.defs.onnx_opset_version()
            if kernel.domain == "" and last < OLDEST:
                continue
            at = max(version, OLDEST) if kernel.domain == "" else version
            if KERNELS.find(kernel.domain, kernel.op_type, at) is kernel:
                cases.setdefault(kernel.op_type, []).append((kernel, schema))
    return cases


def default(attribute: OpSchema.Attribute) -> Any:
    """Return the schema's default in a kernel's form, or the empty parameter if there is none."""
    if attribute.required:
        return inspect.Parameter.empty
    if attribute.default_value.type == AttributeProto.UNDEFINED:
        return None
    value = helper.get_attribute_value(attribute.default_value)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return tuple(v.decode() if isinstance(v, bytes) else v for v in value)
    return value


def positional(kernel: Kernel) -> list[inspect.Parameter]:
    """Return the parameters of inputs, without the first parameter, which is the namespace."""
    parameters = list(inspect.signature(kernel.function).parameters.values())[1:]
    inputs = [p for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    return [p for p in inputs if p.name not in kernel.absent]


def variadic(kernel: Kernel) -> bool:
    parameters = inspect.signature(kernel.function).parameters.values()
    return any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def test_every_kernel_is_of_an_operator():
    unknown = [
        f"{kernel.domain}::{kernel.op_type}"
        for kernel in STANDARD
        if (kernel.domain, kernel.op_type) not in SCHEMAS
    ]
    assert not unknown, f"no schema for {unknown}"


def test_every_kernel_answers_for_a_schema():
    answering = {id(kernel) for cases in served().values() for kernel, _ in cases}
    idle = [
        f"{kernel.op_type} since {kernel.since}"
        for kernel in STANDARD
        if id(kernel) not in answering
    ]
    assert not idle, f"registered for no opset from {OLDEST} on: {idle}"


@for_each_row("op_type", served())
def test_signature(op_type):
    for kernel, schema in served()[op_type]:
        compare_signatures(kernel, schema)


def compare_signatures(kernel: Kernel, schema: OpSchema) -> None:
    parameters = inspect.signature(kernel.function).parameters.values()
    ours = {p.name: p.default for p in parameters if p.name in kernel.attributes}
    theirs = {name: default(attribute) for name, attribute in schema.attributes.items()}
    for name in ours.keys() & theirs.keys():
        # A kernel may compute a default that the schema leaves open.
        if theirs[name] is None:
            assert ours[name] is not inspect.Parameter.empty, f"{name} is optional in the schema"
            theirs[name] = ours[name]
        # The schema has floats of 32 bits: its 0.009999999776482582 means 0.01.
        elif isinstance(theirs[name], float):
            assert np.float32(ours[name]) == np.float32(theirs[name]), name
            theirs[name] = ours[name]
    assert ours == theirs, f"{kernel.op_type} at opset {schema.since_version}"

    inputs = positional(kernel)
    if any(i.option is OPTION.Variadic for i in schema.inputs):
        assert variadic(kernel), "inputs are variadic"
        return
    singles = sum(i.option is OPTION.Single for i in schema.inputs)
    required = sum(p.default is inspect.Parameter.empty for p in inputs)
    assert required <= singles, "an input that the schema makes optional is required"
    assert variadic(kernel) or len(inputs) == len(schema.inputs)


def test_signatures_of_microsoft_operators():
    theirs = {(s.domain, s.name): s for s in runtime_state.get_all_operator_schema()}
    own = [kernel for kernel in KERNELS if (kernel.domain, kernel.op_type) in theirs]
    own = [k for k in own if k not in STANDARD]
    assert len(own) > 25
    for kernel in own:
        schema = theirs[kernel.domain, kernel.op_type]
        if kernel.op_type not in ("QuantizeLinear", "DequantizeLinear", "TransposeMatMul"):
            assert kernel.attributes <= schema.attributes.keys(), kernel.op_type
        required = [n for n, a in schema.attributes.items() if a.required]
        assert set(required) <= kernel.attributes, kernel.op_type
        assert len(positional(kernel)) <= len(schema.inputs), kernel.op_type


def test_host_inputs_are_inputs():
    for kernel in KERNELS:
        count = len(positional(kernel))
        assert variadic(kernel) or all(p == ALL or 0 <= p < count for p in kernel.host), (
            f"{kernel.op_type} has {count} inputs, and host={kernel.host}"
        )


@pytest.mark.parametrize(
    ("op_type", "name", "opset"),
    [
        ("LSTM", "layout", 14),
        ("AveragePool", "dilations", 19),
        ("Attention", "left_window_size", 25),
    ],
)
def test_attribute_of_a_later_opset_is_unknown_before(op_type, name, opset):
    before, after = (KERNELS.find("", op_type, at) for at in (opset - 1, opset))
    assert before is not None
    assert after is not None
    assert before.function is after.function
    assert name not in before.attributes
    assert name in after.attributes


def test_what_was_added_is_a_parameter():
    with pytest.raises(ValueError, match="no parameter 'gain' to be added or removed"):
        op("Relu", since=100, additions={"gain": 101})(lambda xp, x: x)
