"""Operators where ONNX Runtime deviates from ONNX's specification, on one device and two.

All devices follow ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import hetero

#: Operator set version, body of the graph, and shape of the input.
MODELS = {
    "max pool window in the padding": (
        17,
        "b = MaxPool<kernel_shape = [2], strides = [3], pads = [1, 1], ceil_mode = 1>(a0)",
        (1, 1, 5),
    ),
    "average pool window in the padding": (
        13,
        "b = AveragePool<kernel_shape = [2], strides = [2], pads = [1, 1], ceil_mode = 1>(a0)",
        (1, 1, 3),
    ),
    "layer normalization in opset 13": (
        13,
        "a = LayerNormalization<axis = -1>(a0, w) s = Shape(a) z = Reshape(a, s) b = Relu(z)",
        (2, 3),
    ),
    "layer normalization statistics": (13, "y, m, b = LayerNormalization<axis = 1>(a0, w)", (2, 3)),
    "quantized scalar": (
        13,
        "q = QuantizeLinear(a0, scale, zero) a = DequantizeLinear(q, scale, zero) b = Relu(a)",
        (),
    ),
    "transposed convolution with strides beyond its kernel": (
        17,
        'a = ConvTranspose<strides = [2], auto_pad = "SAME_LOWER">(a0, k) b = Relu(a)',
        (1, 1, 4),
    ),
}


@pytest.mark.sampled(9, "case", "devices")
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("devices", ["CPU", "HETERO:ORT,CPU", "HETERO:CPU,ORT"])
def test_results_equal_onnxruntime(case, devices):
    opset, body, shape = MODELS[case]
    sizes = ",".join(map(str, shape))
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : {opset}]> g (float[{sizes}] x) => (float b) '
        "<float[3] w = {1, 2, 3}, float scale = {0.5}, uint8 zero = {7}, float[1,1,1] k = {2}> "
        f"{{a0 = Neg(x) {body}}}"
    )
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).standard_normal(shape) - 1
    feeds = {"x": np.asarray(x, np.float32)}
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, feeds)
    with hetero.Core(executor="inprocess") as core:
        loaded_model = core.read_model(model)
        names = devices.removeprefix("HETERO:").split(",")
        pins = {n: names[i % len(names)] for i, n in enumerate(loaded_model.node_names)}
        compiled = core.compile_model(
            loaded_model, devices, affinity=pins if len(names) > 1 else None
        )
        for _ in range(2):
            np.testing.assert_allclose(compiled(feeds)["b"], expected, rtol=1e-5, atol=1e-6)
            assert compiled(feeds)["b"].shape == expected.shape
