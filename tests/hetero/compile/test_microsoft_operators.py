"""Partitioning models with domain com.microsoft, whose inner values have no types."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, numpy_helper, parser

import hetero

LAYERS = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
g (float[b, s, 32] x, int32[b] last, int32 total) => (float[b, s, 32] y, float[b, 1, m, 16] key)
{
  n = SimplifiedLayerNormalization<axis = -1, epsilon = 0.01>(x, ones)
  q = com.microsoft.MatMulNBits<K = 32, N = 32, bits = 4, block_size = 32>(n, packed, scales)
  k, v = Split<axis = 2, num_outputs = 2>(q)
  a, key, value = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1, do_rotary = 1>
    (q, k, v, "", "", last, total, cos, sin)
  p = com.microsoft.FusedMatMul<transB = 1>(a, w)
  z, "", "", sum = com.microsoft.SkipSimplifiedLayerNormalization<epsilon = 0.01>(p, x, ones)
  f = com.microsoft.FastGelu(z)
  y = Add(f, sum)
}"""


def layers(rng: np.random.Generator, text: str = LAYERS) -> ModelProto:
    """Return the model with random weights."""
    model = parser.parse_model(text)
    shapes = {"ones": (32,), "w": (32, 32), "scales": (32, 1), "cos": (8, 8), "sin": (8, 8)}
    arrays = {name: rng.normal(size=s).astype(np.float32) / 8 for name, s in shapes.items()}
    arrays["packed"] = rng.integers(0, 256, (32, 1, 16)).astype(np.uint8)
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def test_random_partitions_equal_onnxruntime():
    rng = np.random.default_rng(0)
    model = layers(rng)
    feeds = {
        "x": rng.standard_normal((2, 5, 32)).astype(np.float32),
        "last": np.full(2, 4, np.int32),
        "total": np.array(5, np.int32),
    }
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, feeds)
    with hetero.Core(executor="inprocess") as core:
        names = core.read_model(model).node_names
        assert set(core.query_model(model, "CPU")) == set(names)
        for _ in range(4):
            pins = {name: str(rng.choice(("ORT", "CPU"))) for name in names}
            compiled = core.compile_model(model, "HETERO:ORT,CPU", affinity=pins)
            for actual, expected_array in zip(compiled(feeds).values(), expected, strict=True):
                np.testing.assert_allclose(actual, expected_array, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("device", ["CPU", "HETERO:CPU"])
def test_unsupported_attribute_is_refused(device):
    text = LAYERS.replace("do_rotary = 1>", 'do_rotary = 1, k_quant_type = "PER_TENSOR">')
    model = layers(np.random.default_rng(0), text)
    with hetero.Core(executor="inprocess") as core:
        support = core.query_model(model, device)
    assert any("k_quant_type" in str(refusals) for refusals in support.unsupported.values())
