"""Small decoders with random weights, with the ports that exporters give them, and their oracle."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.parser import parse_model
from onnx.reference import ReferenceEvaluator

VOCABULARY: Final = 50
CONTEXT: Final = 64
_HEADS: Final = 2
_WIDTH: Final = 16
_SIZE: Final = _WIDTH // _HEADS

_HEAD: Final = """<ir_version: 9, opset_import: ["": 18]>
decoder (int64[batch, length] input_ids, int64[batch, total] attention_mask,
    int64[batch, length] position_ids{inputs})
    => (float[batch, length, 50] logits{outputs})
{{
    words = Gather (embedding, input_ids)
    places = Gather (positions, position_ids)
    x_0 = Add (words, places)
    all = Shape <start = 1> (attention_mask)
    new = Shape <start = 1, end = 2> (input_ids)
    square = Concat <axis = 0> (new, all)
    every = ConstantOfShape <value = float[1] {{1.0}}> (square)
    past = Sub (all, new)
    zero = Constant <value = int64[1] {{0}}> ()
    diagonal = Squeeze (past, zero)
    causal = Trilu <upper = 0> (every, diagonal)
    given = Cast <to = 1> (attention_mask)
    between = Constant <value = int64[2] {{1, 2}}> ()
    rows = Unsqueeze (given, between)
    seen = Mul (causal, rows)
    one = Constant <value = float {{1.0}}> ()
    hidden = Sub (seen, one)
    much = Constant <value = float {{1000000000.0}}> ()
    bias = Mul (hidden, much)
    split = Constant <value = int64[4] {{0, 0, 2, 8}}> ()
    join = Constant <value = int64[3] {{0, 0, 16}}> ()
"""
_LAYER: Final = """
    q_flat_{i} = MatMul (x_{i}, wq_{i})
    q_rows_{i} = Reshape (q_flat_{i}, split)
    q_{i} = Transpose <perm = [0, 2, 1, 3]> (q_rows_{i})
    k_flat_{i} = MatMul (x_{i}, wk_{i})
    k_rows_{i} = Reshape (k_flat_{i}, split)
    k_{i} = Transpose <perm = [0, 2, 1, 3]> (k_rows_{i})
    v_flat_{i} = MatMul (x_{i}, wv_{i})
    v_rows_{i} = Reshape (v_flat_{i}, split)
    v_{i} = Transpose <perm = [0, 2, 1, 3]> (v_rows_{i})
    present_{i}_key = Concat <axis = 2> (past_key_values_{i}_key, k_{i})
    present_{i}_value = Concat <axis = 2> (past_key_values_{i}_value, v_{i})
    turned_{i} = Transpose <perm = [0, 1, 3, 2]> (present_{i}_key)
    scores_{i} = MatMul (q_{i}, turned_{i})
    masked_{i} = Add (scores_{i}, bias)
    weights_{i} = Softmax <axis = -1> (masked_{i})
    mixed_{i} = MatMul (weights_{i}, present_{i}_value)
    together_{i} = Transpose <perm = [0, 2, 1, 3]> (mixed_{i})
    joined_{i} = Reshape (together_{i}, join)
    out_{i} = MatMul (joined_{i}, wo_{i})
    x_{j} = Add (x_{i}, out_{i})
"""


@cache
def decoder(layers: int = 2) -> onnx.ModelProto:
    """Return a decoder as optimum names the ports of one; nodes are named after their outputs."""
    kinds = [(i, kind) for i in range(layers) for kind in ("key", "value")]
    cached = "float[batch, 2, {0}, 8] {1}_{2}_{3}"
    inputs = [cached.format("past", "past_key_values", *each) for each in kinds]
    outputs = [cached.format("total", "present", *each) for each in kinds]
    text = _HEAD.format(
        inputs="".join(f", {x}" for x in inputs), outputs="".join(f", {x}" for x in outputs)
    )
    text += "".join(_LAYER.format(i=i, j=i + 1) for i in range(layers))
    text += f"    logits = MatMul (x_{layers}, head)\n}}"
    model = parse_model(text)
    graph = model.graph
    for node in graph.node:
        node.name = node.output[0]
    rng = np.random.default_rng(5)
    weights = {"embedding": (VOCABULARY, _WIDTH), "positions": (CONTEXT, _WIDTH)}
    weights |= {f"w{name}_{i}": (_WIDTH, _WIDTH) for i in range(layers) for name in "qkvo"}
    weights["head"] = (_WIDTH, VOCABULARY)
    for name, shape in weights.items():
        array = rng.normal(size=shape).astype(np.float32) / (1 if "w" not in name else 3)
        graph.initializer.append(numpy_helper.from_array(array, name))
    return model


@cache
def _evaluator() -> ReferenceEvaluator:
    return ReferenceEvaluator(decoder())


def whole_logits(ids: Sequence[int]) -> np.ndarray:
    """Return the scores after all ids by ONNX's evaluator, which sees them at once, cacheless."""
    model, evaluator = decoder(), _evaluator()
    given: dict[str, np.ndarray] = {
        "input_ids": np.asarray([ids], np.int64),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
    }
    for port in model.graph.input:
        if port.name.startswith("past"):
            given[port.name] = np.zeros((1, _HEADS, 0, _SIZE), np.float32)
    logits: np.ndarray = evaluator.run(["logits"], given)[0]
    return logits[0, -1]


def greedy(ids: Sequence[int], count: int) -> list[int]:
    """Return the best tokens that follow by `whole_logits` of the decoder of two layers."""
    told = _followed(tuple(map(int, ids)), max(count, 8))
    return list(told[:count])


@cache
def _followed(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    told = list(ids)
    for _ in range(count):
        told.append(int(np.argmax(whole_logits(told))))
    return tuple(told[len(ids) :])
