"""Expected tokens of a small decoder: ONNX's evaluator on whole sequences, without a cache."""

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
    """Return the decoder with one more operator between its position ids and their embedding."""
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
    """Return the last logits of a sequence, from one run of ONNX's evaluator without a cache."""
    model, evaluator = decoder(), _evaluator()
    inputs: dict[str, np.ndarray] = {
        "input_ids": np.asarray([ids], np.int64),
        "attention_mask": np.ones((1, len(ids)), np.int64),
        "position_ids": np.arange(len(ids))[None],
    }
    for port in model.graph.input:
        if port.name.startswith("past"):
            inputs[port.name] = np.zeros((1, 2, 0, 8), np.float32)
    logits: np.ndarray = evaluator.run(["logits"], inputs)[0]
    return logits[0, -1]


def greedy(ids: Sequence[int], count: int) -> list[int]:
    """Return the `count` tokens with the highest logits that follow a sequence."""
    tokens = _greedy_tokens(tuple(map(int, ids)), max(count, 8))
    return list(tokens[:count])


@cache
def _greedy_tokens(ids: tuple[int, ...], count: int) -> tuple[int, ...]:
    tokens = list(ids)
    for _ in range(count):
        tokens.append(int(np.argmax(whole_logits(tokens))))
    return tuple(tokens[len(ids) :])


def chosen(scores: np.ndarray, random_number: float, seen: list[int], **options: float) -> int:
    """Sample a token by the documented rules, one score at a time."""
    k, p = int(options.get("top_k", 0)) or len(scores), options.get("top_p", 1.0)
    penalty = options.get("repetition_penalty", 1.0)
    scores = scores.astype(np.float64)
    for i in set(seen):
        scores[i] = scores[i] * penalty if scores[i] < 0 else scores[i] / penalty
    scores /= options["temperature"]
    best = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    weights = np.exp(scores[best] - scores[best[0]])
    weights /= weights.sum()
    candidates, before = [], 0.0
    for i, weight in zip(best, weights, strict=True):
        if before < p and weight >= options.get("min_p", 0.0) * weights[0]:
            candidates.append((i, weight))
        before += weight
    if (
        k >= len(scores) and p >= 1
    ):  # without a rank limit, candidates are in the vocabulary's order
        candidates.sort()
    goal, cumulative_weight = random_number * sum(weight for _, weight in candidates), 0.0
    for i, weight in candidates:
        cumulative_weight += weight
        if cumulative_weight > goal:
            return i
    return candidates[-1][0]
