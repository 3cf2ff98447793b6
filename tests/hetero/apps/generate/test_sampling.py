"""The sampling node follows the documented meaning of its options."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hetero
from hetero.apps.generate.sampling import DOMAIN, Sampling, sample_function
from tests.support.decoders import chosen


def sampling_model(size: int) -> onnx.ModelProto:
    """Return a model of the sampling node alone, for a vocabulary of `size` tokens."""
    specs = (
        ("logits", TensorProto.FLOAT, [None, 1, size]),
        ("sampling", TensorProto.FLOAT, [None, 6]),
        ("seen", TensorProto.INT64, [None, None]),
    )
    graph = helper.make_graph(
        [helper.make_node("Sample", [name for name, *_ in specs], ["token"], domain=DOMAIN)],
        "sampling",
        [helper.make_tensor_value_info(*spec) for spec in specs],
        [helper.make_tensor_value_info("token", TensorProto.INT64, [None, 1])],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(
        graph, functions=[sample_function(17)], opset_imports=opsets, ir_version=8
    )


@pytest.mark.slow
@pytest.mark.parametrize("device", ["ORT", "CPU"])
def test_sampling_of_large_vocabulary_follows_options(device):
    size, kinds = (
        3000,
        [
            {},
            {"top_p": 0.6},
            {"top_p": 0.999},
            {"top_k": 5},
            {"top_k": 2000},
            {"min_p": 0.05},
            {"top_p": 0.9, "min_p": 0.02},
            {"top_k": 1500, "top_p": 0.9},
        ],
    )
    proto = sampling_model(size)
    rng = np.random.default_rng(5)
    with hetero.Core("inprocess") as core, core.compile_model(proto, device) as compiled:
        for spread in (0.5, 3.0, 6.0):  # the nucleus is inside or beyond the best 1,024
            for cases in (kinds, kinds[1:2], kinds[3:5]):
                scores = rng.normal(0, spread, (len(cases), 1, size)).astype(np.float32)
                rows = np.concatenate([Sampling(1.0, **kind).row(size) for kind in cases])
                rows[:, -1] = rng.random(len(cases), dtype=np.float32)
                [tokens] = compiled([scores, rows, np.zeros((len(cases), 1), np.int64)]).to_tuple()
                for kind, score, row, token in zip(cases, scores, rows, tokens, strict=True):
                    near = np.clip(row[-1] + np.float64([-1e-4, 0, 1e-4]), 0, 1 - 1e-7)
                    expected = [chosen(score[0], d, [], temperature=1, **kind) for d in near]
                    assert token[0] in expected


@pytest.mark.parametrize("device", ["ORT", "CPU"])
@pytest.mark.parametrize(
    "kinds",
    [
        [{}, {}],
        [{}, {"repetition_penalty": 4.0}],
        [{"repetition_penalty": 0.25}, {}],
        [{}, {"temperature": 1.0}],
        [{"temperature": 1.0, "top_k": 1}, {"top_p": 0.5}],
    ],
)
def test_rows_follow_their_own_options_in_a_batch(device, kinds):
    size = 16
    scores = np.float32(np.random.default_rng(3).normal(0, 2, (2, 1, size)))
    scores[:, 0, [5, 9]] = scores.max() + 1  # a tie: the first has it
    scores[:, 0, 2] = scores.max() - 0.5
    seen = np.int64([[5, 9], [5, 9]])
    rows = np.concatenate([Sampling(**kind).row(size) for kind in kinds])
    rows[:, -1] = 0.999
    with (
        hetero.Core("inprocess") as core,
        core.compile_model(sampling_model(size), device) as compiled,
    ):
        [tokens] = compiled([scores, rows, seen]).to_tuple()
    for kind, score, token in zip(kinds, scores, tokens, strict=True):
        greedy = {} if "temperature" in kind else {"temperature": 1.0, "top_k": 1}
        assert token[0] == chosen(score[0], 0.999, [5, 9], **kind, **greedy)
