"""Decoders whose states are not grown by Concat: opset 23 and 24's attention, recurrent ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import hetero
from hetero.errors import ArgumentError
from tests.support.kinds_of_state import ROOM, attention, grouped, recurrent, scattered

PROMPT = [3, 14, 15]


def greedy(model: onnx.ModelProto, count: int) -> list[int]:
    """Return the best tokens by ONNX's evaluator, its states handed along by hand."""
    evaluator = ReferenceEvaluator(model)
    states = {
        port.name: np.zeros([d.dim_value or int(d.dim_param == "batch") for d in _dims(port)], "f")
        for port in model.graph.input
        if port.name.startswith("past")
    }
    names = [port.name for port in model.graph.output]
    ids, past, tokens = PROMPT, 0, []
    for _ in range(count):
        given = {"input_ids": np.int64([ids]), **states}
        for name, length in (("write_indices", past), ("nonpad_kv_seqlen", past + len(ids))):
            if any(port.name == name for port in model.graph.input):
                given[name] = np.int64([length])
        made = dict(zip(names, evaluator.run(None, given), strict=True))
        states = {
            name: made[name.replace("past_key_values", "present").replace("past_", "present_")]
            for name in states
        }
        past, ids = past + len(ids), [int(made["logits"][0, -1].argmax())]
        tokens += ids
    return tokens


def _dims(port: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(port.type.tensor_type.shape.dim)


@pytest.mark.parametrize("make", [attention, scattered, recurrent])
def test_states_of_every_kind_are_found_and_handed_on(
    make: Callable[[], onnx.ModelProto],
) -> None:
    model = make()
    with hetero.Core("inprocess", devices={"CPU": 2}) as core:
        pins = {"sample": "CPU.1"}
        compiled = core.compile_model(hetero.read_decoder(model), "HETERO", affinity=pins)
        text = compiled.generate(PROMPT, 12)
        assert list(text) == greedy(model, 12)


@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_a_heads_size_that_ports_leave_open_is_the_attentions(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "ORT":
        pytest.importorskip("onnxruntime")
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(hetero.read_decoder(grouped()), device)
        want = greedy(attention(), 12)
        assert list(compiled.generate(PROMPT, 12)) == want
        # Rows are not fed in parts: the operator takes none of several with caches.
        monkeypatch.setattr(
            "hetero.apps.generate.prefill_chunks.ChunkSizer.size", lambda self, is_first: 1
        )
        assert list(compiled.generate(PROMPT, 12)) == want
        together = compiled.generate([PROMPT, PROMPT], 12)
        list(together)
        assert together.tokens == [want, want]


def at_once(model: onnx.ModelProto, prompt: Sequence[int], count: int) -> list[int]:
    """Return the best tokens by ONNX Runtime, which sees the whole text for each."""
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(model.SerializeToString())
    none = np.zeros((1, 2, 0, 8), np.float32)
    ids = list(prompt)
    for _ in range(count):
        given = {"input_ids": np.int64([ids]), "attention_mask": np.ones((1, len(ids)), np.int64)}
        caches = {f"past_key_values.0.{kind}": none for kind in ("key", "value")}
        ids.append(int(session.run(["logits"], given | caches)[0][0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_caches_as_long_as_a_window_hold_the_whole_text_instead(device: str) -> None:
    window = ", local_window_size = 4"
    want = at_once(grouped(window), PROMPT, 12)
    with hetero.Core("inprocess") as core:
        model = hetero.read_decoder(grouped(f"{window}, sliding_window_cache = 1"))
        assert list(core.compile_model(model, device).generate(PROMPT, 12)) == want


def test_caches_are_made_anew_where_a_text_becomes_one_of_the_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with the two rotations of a long context; whether prompts come in parts, or rows meet."""
    changing = grouped(
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
    want = [at_once(changing, prompt, 12) for prompt in prompts]
    with hetero.Core("inprocess") as core:
        compiled = core.compile_model(hetero.read_decoder(changing), "ORT")
        assert [list(compiled.generate(prompt, 12)) for prompt in prompts] == want
        together = compiled.generate(prompts, 12)
        list(together)
        assert together.tokens == want


def test_a_cache_of_one_length_bounds_the_text() -> None:
    with hetero.Core("inprocess", devices={"CPU": 1}) as core:
        compiled = core.compile_model(hetero.read_decoder(scattered()), "CPU")
        text = compiled.generate(PROMPT, 100)
        assert len(list(text)) == ROOM - len(PROMPT)
        with pytest.raises(
            ArgumentError, match=f"{ROOM} tokens; the context of the model is {ROOM}"
        ):
            compiled.generate([1] * ROOM)


def test_lengths_by_other_names_are_asked_for() -> None:
    model = scattered()
    for port in model.graph.input:
        port.name = port.name.replace("write_indices", "where")
    for node in model.graph.node:
        node.input[:] = ["where" if name == "write_indices" else name for name in node.input]
    with pytest.raises(
        ArgumentError, match=r"'where'.*ports=\{name: role\} with a role of .*past_length"
    ):
        hetero.read_decoder(model)
    read = hetero.read_decoder(model, ports={"where": "past_length"})
    with hetero.Core("inprocess", devices={"CPU": 1}) as core:
        text = core.compile_model(read, "CPU").generate(PROMPT, 4)
        assert list(text) == greedy(scattered(), 4)
