"""If, Loop, Scan and SequenceMap, against ONNX Runtime on whole models."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

from tests.kernels.oracle import compare, run_kernel

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def body_of(node: onnx.NodeProto, attribute: str, opset: int):
    """Return the node's graph as the callable that a kernel gets."""
    (graph,) = (a.g for a in node.attribute if a.name == attribute)
    evaluator = ReferenceEvaluator(graph, opsets={"": opset})
    names = [i.name for i in graph.input]
    return lambda *inputs: tuple(evaluator.run(None, dict(zip(names, inputs, strict=True))))


def check_model(text: str, inputs, *bodies: str, **attributes):
    """Compare our kernel for the model's one node with ONNX Runtime."""
    model = parser.parse_model(text)
    opset, (node,) = model.opset_import[0].version, model.graph.node
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [i.name for i in model.graph.input]
    feeds = {n: v for n, v in zip(names, inputs, strict=True) if v is not None}
    wanted = session.run(None, feeds)
    keywords = attributes | {name: body_of(node, name, opset) for name in bodies}
    places = [dict(zip(names, inputs, strict=True)).get(name) for name in node.input]
    got = run_kernel(node.op_type, places, keywords, opset, n_outputs=len(node.output))
    for a, b in zip(got, wanted, strict=True):
        compare(a, b, 1e-6, 1e-6, node.op_type)
    return got


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
    check_model(LOOP.format(opset=opset), inputs, "body")


@pytest.mark.parametrize(("trips", "going"), [(0, True), (5, False)])
def test_loop_without_a_trip(trips, going):
    def body(*inputs):
        raise AssertionError("the body must not run")

    body.outputs = [(np.bool_, ()), (np.float32, (3,)), (np.float32, (None, 3))]
    inputs = [np.array(trips), np.array(going), X[0]]
    last, scanned = run_kernel("Loop", inputs, {"body": body}, n_outputs=2)
    assert np.array_equal(last, X[0])
    assert scanned.shape == (0, 0, 3)
    assert scanned.dtype == np.float32


def test_loop_without_a_trip_must_know_its_outputs():
    with pytest.raises(ValueError, match="no trip"):
        run_kernel("Loop", [np.array(0), None, X], {"body": lambda *x: x}, n_outputs=2)


def test_loop_without_limit_carries_anything():
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
    check_model(IF.format(opset=opset), [np.array(cond)], "then_branch", "else_branch")


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


# Negative axes, the last case, came with opset 11.
@pytest.mark.parametrize(
    ("opset", "attributes"),
    [*((9, a) for a in SCANS[:-1]), *((opset, a) for opset in (11, 16) for a in SCANS)],
)
def test_scan(opset, attributes):
    x, z = X[:3, :2], X[1:, 1:]
    if "scan_input_axes" in attributes:
        x = np.ascontiguousarray(x.T)
    written = "".join(f"{name} = {list(values)}, " for name, values in attributes.items())
    text = SCAN.format(opset=opset, attributes=written, x="a, b", z="c, d")
    check_model(text, [X[0, :2], x, z], "body", num_scan_inputs=2, **attributes)


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
    lens = np.array((3, 3) if lengths is None else lengths)
    inputs = [lens, X[:2, :2], np.stack([X[:3, :2], X[1:, 1:]])]
    attributes = {} if directions is None else {"directions": directions}
    check_model(text, inputs, "body", num_scan_inputs=1, **attributes)


def test_scan_of_no_steps():
    def body(*inputs):
        raise AssertionError("the body must not run")

    body.outputs = [(np.float32, (3,)), (np.int64, (3,))]
    last, y = run_kernel(
        "Scan", [X[0], X[:0]], {"body": body, "num_scan_inputs": 1, "scan_output_axes": (1,)}
    )
    assert np.array_equal(last, X[0])
    assert (y.shape, y.dtype) == ((3, 0), np.int64)


def test_scan_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="equally long"):
        run_kernel("Scan", [X, X[:2]], {"body": lambda *x: x, "num_scan_inputs": 2})


def test_sequence_map():
    def body(a, b, c):
        return a + b, c

    sums, same = run_kernel(
        "SequenceMap", [[X[0], X[1]], [X[2], X[3]], X], {"body": body}, n_outputs=2
    )
    compare(sums, [X[0] + X[2], X[1] + X[3]], 0, 0, "sums")
    compare(same, [X, X], 0, 0, "same")
    with pytest.raises(ValueError, match="must all have 2"):
        run_kernel("SequenceMap", [[X, X], [X]], {"body": body}, n_outputs=2)
