"""Control-flow nodes with unnamed outputs on device ORT."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from hetero.devices import read_model

pytest.importorskip("onnxruntime")
from hetero.devices.ort.unnamed_outputs import name_control_flow_outputs

LOOP = """(int64 n, bool c, float[2] x) => (float[k,2] y)
    {carried, y = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) =>
    (bool co, float[2] w, float[2] unused_output)
    {co = Identity(ci) w = Add(v, v) unused_output = Neg(w)}>}"""
IF = """(bool c, float[2] x) => (float[2] y)
    {p, y = If(c) <then_branch = t () => (float[2] o, float[2] q) {o = Neg(x) q = Exp(x)},
    else_branch = e () => (float[2] r, float[2] s) {r = Abs(x) s = Neg(x)}>}"""
SCAN = """(float[2] h, float[3,2] x) => (float[3,2] y)
    {last, y = Scan<num_scan_inputs = 1, body = b (float[2] s, float[2] xi) =>
    (float[2] t, float[2] o) {t = Add(s, xi) o = Neg(t)}>(h, x)}"""
NESTED = """(bool c, int64 n, float[2] x) => (float[k,2] y)
    {y = If(c) <then_branch = t () => (float[k,2] o)
    {carried, o = Loop(n, c, x) <body = b (int64 i, bool ci, float[2] v) =>
    (bool co, float[2] w, float[2] z) {co = Identity(ci) w = Add(v, v) z = Neg(w)}>},
    else_branch = e () => (float[1,2] r) {a = Constant<value_ints = [0]>() r = Unsqueeze(x, a)}>}"""
X = np.float32([1, 2])
INPUTS = {
    "n": np.int64(3),
    "c": np.bool_(True),
    "h": X,
    "x": X,
}


def model_with_unnamed_outputs(graph):
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {graph}')

    def clear(nodes):
        for node in nodes:
            if node.op_type in ("If", "Loop", "Scan") and len(node.output) == 2:
                node.output[0] = ""
            for attribute in node.attribute:
                clear(attribute.g.node)

    clear(proto.graph.node)
    return proto


GRAPHS = {"Loop": LOOP, "If": IF, "Scan": SCAN, "Loop in If": NESTED}
SCRIPT = """
import sys, numpy as np, onnx
from hetero.devices import read_model
from hetero.devices.ort.plugin import ORTPlugin
model = read_model(onnx.ModelProto.FromString(sys.stdin.buffer.read()))
inputs = dict(np.load(sys.argv[1]))
result = ORTPlugin().compile_model(model)(inputs)
np.save(sys.argv[2], result["y"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_node_with_unnamed_output_runs(graph, tmp_path):
    """The run is in another process, because ONNX Runtime crashes without the names."""
    proto = model_with_unnamed_outputs(graph)
    inputs = {port.name: INPUTS[port.name] for port in proto.graph.input}
    if graph is SCAN:
        inputs["x"] = np.float32([[1, 2], [3, 4], [5, 6]])
    np.savez(tmp_path / "inputs.npz", **inputs)
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path / "inputs.npz", tmp_path / "y.npy"],
        input=proto.SerializeToString(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()[-1000:]
    named_proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {graph}')
    (expected,) = ReferenceEvaluator(named_proto).run(None, inputs)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected)


def test_names_are_unique_and_complete():
    model = name_control_flow_outputs(read_model(model_with_unnamed_outputs(LOOP)))
    (loop,) = model.nodes
    assert loop.outputs == ("unused_output_1", "y")
    assert list(loop.proto.output) == list(loop.outputs)


def test_model_without_unnamed_outputs_is_unchanged():
    model = read_model(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {LOOP}'))
    assert name_control_flow_outputs(model) is model
