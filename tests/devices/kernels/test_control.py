"""If, Loop, Scan and SequenceMap on the CPU device, against ONNX Runtime on whole models."""

from __future__ import annotations

from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import parser

from tests.support.comparison import assert_close
from tests.support.kernel_oracle import run_kernel
from tests.support.rows import for_each_row
from tests.support.small_models import run_cpu, run_onnxruntime

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def check_model(model: onnx.ModelProto | str, inputs):
    """Compare the CPU device's outputs with ONNX Runtime's."""
    if isinstance(model, str):
        model = parser.parse_model(model)
    feeds = dict(zip((i.name for i in model.graph.input), inputs, strict=True))
    actual, expected = run_cpu(model, feeds), run_onnxruntime(model, feeds)
    assert_close(actual, expected, 1e-6, 1e-6, model.graph.node[0].op_type)
    return actual


LOOP = """<ir_version: 8, opset_import: ["" : {opset}]>
agraph (int64 m, bool c, float[3] state) => (float[3] last, float[n, 3] scanned) {{
  last, scanned = Loop (m, c, state) <body = body
    (int64 i, bool going, float[3] s) => (bool again, float[3] t, float[3] out) {{
      step = Cast <to = 1> (i)
      t = Add (s, step)
      out = Mul (t, step)
      limit = Constant <value = float {{6.0}}> ()
      top = ReduceMax <keepdims = 0> (t)
      again = Less (top, limit)
    }}>
}}"""


@pytest.mark.parametrize("opset", [9, 11, 13])
@pytest.mark.parametrize(("trips", "going"), [(3, True), (100, True), (1, True)])
def test_loop(opset, trips, going):
    inputs = [np.array(trips), np.array(going), X[0]]
    check_model(LOOP.format(opset=opset), inputs)


#: The body captures w.
NO_TRIPS = """<ir_version: 8, opset_import: ["" : 17]>
agraph (int64 m, bool c, float[3] s, float[2, 1] w) => (float[3] t, float[n, 2, 3] u, int64[n] k) {
  t, u, k = Loop (m, c, s) <body = body
    (int64 i, bool going, float[3] v) => (bool again, float[3] t, float[2, 3] u, int64 k) {
      again = Identity (going)
      t = Neg (v)
      u = Mul (v, w)
      k = Identity (i)
    }>
}"""


@pytest.mark.parametrize(("trips", "going"), [(0, True), (5, False)])
def test_loop_without_a_trip(trips, going):
    inputs = [np.array(trips), np.array(going), X[0], X[:2, :1]]
    _, scanned, _ = check_model(NO_TRIPS, inputs)
    assert scanned.shape == (0, 2, 3)


def test_loop_without_a_trip_and_without_types():
    model = parser.parse_model(NO_TRIPS)
    body = model.graph.node[0].attribute[0].g
    for info in (*body.input, *body.output):
        info.ClearField("type")
    inputs = {"m": np.array(0), "c": np.array(True), "s": X[0], "w": X[:2, :1]}
    last, scanned, numbers = run_cpu(model, inputs)
    assert np.array_equal(last, X[0])
    assert (scanned.shape, scanned.dtype) == ((0, 2, 3), np.float32)
    assert (numbers.shape, numbers.dtype) == ((0,), np.int64)


def test_loop_without_a_trip_in_a_body():
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph (int64 m, bool c, float[3] s) => (float[n, 3] y) {
      y = If (c) <
        then_branch = yes () => (float[n, 3] a) {
          t, a = Loop (m, c, s) <body = body
            (int64 i, bool going, float[3] v) => (bool going, float[3] t, float[3] u) {
              t = Neg (v)
              u = Abs (v)
            }>
        },
        else_branch = no () => (float[1, 3] b) { z = Constant <value_ints = [0]> ()
          b = Unsqueeze (s, z) }>
    }"""
    (y,) = check_model(text, [np.array(0), np.array(True), X[0]])
    assert y.shape == (0, 3)


@pytest.mark.parametrize("declared", ["float[a,b] y", "float y", None])
def test_loop_without_a_trip_infers_sizes_from_captured_shapes(declared):
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]> g (int64 n) => (float[k,l,m] s)
        <int64[2] shape = {{2, 3}}> {{
            yes = Constant <value = bool {{1}}> ()
            s = Loop (n, yes) <body = b (int64 i, bool c) => (bool d, {declared or "float y"}) {{
                d = Identity(c)
                one = Cast <to = 1> (i)
                y = Expand(one, shape)
            }}>
        }}"""
    )
    if declared is None:
        model.graph.node[-1].attribute[0].g.output[1].ClearField("type")
    (result,) = run_cpu(model, {"n": np.array(0)})
    assert result.shape == (0, 2, 3)


def test_loop_without_a_trip_whose_output_types_are_unknown():
    body = Mock(outputs=lambda *inputs: [(np.dtype(bool), ()), (None, None)])
    with pytest.raises(ValueError, match=r"no trip.*Declare the type in the body"):
        run_kernel("Loop", [np.array(0)], {"body": body}, n_outputs=1)


