"""Fused activations, normalisations and products against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.devices.kernels import KERNELS
from hetero.devices.kernels.microsoft import MICROSOFT
from tests.support.microsoft_oracle import check, floats, some

SEEDS = range(8)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op_type", ["Gelu", "BiasGelu", "FastGelu", "QuickGelu"])
def test_activations(op_type, seed):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 6, rng.integers(1, 4))
    inputs = [floats(rng, *shape) * 3]
    if op_type == "BiasGelu":
        inputs.append(floats(rng, shape[-1]))
    if op_type == "FastGelu":
        inputs.append(some(rng, floats(rng, shape[-1])))
    attributes = {"alpha": float(rng.choice((1.0, 1.702)))} if op_type == "QuickGelu" else {}
    check(op_type, inputs, attributes, 1e-5, 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("outputs", [1, 2])
def test_simplified_layer_normalization(seed, outputs):
    rng = np.random.default_rng(seed)
    shape = rng.integers(1, 6, 3)
    axis = int(rng.choice((-1, 2)))
    check(
        "SimplifiedLayerNormalization",
        [floats(rng, *shape), floats(rng, shape[-1])],
        {"axis": axis, "epsilon": 1e-3},
        1e-5,
        1e-5,
        domain="",
        n_outputs=outputs,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_skip_normalization(op_type, seed):
    rng = np.random.default_rng(seed)
    b, s, width = rng.integers(1, 6, 3)
    skip = [(b, s, width), (1, s, width), (s, width)][rng.integers(3)]
    inputs = [floats(rng, b, s, width), floats(rng, *skip), floats(rng, width)]
    if op_type == "SkipLayerNormalization":
        inputs.append(some(rng, floats(rng, width)))
    inputs.append(some(rng, floats(rng, width)))
    check(op_type, inputs, {"epsilon": 1e-3}, 1e-4, 1e-4)


@pytest.mark.parametrize("op_type", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_the_sum_is_the_fourth_output(op_type):
    rng = np.random.default_rng(0)
    x, skip, gamma = floats(rng, 2, 3, 4), floats(rng, 2, 3, 4), floats(rng, 4)
    kernel = KERNELS.find(MICROSOFT, op_type, 1)
    assert kernel
    np.testing.assert_array_equal(kernel.function(np, x, skip, gamma, n_outputs=4)[3], x + skip)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(30))
def test_embed_layer_normalization(seed):
    rng = np.random.default_rng(seed)
    b, s, width = (int(n) for n in rng.integers(1, 6, 3))
    segments = rng.random() < 0.5
    ids = rng.integers(0, 7, (b, s)).astype(np.int32)
    inputs = [
        ids,
        rng.integers(0, 2, (b, s)).astype(np.int32) if segments else None,
        floats(rng, 7, width),
        floats(rng, 9, width),
        floats(rng, 2, width) if segments else None,
        floats(rng, width),
        floats(rng, width),
        some(rng, rng.integers(0, 2, (b, s)).astype(np.int32)),
        some(rng, rng.integers(0, 9, (b, s)).astype(np.int32)),
    ]
    check("EmbedLayerNormalization", inputs, {"epsilon": 1e-3}, 1e-4, 1e-5, n_outputs=3)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("op_type", ["FusedMatMul", "TransposeMatMul"])
def test_fused_matmul(op_type, seed):
    rng = np.random.default_rng(seed)
    attributes: dict[str, Any] = {"alpha": float(rng.choice((1.0, 0.25)))}
    lead = tuple(rng.integers(1, 4, rng.integers(0, 3)))
    m, k, n = rng.integers(1, 5, 3)
    shapes = []
    for side, shape in (("A", (m, k)), ("B", (k, n))):
        attributes[f"trans{side}"] = int(rng.integers(0, 2))
        batch = op_type == "FusedMatMul" and bool(lead) and rng.random() < 0.4
        if attributes[f"trans{side}"]:
            shape = shape[::-1]
        if batch:  # the first of the matrix's axes stands before the batch's
            attributes[f"transBatch{side}"] = 1
            shapes.append((shape[0], *lead, shape[1]))
        else:
            shapes.append((*lead, *shape))
    inputs = [floats(rng, *shape) for shape in shapes]
    check(op_type, inputs, attributes, 1e-4, 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(30))
def test_fused_gemm(seed):
    rng = np.random.default_rng(seed)
    m, k, n = rng.integers(1, 5, 3)
    a, b = rng.integers(0, 2, 2)
    inputs = [
        floats(rng, *((k, m) if a else (m, k))),
        floats(rng, *((n, k) if b else (k, n))),
        some(rng, floats(rng, n)),
    ]
    name = str(rng.choice(("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "Elu")))
    attributes = {
        "alpha": 0.5,
        "beta": 0.25,
        "transA": int(a),
        "transB": int(b),
        "activation": name,
        "activation_alpha": 0.3,
        "activation_beta": 0.4,
    }
    check("FusedGemm", inputs, attributes, 1e-4, 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(20))
def test_fused_conv(seed):
    rng = np.random.default_rng(seed)
    group, c, m = (int(n) for n in rng.integers(1, 4, 3))
    x, w = floats(rng, 2, group * c, 7, 8), floats(rng, group * m, c, 3, 2)
    name, parameters = [
        ("Relu", []),
        ("LeakyRelu", [0.3]),
        ("Clip", [-0.5, 0.5]),
        ("Sigmoid", []),
        ("Tanh", []),
        ("HardSigmoid", [0.3, 0.4]),
        ("", []),
    ][rng.integers(7)]
    attributes: dict[str, Any] = {"group": group, "strides": [1, int(rng.integers(1, 3))]}
    attributes["pads"] = [int(n) for n in rng.integers(0, 2, 4)]
    if name:
        attributes |= {"activation": name}
    if parameters:
        attributes |= {"activation_params": parameters}
    top, left, bottom, right = attributes["pads"]
    columns = (6 + left + right) // attributes["strides"][1] + 1
    shape = (2, group * m, 5 + top + bottom, columns)
    bias = floats(rng, group * m)
    inputs = [x, w, bias, some(rng, floats(rng, *shape))]
    check("FusedConv", inputs, attributes, 1e-4, 1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("activation", ["none", "silu"])
def test_causal_convolution(seed, activation):
    rng = np.random.default_rng(seed)
    batch, channels, length, k = map(int, rng.integers(1, 6, 4))
    inputs = [
        floats(rng, batch, channels, length),
        floats(rng, channels, 1, k),
        some(rng, floats(rng, channels)),
        some(rng, floats(rng, batch, channels, k - 1)),
    ]
    attributes = {"activation": activation}
    check("CausalConvWithState", inputs, attributes, 1e-5, 1e-5, n_outputs=2)
