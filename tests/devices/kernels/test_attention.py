"""Edges of attention kernels; the table of operators has their cases."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_oracle import check, refuses, run_kernel

RNG = np.random.default_rng(7)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_scores_of_attention_are_those_before_the_softcap():
    inputs = [floats(1, 2, 3, 4), floats(1, 2, 5, 4), floats(1, 2, 5, 4)]
    # The first score output is the product before the cap.
    _, _, _, scores = run_kernel("Attention", inputs, {"softcap": 0.5}, 23, n_outputs=4)
    np.testing.assert_allclose(
        scores, inputs[0] @ inputs[1].swapaxes(2, 3) / 2, rtol=1e-4, atol=1e-5
    )


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


def test_rotary_embedding_refuses_positions_beyond_the_cache():
    inputs = [floats(1, 1, 2, 4), floats(5, 2), floats(5, 2), np.array([[0, 5]])]
    refuses(IndexError, "from 0 to 4", "RotaryEmbedding", inputs, {}, 23)


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