def test_loop_without_limit_carries_any_type():
    def body(number, going, sequence):
        return np.array(int(number) < 4), [*sequence, number]

    (numbers,) = run_kernel("Loop", [None, None, []], {"body": body})
    assert [int(n) for n in numbers] == [0, 1, 2, 3, 4]
    assert {n.dtype for n in numbers} == {np.dtype(np.int64)}


IF = """<ir_version: 8, opset_import: ["" : {opset}]>
agraph (bool c) => (float y) {{
  y = If (c) <
    then_branch = yes () => (float a) {{ a = Constant <value = float {{1.0}}> () }},
    else_branch = no () => (float b) {{ b = Constant <value = float {{2.0}}> () }}>
}}"""


@pytest.mark.parametrize("opset", [7, 11, 13, 21])
@pytest.mark.parametrize("cond", [True, False])
def test_if(opset, cond):
    check_model(IF.format(opset=opset), [np.array(cond)])


SCAN = """<ir_version: 8, opset_import: ["" : {opset}]>
agraph (float[2] s, float[{x}] x, float[{z}] z) => (float[2] last, float[p, q] y, float[r, t] w) {{
  last, y, w = Scan <num_scan_inputs = 2, {attributes} body = body
    (float[2] s0, float[2] x0, float[2] z0) => (float[2] s1, float[2] y0, float[2] w0) {{
      s1 = Add (s0, x0)
      y0 = Mul (s1, z0)
      w0 = Sub (s1, z0)
    }}> (s, x, z)
}}"""

SCANS = [
    {},
    {"scan_input_directions": (1, 0)},
    {"scan_output_directions": (1, 0)},
    {"scan_input_axes": (1, 0)},
    {"scan_output_axes": (1, 0)},
    {"scan_input_axes": (-1, 0), "scan_input_directions": (1, 1), "scan_output_axes": (-1, 1)},
]


# Opset 11 added negative axes, the last case.
@for_each_row(
    "opset, attributes",
    [*((9, a) for a in SCANS[:-1]), *((opset, a) for opset in (11, 16) for a in SCANS)],
)
def test_scan(opset, attributes):
    x, z = X[:3, :2], X[1:, 1:]
    if "scan_input_axes" in attributes:
        x = np.ascontiguousarray(x.T)
    text_of_attributes = "".join(
        f"{name} = {list(values)}, " for name, values in attributes.items()
    )
    text = SCAN.format(opset=opset, attributes=text_of_attributes, x="a, b", z="c, d")
    check_model(text, [X[0, :2], x, z])


SCAN_8 = """<ir_version: 8, opset_import: ["" : 8]>
agraph (int64[b] lens, float[b, 2] s, float[b, n, 2] x) => (float[b, 2] last, float[b, n, 2] y) {{
  last, y = Scan <num_scan_inputs = 1, {directions} body = body
    (float[2] s0, float[2] x0) => (float[2] s1, float[2] y0) {{
      s1 = Add (s0, x0)
      y0 = Mul (s1, x0)
    }}> ({lens}, s, x)
}}"""


@pytest.mark.parametrize("lengths", [None, (3, 3), (1, 3), (2, 1)])
@pytest.mark.parametrize("directions", [None, (1,)])
def test_scan_8(lengths, directions):
    text = SCAN_8.format(
        lens="" if lengths is None else "lens",
        directions="" if directions is None else "directions = [1],",
    )
    inputs = [
        np.array((3, 3) if lengths is None else lengths),
        X[:2, :2],
        np.stack([X[:3, :2], X[1:, 1:]]),
    ]
    check_model(text, inputs)


def test_scan_8_of_no_batch_entries():
    text = SCAN_8.format(lens="", directions="")
    empty = np.empty((0, 3, 2), np.float32)
    last, y = run_cpu(parser.parse_model(text), {"lens": X[0], "s": empty[:, 0], "x": empty})
    assert (last.shape, y.shape) == ((0, 2), (0, 3, 2))
    assert last.dtype == y.dtype == np.float32


@pytest.mark.parametrize("opset", [9, 17])
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (1, 1)])
def test_scan_of_no_steps(opset, axes):
    # ONNX Runtime refuses to scan nothing.
    text = SCAN.format(
        opset=opset, attributes=f"scan_output_axes = {list(axes)}, ", x="n, 2", z="n, 2"
    )
    feeds = {"s": X[0, :2], "x": X[:0, :2], "z": X[:0, :2]}
    last, y, w = run_cpu(parser.parse_model(text), feeds)
    assert np.array_equal(last, X[0, :2])
    assert [y.shape, w.shape] == [(2, 0) if axis else (0, 2) for axis in axes]
    assert y.dtype == w.dtype == np.float32


def test_scan_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="of one length"):
        run_kernel("Scan", [X, X[:2]], {"body": lambda *x: x, "num_scan_inputs": 2})


def test_sequence_map():
    def body(a, b, c):
        return a + b, c

    sums, same = run_kernel(
        "SequenceMap", [[X[0], X[1]], [X[2], X[3]], X], {"body": body}, n_outputs=2
    )
    assert_close(sums, [X[0] + X[2], X[1] + X[3]], 0, 0, "sums")
    assert_close(same, [X, X], 0, 0, "same")
    with pytest.raises(ValueError, match="sequences of 2"):
        run_kernel("SequenceMap", [[X, X], [X]], {"body": body}, n_outputs=2)
