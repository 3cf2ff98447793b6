"""Rows of the table of operators: attention, rotary embeddings and layers with state."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from tests.support.operator_rows import SUMS, Row, floats, integers, ints, shaped, uniform

#: ONNX Runtime lacks attributes of these operators, so ONNX's evaluator is the oracle.
_row: Final = partial(Row, use_reference=True, **SUMS)

_RNG: Final = np.random.default_rng(7)
_MASKS: Final = (
    None,
    _RNG.random((3, 7)) > 0.3,
    floats(3, 7),
    _RNG.random((2, 1, 3, 7)) > 0.3,
    floats(3, 5),  # shorter than the keys
    np.zeros((3, 7), bool),
)
_CAUSAL: Final = {"is_causal": [0, 1]}
_CACHE: Final = floats(2, 2, 4, 8)


def _rotary(rotary: int) -> Row:
    """Return the row of embeddings of `rotary` elements of each head; 0 for all."""
    half = (rotary or 8) // 2
    inputs = [
        (x, floats(*shape), floats(*shape), *positions)
        for x, tokens in ((floats(2, 3, 24), 3), (floats(2, 3, 5, 8), 5))
        for shape, positions in (
            ((2, tokens, half), ()),
            ((20, half), (integers(0, 20, 2, tokens),)),
        )
    ]
    attributes = {"interleaved": [0, 1], "rotary_embedding_dim": [rotary], "num_heads": [3]}
    return _row("RotaryEmbedding", inputs, attributes)


def _linear_attention(rule: str, q_heads: int) -> Row:
    heads = 2
    inputs = [
        (
            floats(2, 4, q_heads * 3),
            uniform(-0.7, 0.7, 2, 4, heads * 3),
            floats(2, 4, heads * 5),
            past,
            uniform(-2, 0, 2, 4, heads * decay_size) if "gated" in rule else None,
            uniform(0, 2, 2, 4, heads) if "delta" in rule else None,
        )
        for decay_size, past in product((1, 3), (None, floats(2, heads, 3, 5)))
    ]
    attributes = [{"q_num_heads": q_heads, "kv_num_heads": heads, "update_rule": rule}]
    return _row("LinearAttention", inputs, attributes, newest=27, num_outputs=2)


_HEADS: Final[list[tuple[Any, ...]]] = [
    (floats(2, 4, 3, 8), floats(2, heads, 7, 8), floats(2, heads, 7, 6), mask)
    for heads, mask in product((4, 2, 1), _MASKS)
]

ATTENTION_OPERATORS: Final = (
    _row("Attention", _HEADS, _CAUSAL, newest=24),
    _row(
        "Attention",
        shaped(((2, 3, 32), (2, 7, 16), (2, 7, 12))),
        _CAUSAL | {"q_num_heads": [4], "kv_num_heads": [2], "scale": [0.2]},
    ),
    _row(
        "Attention",
        [(floats(2, 4, 3, 8), *[floats(2, 2, 3, 8)] * 2, floats(3, 7), _CACHE, _CACHE)],
        {"is_causal": [1], "qk_matmul_output_mode": [0, 1, 2, 3]},
        oldest=24,
        newest=24,
        num_outputs=4,
    ),
    _row("Attention", shaped(((1, 2, 3, 4), *[(1, 2, 5, 4)] * 2)), {"softcap": [0.5]}),
    _row(
        "Attention",
        [(floats(2, 2, 3, 4), *[floats(2, 2, 6, 4)] * 2, None, None, None, ints(2, 6))],
        _CAUSAL,
        oldest=24,
    ),
    _row(
        "Attention",
        shaped(((1, 2, 5, 4), *[(1, 2, 8, 4)] * 2)),
        _CAUSAL | {"left_window_size": [-1, 0, 2], "right_window_size": [-1, 0, 1]},
        oldest=25,
    ),
    _rotary(0),
    _rotary(4),
    *(
        _linear_attention(rule, heads)
        for rule in ("linear", "gated", "delta", "gated_delta")
        for heads in (2, 4)
    ),
    _row(
        "CausalConvWithState",
        [
            (floats(2, 3, length), floats(3, 1, 4), floats(3), past)
            for length, past in product((6, 1), (None, floats(2, 3, 3)))
        ],
        {"activation": ["none", "silu"]},
        newest=27,
        num_outputs=2,
    ),
)
