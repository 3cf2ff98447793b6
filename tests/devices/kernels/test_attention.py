"""Attention kernels against ONNX's reference, or ONNX Runtime if it supports the opset."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel, run_reference
from tests.support.rows import for_each_row

RNG = np.random.default_rng(7)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def against_reference(op_type, inputs, attributes, opset, n_outputs=1, **keywords):
    check(
        op_type,
        inputs,
        attributes,
        opset,
        1e-4,
        1e-5,
        n_outputs=n_outputs,
        oracle=run_reference,
        **keywords,
    )


MASKS = {
    "none": None,
    "boolean": RNG.random((3, 7)) > 0.3,
    "float": floats(3, 7),
    "per batch": RNG.random((2, 1, 3, 7)) > 0.3,
    "short": floats(3, 5),
    "nothing seen": np.zeros((3, 7), bool),
}


@pytest.mark.sampled(4, "mask", "is_causal", "kv_heads", "opset")
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [0, 1])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("opset", [23, 24])
def test_attention(mask, is_causal, kv_heads, opset):
    inputs = [floats(2, 4, 3, 8), floats(2, kv_heads, 7, 8), floats(2, kv_heads, 7, 6), MASKS[mask]]
    against_reference("Attention", inputs, {"is_causal": is_causal}, opset)


@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_of_packed_heads(is_causal):
    inputs = [floats(2, 3, 32), floats(2, 7, 16), floats(2, 7, 12)]
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": is_causal, "scale": 0.2}
    against_reference("Attention", inputs, attributes, 23)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_attention_with_cache_and_scores(mode):
    inputs = [
        floats(2, 4, 3, 8),
        floats(2, 2, 3, 8),
        floats(2, 2, 3, 8),
        floats(3, 7),
        floats(2, 2, 4, 8),
        floats(2, 2, 4, 8),
    ]
    attributes = {"is_causal": 1, "qk_matmul_output_mode": mode}
    against_reference("Attention", inputs, attributes, 24, n_outputs=4)


def test_attention_softcap():
    inputs = [floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4)]
    against_reference("Attention", inputs, {"softcap": 0.5}, 23)
    # The first score output is the product before the cap.
    _, _, _, scores = run_kernel("Attention", inputs, {"softcap": 0.5}, 23, n_outputs=4)
    np.testing.assert_allclose(
        scores, inputs[0] @ inputs[1].swapaxes(2, 3) / 2, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_of_an_outside_cache(is_causal):
    inputs = [
        floats(2, 2, 3, 4),
        floats(2, 2, 6, 4),
        floats(2, 2, 6, 4),
        None,
        None,
        None,
        np.array([2, 6]),
    ]
    against_reference("Attention", inputs, {"is_causal": is_causal}, 24)


@for_each_row("left", [-1, 0, 2])
@for_each_row("right", [-1, 0, 1])
@for_each_row("is_causal", [0, 1])
def test_attention_windows(left, right, is_causal):
    inputs = [floats(1, 2, 5, 4), floats(1, 2, 8, 4), floats(1, 2, 8, 4)]
    attributes = {"left_window_size": left, "right_window_size": right, "is_causal": is_causal}
    against_reference("Attention", inputs, attributes, 25)


@pytest.mark.parametrize(
    ("change", "attributes", "message"),
    [
        ({1: floats(1, 3, 5, 4)}, {}, "multiple"),
        ({3: floats(3, 9)}, {}, "attn_mask"),
        ({4: floats(1, 2, 2, 4)}, {}, "both or neither"),
        ({0: floats(1, 3, 8)}, {}, "of one rank"),
    ],
)
def test_attention_refuses(change, attributes, message):
    inputs = [floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4), None, None, None]
    for position, value in change.items():
        inputs[position] = value
    refuses(ValueError, message, "Attention", inputs, attributes, 23)


@for_each_row("interleaved", [0, 1])
@for_each_row("rotary", [0, 4])
@for_each_row("packed", [False, True])
@for_each_row("positions", [False, True])
def test_rotary_embedding(interleaved, rotary, packed, positions):
    x = floats(2, 3, 24) if packed else floats(2, 3, 5, 8)
    tokens, half = x.shape[-2], (rotary or 8) // 2
    shape = (20, half) if positions else (2, tokens, half)
    inputs = [x, floats(*shape), floats(*shape)]
    if positions:
        inputs.append(RNG.integers(0, 20, (2, tokens)))
    attributes = {"interleaved": interleaved, "rotary_embedding_dim": rotary, "num_heads": 3}
    against_reference("RotaryEmbedding", inputs, attributes, 23)


def test_rotary_embedding_refuses_positions_beyond_the_cache():
    inputs = [floats(1, 1, 2, 4), floats(5, 2), floats(5, 2), np.array([[0, 5]])]
    refuses(IndexError, "from 0 to 4", "RotaryEmbedding", inputs, {}, 23)


@for_each_row("rule", ["linear", "gated", "delta", "gated_delta"])
@for_each_row("heads", [(2, 2), (4, 2)])
@for_each_row("decay_size", [1, 3])
@for_each_row("past", [False, True])
def test_linear_attention(rule, heads, decay_size, past):
    q_heads, kv_heads = heads
    inputs = [
        floats(2, 4, q_heads * 3),
        floats(2, 4, kv_heads * 3) * 0.5,
        floats(2, 4, kv_heads * 5),
        floats(2, kv_heads, 3, 5) if past else None,
        -abs(floats(2, 4, kv_heads * decay_size)) if "gated" in rule else None,
        abs(floats(2, 4, kv_heads)) if "delta" in rule else None,
    ]
    attributes = {"q_num_heads": q_heads, "kv_num_heads": kv_heads, "update_rule": rule}
    against_reference("LinearAttention", inputs, attributes, 27, n_outputs=2)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize("length", [6, 1])
@pytest.mark.parametrize("past", [False, True])
def test_causal_conv_with_state(activation, length, past):
    inputs = [floats(2, 3, length), floats(3, 1, 4), floats(3), floats(2, 3, 3) if past else None]
    against_reference("CausalConvWithState", inputs, {"activation": activation}, 27, n_outputs=2)


def test_flex_attention_applies_subgraphs():
    from hetero.devices.kernels import KERNELS

    kernel = KERNELS.find("ai.onnx.preview", "FlexAttention", 1).function
    q, k, v = floats(1, 4, 3, 8), floats(1, 2, 5, 8), floats(1, 2, 5, 8)
    scores = q @ k.repeat(2, axis=1).swapaxes(2, 3) / np.sqrt(np.float32(8)) * 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) / 3
    y = kernel(np, q, k, v, score_mod=lambda s: (s * 2,), prob_mod=lambda p: (p / 3,))
    np.testing.assert_allclose(y, weights @ v.repeat(2, axis=1), rtol=1e-4, atol=1e-5)


def test_attention_ignores_a_softcap_that_is_not_positive():
    q = RNG.standard_normal((1, 2, 3, 4)).astype(np.float32)
    check("Attention", [q, q, q], {"softcap": -0.5}, 23, 1e-4, 1e-5)
