"""Faults of OpenVINO: another device of the list runs the affected nodes."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import hetero

pytest.importorskip("openvino", reason="needs pip install 'hetero[openvino]'")

#: Name -> graph, the operator that OpenVINO computes wrong, and the shape of input x.
MODELS = {
    "scales along an open axis": (
        (
            "(float[n, m] x) => (float[n, m] y) <float[3] s = {0.1, 1, 3}, int8[3] z = {0, 1, 2}> "
            "{q = QuantizeLinear<axis = 0>(x, s, z) y = DequantizeLinear<axis = 0>(q, s, z)}"
        ),
        "QuantizeLinear",
        (3, 3),
    ),
    "slopes of the last axis": (
        "(float[2, 3, 3] x) => (float[2, 3, 3] y) <float[3] s = {0.1, 1, 3}> {y = PRelu(x, s)}",
        "PRelu",
        (2, 3, 3),
    ),
    "lengths of sequences": (
        (
            "(float[t, b, 1] x) => (float[t, 1, b, 1] y) <float[1, 1, 1] w = {2}, "
            'int32[2] l = {1, 3}> {y = RNN<hidden_size = 1, direction = "reverse">(x, w, w, , l)}'
        ),
        "RNN",
        (3, 2, 1),
    ),
    "weights of uint8": (
        (
            "(uint8[1, 1, 2, 2] x) => (uint8[1, 1, 2, 2] y) <float s = {0.5}, uint8 z = {3}, "
            "uint8 n = {0}, uint8[1, 1, 1, 1] w = {7}> {y = QLinearConv(x, s, z, w, s, n, s, z)}"
        ),
        "QLinearConv",
        (1, 1, 2, 2),
    ),
    "a convolution of constants": (
        (
            "(float[1] x) => (float[1, 1, 2, 2] y) <uint8[1, 1, 2, 2] c = {3, 9, 12, 90}, "
            "float s = {0.5}, uint8 z = {3}, int8 n = {0}, int8[1, 1, 1, 1] w = {7}> "
            "{q = QLinearConv(c, s, z, w, s, n, s, z) f = DequantizeLinear(q, s, z) y = Add(f, x)}"
        ),
        "QLinearConv",
        (1,),
    ),
    "constants after a mean of the last axis": (
        (
            "(float[b, 3, t] x) => (float[b, 3, 1] y) <float[1, 3, 1] c = {1, 2, 3}> "
            "{m = ReduceMean<axes = [2]>(x) r = Relu(m) y = Mul(r, c)}"
        ),
        "ReduceMean",
        (2, 3, 4),
    ),
    "normalised after a pool": (
        (
            "(float[2, 3, 4] x) => (float[2, 3, 1] y) <float[3] c = {1, 2, 3}> "
            "{m = GlobalMaxPool(x) y = BatchNormalization(m, c, c, c, c)}"
        ),
        "GlobalMaxPool",
        (2, 3, 4),
    ),
    "a sum of exponentials along an axis": (
        "(float[b, 3] x) => (float[b, 1] y) {y = ReduceLogSumExp<axes = [1]>(x)}",
        "ReduceLogSumExp",
        (2, 3),
    ),
    "scaled before a pool, in a quantised model": (
        (
            "(float[2, 3, 4] x) => (float[2, 3, 1] y) <float[1, 3, 1] c = {1, 2, 3}, float "
            "s = {0.1}, "
            "int8 z = {3}> {q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) m = "
            "Mul(d, c) "
            "y = GlobalAveragePool(m)}"
        ),
        "GlobalAveragePool",
        (2, 3, 4),
    ),
    "pads of a convolution of single elements": (
        (
            "(float[1, 1, 4] x) => (float[1, 1, 3] y) <float[1, 1, 1] w = {2}> "
            "{r = Relu(x) y = Conv<pads = [1, 1], strides = [2]>(r, w)}"
        ),
        "Conv",
        (1, 1, 4),
    ),
    "rows of a table dequantised by columns": (
        (
            "(float[1] x) => (float[2, 2] y) <int8[3, 2] t = {1, 2, 3, 4, 5, 6}, float[2] "
            "s = {1, 10},"
            " int64[2] i = {0, 2}> "
            "{d = DequantizeLinear<axis = 1>(t, s) g = Gather(d, i) y = Add(g, x)}"
        ),
        "Gather",
        (1,),
    ),
    "a convolution that is quantised and given out": (
        (
            "(float[1, 1, 2, 2] x) => (float[1, 1, 2, 2] y) <float s = {0.1}, uint8 z = {3}, "
            "int8[1, 1, 1, 1] w = {6}> {q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
            "v = DequantizeLinear(w, s) c = Conv(d, v) r = QuantizeLinear(c, s, z) "
            "e = DequantizeLinear(r, s, z) f = Softmax(c) y = Add(e, f)}"
        ),
        "Conv",
        (1, 1, 2, 2),
    ),
    "pads that count in a quantised model": (
        (
            "(float[1, 1, 2, 2] x) => (float[1, 1, 3, 3] y) <float s = {0.1}, uint8 z = {30}> "
            "{q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
            "y = AveragePool<kernel_shape = [2, 2], pads = [1, 1, 1, 1], count_include_pad = 1>(d)}"
        ),
        "AveragePool",
        (1, 1, 2, 2),
    ),
    "a row of what was reduced": (
        (
            "(float[2, 3, 4] x) => (float[1, 12] y) {m = ReduceMean<axes = [0], keepdims = 0>(x) "
            "y = Flatten<axis = 0>(m)}"
        ),
        "Flatten",
        (2, 3, 4),
    ),
    "a product of dequantised constants": (
        (
            "(float[1] x) => (float[1, 2] y) <int8[2, 2] t = {1, 2, 3, 4}, float[2] s = {1, 10}, "
            "float[1, 2] a = {1, 2}> "
            "{d = DequantizeLinear<axis = 1>(t, s) m = MatMul(a, d) y = Add(m, x)}"
        ),
        "MatMul",
        (1,),
    ),
    "channels without places": (
        (
            "(float[3, 2] x) => (float[3, 2] y) <float[2] c = {1, 2}> "
            "{g = GroupNormalization<num_groups = 2>(x, c, c) y = Sub(g, x)}"
        ),
        "GroupNormalization",
        (3, 2),
    ),
    "a mean over what was quantised": (
        (
            "(float[2, 8, 4] x) => (float[2, 1, 4] y) <float s = {0.1}, int8 z = {9}> "
            "{q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) "
            "y = ReduceMean<axes = [1]>(d)}"
        ),
        "ReduceMean",
        (2, 8, 4),
    ),
    "grown to nothing": (
        "(float[2, 1] x) => (float[a, b] y) <int64[2] s = {2, 0}> {y = Expand(x, s)}",
        "Expand",
        (2, 1),
    ),
    "nothing is kept": (
        "(float[2, 1] x) => (float[a, b] y) <bool[2] s = {0, 0}> {y = Compress<axis = 0>(x, s)}",
        "Compress",
        (2, 1),
    ),
}


@pytest.mark.parametrize("case", MODELS)
def test_affected_node_runs_on_another_device(case: str) -> None:
    body, operator, shape = MODELS[case]
    opset = 21 if operator == "GroupNormalization" else 17
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : {opset}]> g {body}')
    dtype = np.uint8 if "uint8[1, 1, 2, 2] x" in body else np.float32
    feeds = {"x": (np.random.default_rng(0).standard_normal(shape) * 5).astype(dtype)}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    with hetero.Core(executor="inprocess") as core:
        source = core.read_model(model)
        support = core.query_model(source, "HETERO:OV,ORT,CPU")
        (node,) = (n for n in source.nodes if n.op_type == operator)
        assert not support[node.name].startswith("OV")
        actual = core.compile_model(source, "HETERO:OV,ORT,CPU")(feeds)["y"]
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
