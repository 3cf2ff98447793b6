"""NaN in operators for which ONNX does not define it: the query notes vendors that drop it."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import onnx
import pytest

from tests.support.core_fixtures import core_fixture

NAN = float("nan")
INFINITY = float("inf")
#: Graphs, each with one node -> inputs on which the reference's result has NaN, and others.
GRAPHS = {
    "(float[3] x) => (float y) {y = ReduceMax<keepdims = 0>(x)}": ([[1, NAN, 2]], "ORT"),
    "(double[3] x) => (double y) {y = ReduceMin<keepdims = 0>(x)}": ([[1, NAN, 2]], "ORT"),
    "(float[2] x) => (float y) {y = ReduceMax<keepdims = 0>(x)}": ([[NAN, 1]], "OV"),
    "(float[1,1,3] x) => (float[1,1,1] y) {y = GlobalMaxPool(x)}": ([[[[1, NAN, 2]]]], "ORT OV"),
    "(float[1,1,3] x) => (float[1,1,1] y) {y = MaxPool<kernel_shape = [3]>(x)}": (
        [[[[1, NAN, 2]]]],
        "ORT OV",
    ),
    """(float[2] x, int64[2,1] i, float[2] u) => (float[2] y)
    {y = ScatterND<reduction = "max">(x, i, u)}""": ([[NAN, 1], [[0], [1]], [5, 6]], "ORT"),
    """(float[2] x, int64[2] i, float[2] u) => (float[2] y)
    {y = ScatterElements<reduction = "min">(x, i, u)}""": ([[0, 1], [0, 1], [NAN, 6]], "OV"),
    """(float[1,1,1] x, float[1,1,1] w, float[1,1,1] r) => (float[1,1,1,1] y)
    {y = RNN<hidden_size = 1>(x, w, r)}""": ([[[[1]]], [[[1]]], [[[INFINITY]]]], "ORT"),
    """(float[1,1,1] x, float[1,4,1] w, float[1,4,1] r, float[1,8] b) => (float[1,1,1,1] y)
    {y = LSTM<hidden_size = 1>(x, w, r, b)}""": (
        [[[[1]]], [[[NAN], [1], [1], [1]]], [[[1], [1], [1], [1]]], [[0] * 8]],
        "ORT",
    ),
    """(float[1,2] x, float[2] s) => (float[1,1] m)
    {y, m = LayerNormalization(x, s)}""": ([[[-INFINITY, 1]], [1, 1]], "ORT"),
    "(float[1,4,1,1] x) => (float[1,4,1,1] y) {y = LRN<size = 1>(x)}": (
        [[[[[NAN]], [[1]], [[2]], [[3]]]]],
        "ORT",
    ),
    """(float[1,4,1] x, int64 s, int64 n) => (float[1,1,3,2] y)
    {y = STFT(x, s, , n)}""": ([[[[INFINITY], [1], [2], [3]]], 4, 4], "ORT"),
    "(float[3] x) => (int64 y) {y = ArgMax<keepdims = 0>(x)}": ([[1, 0, NAN]], "ORT OV"),
    "(float[2] x, float low) => (float[2] y) {y = Clip(x, low)}": ([[1, 2], NAN], "ORT"),
    """(float[3] x) => (uint8[3] y, float s, uint8 z)
    {y, s, z = DynamicQuantizeLinear(x)}""": ([[1, NAN, 2]], "ORT"),
    "(float16[2] x) => (float16[2] y) {y = Hardmax(x)}": ([[1, NAN]], "ORT"),
    "(float16[2] x) => (float16[2] y) {y = Sign(x)}": ([[1, NAN]], "ORT"),
    "(double[2] x) => (double[2] y) {y = LogSoftmax(x)}": ([[1, NAN]], "ORT"),
    "(float[4] x) => (float[n] y) {y = Unique(x)}": ([[NAN, 1, 2, 1]], "ORT"),
    """(float[2,3] x, int64[2] t) => (float y)
    {y = SoftmaxCrossEntropyLoss(x, t)}""": ([[[1, 2, 3], [1, NAN, 3]], [2, 0]], "OV"),
    "(float[2] x) => (float[2] y) {y = Shrink(x)}": ([[1, NAN]], "OV"),
    "(float[2] x) => (float[2] y) {y = Relu(x)}": ([[1, NAN]], "OV"),
    "(float[2] x, float[2] z) => (float[2] y) {y = Max(x, z)}": ([[1, NAN], [0, 0]], "OV"),
}
CASES = [(g, v, d) for g, (v, devices) in GRAPHS.items() for d in devices.split()]


core = core_fixture("module")


@pytest.mark.parametrize(("graph", "values", "device"), CASES, ids=lambda value: str(value)[-40:])
def test_node_that_drops_nan_is_noted(core, graph, values, device):
    """If the results are equal, the runtime propagates NaN now: remove the note."""
    if device == "OV" and not find_spec("openvino"):
        pytest.skip("needs pip install 'hetero[openvino]'")
    model = core.read_model(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {graph}')
    )
    notes = core.query_model(model, f"HETERO:{device},CPU").notes
    assert "NaN" in " ".join(notes.values())
    inputs = [np.array(value, port.dtype) for value, port in zip(values, model.inputs, strict=True)]
    expected = core.compile_model(model, "CPU")(inputs)[0]
    actual = core.compile_model(model, f"HETERO:{device},CPU")(inputs)[0]
    assert not np.array_equal(actual, expected, equal_nan=True)


@pytest.mark.parametrize(
    "graph",
    [
        "(int32[3] x) => (int32 y) {y = ReduceMax<keepdims = 0>(x)}",
        "(float[3] x) => (float y) {y = ReduceSum<keepdims = 0>(x)}",
        "(float[3] x) => (float[3] y) {y = Sign(x)}",
        "(float[3] x) => (float[3] y) {y = LogSoftmax(x)}",
    ],
)
def test_node_that_keeps_nan_has_no_note(core, graph):
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 20]> g {graph}')
    assert not core.query_model(model, "HETERO:ORT,CPU").notes
