"""Shapes of loop outputs: what each iteration keeps, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime

from hetero.devices.model.reader import read_model
from hetero.partition.loop_shapes import with_loop_shapes
from tests.support.rows import for_each_row

DONE = "done = Identity(go)"


def loop(
    body: str,
    *,
    carried: str = "x",
    parameters: str = "float[] s",
    results: str = "float[] t",
    declared: str = "",
) -> onnx.ModelProto:
    outputs = ", ".join(f"y{i}" for i in range(results.count(",") + 1))
    constants = f"int64 trips = {{2}}, float[2, 3] k = {{1,2,3,4,5,6}}{declared}"
    ports = f"(int64 i, bool go, {parameters}) => (bool done, {results})"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[2, 3] x) => ({outputs}) <{constants}>
        {{ {outputs} = Loop(trips, , {carried}) <body = b {ports} {{ {body} {DONE} }}> }}"""
    model = onnx.parser.parse_model(text)
    for port in model.graph.output:
        port.type.tensor_type.elem_type = 1
    return model


def shapes(model: onnx.ModelProto) -> list[Any]:
    result = with_loop_shapes(read_model(model))
    specs = [result.spec(port.name) for port in model.graph.output]
    # ONNX's inference names some open dimensions.
    return [
        s.shape and tuple(size if isinstance(size, int) else None for size in s.shape)
        for s in specs
    ]


CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "a value that keeps its shape": ({"body": "t = Neg(s)"}, [(2, 3)]),
    "an axis that grows is open": ({"body": "t = Concat <axis = 0> (s, s)"}, [(None, 3)]),
    "a rank that grows is open": (
        {"body": "t = Unsqueeze(s, a)", "declared": ", int64[1] a = {0}"},
        [None],
    ),
    "the number of the iteration is a scalar": (
        {"body": "f = Cast <to = 1> (i) t = Add(s, f)"},
        [(2, 3)],
    ),
    "the condition of the iteration is a scalar": (
        {"body": "f = Cast <to = 1> (go) t = Add(s, f)"},
        [(2, 3)],
    ),
    "a scanned value has one more axis": (
        {"body": "t = Neg(s) u = Abs(s)", "results": "float[] t, float[] u"},
        [(2, 3), (None, 2, 3)],
    ),
    "a scanned scalar": (
        {"body": "t = Neg(s) u = Cast <to = 1> (go)", "results": "float[] t, float[] u"},
        [(2, 3), (None,)],
    ),
    "captured values count": (
        {
            "body": "u = MatMul(s, q) t = Identity(u)",
            "declared": ", float[3, 3] q = {1,2,3,4,5,6,7,8,9}",
        },
        [(2, 3)],
    ),
    # A matrix among the carried values must not pass for the condition or the number.
    "a carried scalar plus the condition": (
        {
            "body": "f = Cast <to = 1> (go) t = Add(s, f) v = Neg(r)",
            "carried": "z, x",
            "parameters": "float[] s, float[] r",
            "results": "float[] t, float[] v",
            "declared": ", float z = {1}",
        },
        [(), (2, 3)],
    ),
    "the number of the iteration plus a carried scalar": (
        {
            "body": "f = Cast <to = 1> (i) v = Neg(r) t = Add(s, f)",
            "carried": "x, z",
            "parameters": "float[] r, float[] s",
            "results": "float[] v, float[] t",
            "declared": ", float z = {1}",
        },
        [(2, 3), ()],
    ),
    "a captured constant is the shape of a value": (
        {"body": "t = Reshape(s, shape)", "declared": ", int64[2] shape = {2, 3}"},
        [(2, 3)],
    ),
    "a captured constant is another shape": (
        {"body": "t = Reshape(s, shape)", "declared": ", int64[2] shape = {3, 2}"},
        [(None, None)],
    ),
    "a captured constant is the shape of a scanned value": (
        {
            "body": "t = Neg(s) f = Cast <to = 1> (i) u = Expand(f, shape)",
            "results": "float[] t, float[] u",
            "declared": ", int64[2] shape = {2, 3}",
        },
        [(2, 3), (None, 2, 3)],
    ),
    "two carried values": (
        {
            "body": "t = Neg(s) v = Concat <axis = 1> (r, s)",
            "carried": "x, k",
            "parameters": "float[] s, float[] r",
            "results": "float[] t, float[] v",
        },
        [(2, 3), (2, None)],
    ),
    "values that swap": (
        {
            "body": "t = Identity(r) v = Concat <axis = 0> (s, s)",
            "carried": "x, k",
            "parameters": "float[] s, float[] r",
            "results": "float[] t, float[] v",
        },
        [(None, 3), (None, 3)],
    ),
}


@for_each_row("name", CASES)
def test_shapes_of_loop_outputs(name):
    options, expected = CASES[name]
    model = loop(**options)
    assert shapes(model) == expected
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for array, shape in zip(arrays, expected, strict=True):
        if shape is not None:
            assert len(array.shape) == len(shape)
            assert all(s in (None, size) for s, size in zip(shape, array.shape, strict=True))


def test_model_without_open_loops_is_unchanged():
    model = read_model(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
        )
    )
    assert with_loop_shapes(model) is model
