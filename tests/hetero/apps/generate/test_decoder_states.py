"""Decoders with other states than concatenated caches: attention operators and recurrences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import hetero
from hetero.errors import ArgumentError
from tests.support.stateful_decoders import ROOM, attention, grouped, recurrent, scattered

PROMPT = [3, 14, 15]


def greedy(model: onnx.ModelProto, count: int) -> list[int]:
    """Generate greedily with the reference evaluator of ONNX, passing the states explicitly."""
    evaluator = ReferenceEvaluator(model)
    states = {
        port.name: np.zeros([d.dim_value or int(d.dim_param == "batch") for d in _dims(port)], "f")
        for port in model.graph.input
        if port.name.startswith("past")
    }
    names = [port.name for port in model.graph.output]
    ids, past, tokens = PROMPT, 0, []
    for _ in range(count):
        inputs = {"input_ids": np.int64([ids]), **states}
        for name, length in (("write_indices", past), ("nonpad_kv_seqlen", past + len(ids))):
            if any(port.name == name for port in model.graph.input):
                inputs[name] = np.int64([length])
        outputs = dict(zip(names, evaluator.run(None, inputs), strict=True))
        states = {
            name: outputs[name.replace("past_key_values", "present").replace("past_", "present_")]
            for name in states
        }
        past, ids = past + len(ids), [int(outputs["logits"][0, -1].argmax())]
        tokens += ids
    return tokens


def _dims(port: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(port.type.tensor_type.shape.dim)


@pytest.mark.parametrize("make", [attention, scattered, recurrent])
def test_states_of_every_kind_are_passed_on(
    make,
):
    model = make()
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        pins = {"sample": "CPU.1"}
        compiled = core.compile_model(hetero.read_decoder(model), "HETERO", affinity=pins)
        generation = compiled.generate(PROMPT, 12)
        assert list(generation) == greedy(model, 12)


@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_dynamic_head_size_comes_from_the_attention(device, monkeypatch):
    if device == "ORT":
        pytest.importorskip("onnxruntime")
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(hetero.read_decoder(grouped()), device)
        expected = greedy(attention(), 12)
        assert list(compiled.generate(PROMPT, 12)) == expected
        # With one token per run, because the operator refuses chunks of several rows with caches.
        monkeypatch.setattr(
            "hetero.apps.generate.prefill_chunks.ChunkSizer.size", lambda self, is_first: 1
        )
        assert list(compiled.generate(PROMPT, 12)) == expected
        batch = compiled.generate([PROMPT, PROMPT], 12)
        list(batch)
        assert batch.tokens == [expected, expected]


def generate_without_cache(model: onnx.ModelProto, prompt: Sequence[int], count: int) -> list[int]:
    """Generate greedily with ONNX Runtime, which reads the whole sequence for each token."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    empty = np.zeros((1, 2, 0, 8), np.float32)
    ids = list(prompt)
    for _ in range(count):
        inputs = {"input_ids": np.int64([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        caches = {f"past_key_values.0.{kind}": empty for kind in ("key", "value")}
        ids.append(int(session.run(["logits"], inputs | caches)[0][0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_sliding_window_cache_holds_the_whole_sequence(device):
    window = ", local_window_size = 4"
    expected = generate_without_cache(grouped(window), PROMPT, 12)
    with hetero.Core("inprocess") as core:
        model = hetero.read_decoder(grouped(f"{window}, sliding_window_cache = 1"))
        assert list(core.compile_model(model, device).generate(PROMPT, 12)) == expected


def test_caches_are_recomputed_when_long_context_begins(
    monkeypatch,
):
    """Some models change their rotary embedding for long contexts, which invalidates the caches."""
    model = grouped(
        keys="""plain = MatMul (words, wk)
    limit = Constant <value = int64 {8}> ()
    is_long = Greater (whole, limit)
    factor = If (is_long) <
        then_branch = long () => (float a) { a = Constant <value = float {-3.0}> () },
        else_branch = short () => (float b) { b = Constant <value = float {1.0}> () }>
    k = Mul (plain, factor)"""
    )
    monkeypatch.setattr(
        "hetero.apps.generate.prefill_chunks.ChunkSizer.size", lambda self, is_first: 2
    )
    prompts = [PROMPT, [7], [9, 9, 9, 9, 9, 9], list(range(12)), list(range(8)), list(range(9))]
    expected = [generate_without_cache(model, prompt, 12) for prompt in prompts]
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(hetero.read_decoder(model), "ORT")
        assert [list(compiled.generate(prompt, 12)) for prompt in prompts] == expected
        batch = compiled.generate(prompts, 12)
        list(batch)
        assert batch.tokens == expected


def test_fixed_cache_length_limits_the_sequence():
    with hetero.Core("inprocess", devices={"CPU": 1}) as core:
        compiled = core.compile_model(hetero.read_decoder(scattered()), "CPU")
        generation = compiled.generate(PROMPT, 100)
        assert len(list(generation)) == ROOM - len(PROMPT)
        with pytest.raises(
            ArgumentError, match=f"{ROOM} tokens; the context of the model is {ROOM}"
        ):
            compiled.generate([1] * ROOM)


def test_unknown_length_input_requires_a_role():
    model = scattered()
    for port in model.graph.input:
        port.name = port.name.replace("write_indices", "where")
    for node in model.graph.node:
        node.input[:] = ["where" if name == "write_indices" else name for name in node.input]
    with pytest.raises(
        ArgumentError, match=r"'where'.*ports=\{name: role\} with a role of .*past_length"
    ):
        hetero.read_decoder(model)
    decoder = hetero.read_decoder(model, ports={"where": "past_length"})
    with hetero.Core("inprocess", devices={"CPU": 1}) as core:
        generation = core.compile_model(decoder, "CPU").generate(PROMPT, 4)
        assert list(generation) == greedy(scattered(), 4)
