"""What a small decoder says, by ONNX's evaluator, which sees the whole text at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero.examples.small_decoder import CONTEXT, VOCABULARY, small_decoder

__all__ = [
    "CONTEXT",
    "VOCABULARY",
    "chosen",
    "decoder",
    "decoder_with_places_by",
    "greedy",
    "whole_logits",
]

decoder = cache(small_decoder)


def decoder_with_places_by(kind: str, **attributes: Any) -> onnx.ModelProto:
    """Return the decoder with an operator between its positions and the table of them."""
    model = small_decoder()
    shape = numpy_helper.from_array(np.array([0, -1]), "as_they_are")
    model.graph.initializer.append(shape)
    (places,) = (node for node in model.graph.node if "position_ids" in node.input)
    reads = ["position_ids", shape.name] if kind == "Reshape" else ["position_ids"]
    model.graph.node.insert(0, helper.make_node(kind, reads, ["told"], "told", **attributes))
    places.input[1] = "told"
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
            given[port.name] = np.zeros((1, 2, 0, 8), np.float32)
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


def chosen(scores: np.ndarray, drawn: float, seen: list[int], **options: float) -> int:
    """Return the token by the words of the documentation, one score at a time."""
    k, p = int(options.get("top_k", 0)) or len(scores), options.get("top_p", 1.0)
    penalty = options.get("repetition_penalty", 1.0)
    scores = scores.astype(np.float64)
    for i in set(seen):
        scores[i] = scores[i] * penalty if scores[i] < 0 else scores[i] / penalty
    scores /= options["temperature"]
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    weights = np.exp(scores[best] - scores[best[0]])
    weights /= weights.sum()
    kept, before = [], 0.0
    for i, weight in zip(best, weights, strict=True):
        if before < p and weight >= options.get("min_p", 0.0) * weights[0]:
            kept.append((i, weight))
        before += weight
    if k >= len(scores) and p >= 1:  # nothing goes by rank: in the vocabulary's order
        kept.sort()
    goal, reached = drawn * sum(weight for _, weight in kept), 0.0
    for i, weight in kept:
        reached += weight
        if reached > goal:
            return i
    return kept[-1][0]
