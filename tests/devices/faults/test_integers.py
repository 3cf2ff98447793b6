"""Integers that ONNX Runtime rounds, truncates or saturates: the query notes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.support.core_fixtures import core_fixture

core = core_fixture("module")
#: Operator -> result of [2**53 + 1, 2] (int64), and of [2**31 - 1, 2] (int32) by wrap-around.
RESULTS = {
    "ReduceSum": (2**53 + 3, 1 - 2**31),
    "ReduceL1": (2**53 + 3, 1 - 2**31),
    "ReduceProd": (2**54 + 2, -2),
    "Einsum": (2**53 + 3, 1 - 2**31),
}


@pytest.mark.parametrize("operator", RESULTS)
def test_integer_reduction_is_noted_and_verified(core, operator):
    """If ORT alone gives the expected results, it computes integers exactly: remove the notes."""
    attributes = 'equation = "i->"' if operator == "Einsum" else "keepdims = 0"
    wide, narrow = RESULTS[operator]
    rows = (("int64", [2**53 + 1, 2], wide), ("int32", [2**31 - 1, 2], narrow))
    for element_type, values, expected in rows:
        proto = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["": 20]> g ({element_type}[n] x) => '
            f"({element_type} y) {{y = {operator}<{attributes}>(x)}}"
        )
        x = np.array(values, element_type)
        model = core.read_model(proto)
        (note,) = core.query_model(model, "HETERO:ORT,CPU").notes.values()
        assert "saturates" in note
        assert core.compile_model(model, "ORT")(x)[0] != expected
        compiled = core.compile_model(model, "HETERO:ORT,CPU", {"VERIFY": "YES"})
        assert compiled(x)[0] == expected


@pytest.mark.parametrize("element_type", ["uint8", "int8", "int32"])
def test_interpolated_integers_are_noted(core, element_type):
    """If ONNX Runtime gives the expected results, it rounds: remove the notes."""
    proto = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 19]> g ({element_type}[1,1,1,2] x) => '
        f"""({element_type}[1,1,1,4] y) <float[4] s = {{1, 1, 1, 2}}>
        {{y = Resize<mode = "linear">(x, , s)}}"""
    )
    x = np.array([[[[7, 10]]]], element_type)
    (note,) = core.query_model(proto, "HETERO:ORT,CPU").notes.values()
    assert "truncated" in note
    (expected,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(core.compile_model(proto, "CPU")(x)[0], expected)
    difference = expected - core.compile_model(proto, "ORT")(x)[0]
    assert difference.min() == 0
    assert difference.max() == 1
