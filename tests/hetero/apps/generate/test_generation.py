"""Generation with decoders whose layers are split over devices."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

import hetero
from hetero.apps.generate.batcher import Batcher
from hetero.apps.generate.prefill_chunks import MAX_CHUNK, ChunkSizer
from hetero.apps.generate.step_inputs import StepInputs
from hetero.errors import ArgumentError, ArgumentTypeError, ModelError
from hetero.scheduler.channels.memory import MemoryChannel
from tests.support.decoders import (
    CONTEXT,
    VOCABULARY,
    chosen,
    decoder,
    decoder_with_places_by,
    greedy,
    whole_logits,
)
from tests.support.remote_cores import Counting, await_freed, core_on, crossed

SPLIT = "HETERO:CPU.0,CPU.1"
PINS = {"*_1": "CPU.1", "sample": "CPU.1"}
PROMPT = [3, 14, 15, 9, 2, 6]


@pytest.fixture(scope="module")
def core():
    with core_on(Counting) as counting_core:
        yield counting_core


@pytest.fixture(scope="module")
def whole():
    """The decoder on one device of this process."""
    with (
        core_on(MemoryChannel) as core,
        core.compile_model(hetero.read_decoder(decoder()), "CPU.0") as compiled_model,
    ):
        yield compiled_model


@pytest.fixture(scope="module")
def compiled(core):
    """The decoder with one layer and the sampling node on the second device."""
    with core.compile_model(hetero.read_decoder(decoder()), SPLIT, affinity=PINS) as compiled_model:
        assert {s.device for s in compiled_model.subgraphs} == {"CPU.0", "CPU.1"}
        yield compiled_model


def test_greedy_tokens_equal_those_of_the_whole_text(
    compiled,
):
    for prompt in (PROMPT, [7], np.arange(20), np.int32([[4, 5]])):
        expected = greedy(np.ravel(prompt), 8)
        generation = compiled.generate(prompt, 8)
        assert list(generation) == expected == generation.tokens
        assert generation.finish_reason == "length"
        assert list(generation) == []


def test_concurrent_generations_are_independent(compiled):
    prompts = [PROMPT, [7], [8, 8, 8], [1, 2]]

    async def streamed(prompt: list[int]) -> list[int]:
        return [token async for token in compiled.generate(prompt, 6)]

    async def gather_tokens() -> list[list[int]]:
        return await asyncio.gather(*map(streamed, prompts), compiled.generate(PROMPT, 6))

    expected = [greedy(prompt, 6) for prompt in prompts]
    assert asyncio.run(gather_tokens()) == [*expected, expected[0]]
    generations = [compiled.generate(prompt, 6) for prompt in prompts]
    for _ in range(6):
        for generation in generations:
            next(generation)
    assert [generation.tokens for generation in generations] == expected


def test_batch_has_the_tokens_of_each_prompt_alone(
    compiled,
):
    prompts = [PROMPT, [7], [8, 8, 8]]
    for options in ({}, {"temperature": 6.0, "repetition_penalty": 1.5}):
        separate_tokens = [
            list(compiled.generate(p, 8, seed=5 + i, **options)) for i, p in enumerate(prompts)
        ]
        batch = compiled.generate(prompts, 8, seed=5, **options)
        assert [list(row) for row in zip(*batch, strict=True)] == separate_tokens == batch.tokens
        assert batch.finish_reasons == ["length"] * 3
    ends = separate_tokens[0][2]
    separate_tokens = [
        list(compiled.generate(p, 8, seed=5 + i, stop=[ends], **options))
        for i, p in enumerate(prompts)
    ]
    batch = compiled.generate(prompts, 8, seed=5, stop=[ends], **options)
    rows = [list(row) for row in zip(*batch, strict=True)]
    assert rows[0] == [*separate_tokens[0], *[None] * (len(rows[0]) - len(separate_tokens[0]))]
    assert (
        asyncio.run(result_of(compiled.generate(prompts, 8, seed=5, stop=[ends], **options)))
        == separate_tokens
    )


async def result_of(generation: Any) -> Any:
    return await generation


def test_long_prompt_is_prefilled_in_chunks(compiled, monkeypatch):
    monkeypatch.setattr("hetero.apps.generate.prefill_chunks.MAX_CHUNK", 4)
    prompts = [list(range(10)), [5, 6, 7]]
    chunks = []
    feeds = StepInputs.feeds

    def recording(self: StepInputs) -> dict[str, np.ndarray]:
        inputs = feeds(self)
        chunks.append(inputs["input_ids"].shape[1])
        return inputs

    monkeypatch.setattr(StepInputs, "feeds", recording)
    assert list(compiled.generate(prompts[0], 6)) == greedy(prompts[0], 6)
    assert chunks == [4, 4, 2, 1, 1, 1, 1, 1]
    batch = compiled.generate(prompts, 6)
    list(batch)
    assert batch.tokens == [greedy(prompt, 6) for prompt in prompts]


def test_chunk_size_follows_the_steps_of_others():
    """A chunk takes two steps, or half of the time of the others' steps; times are simulated."""
    sizer = ChunkSizer()
    assert sizer.size(is_first=True) == MAX_CHUNK
    sizer.observe_step(1.0)
    assert sizer.size(is_first=True) == 2  # before a measurement, a prompt token counts as a step
    sizer.observe_chunk(2, 1.0)
    assert sizer.size(is_first=False) == MAX_CHUNK  # no other sequence had a step
    sizer.observe_chunk(MAX_CHUNK, 8.0)  # a token costs a sixteenth of a step
    sizes = {}
    for others in (1, 16, 1000):
        for _ in range(others):
            sizer.observe_step(1.0)
        sizes[others] = sizer.size(is_first=False)
    assert sizes == {1: 32, 16: 128, 1000: 128}
    for _ in range(16):
        sizer.observe_step(1.0)
    assert sizer.size(is_first=True) == 32


def test_chunks_of_any_size_give_the_same_tokens(compiled, monkeypatch):
    sizes = np.random.default_rng(3).integers(2, 5, 200).tolist()
    monkeypatch.setattr(ChunkSizer, "size", lambda self, is_first: sizes.pop())
    chunks = []
    monkeypatch.setattr(
        ChunkSizer, "observe_chunk", lambda self, size, seconds: chunks.append(size)
    )
    prompts = [PROMPT, list(range(20)), [7] * 9]
    generations = [compiled.generate(prompt, 8) for prompt in prompts]
    for _ in range(8):
        for generation in generations:
            next(generation)
    assert [generation.tokens for generation in generations] == [
        greedy(prompt, 8) for prompt in prompts
    ]
    assert min(chunks) > 1  # a single token may be rounded differently
    assert sum(chunks) == sum(map(len, prompts))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 6.0},
        {"temperature": 5.0, "top_k": 5},
        {"temperature": 9.0, "top_p": 0.6},
        {"temperature": 6.0, "min_p": 0.02},
        {"temperature": 1.5, "repetition_penalty": 1.8, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    ],
    ids=str,
)
def test_sampling_matches_the_reference_on_any_split(whole, compiled, options):
    draw = np.random.Generator(np.random.Philox(11))
    ids, expected = list(PROMPT), []
    for _ in range(12):
        number = float(draw.random(dtype=np.float32))
        expected.append(chosen(whole_logits(ids), number, ids, **options))
        ids.append(expected[-1])
    assert list(compiled.generate(PROMPT, 12, seed=11, **options)) == expected
    assert list(whole.generate(PROMPT, 12, seed=11, **options)) == expected


@pytest.mark.parametrize("temperature", [1e-29, 1e-38, 1e-50])
def test_tiny_temperature_is_greedy(compiled, temperature):
    assert list(compiled.generate(PROMPT, 4, temperature=temperature)) == greedy(PROMPT, 4)


def test_generations_without_a_seed_differ(whole):
    first, second = (whole.generate(PROMPT, 20, temperature=1e4) for _ in range(2))
    assert list(first) != list(second)  # equal with a probability of 50 ** -20


def test_generation_ends_at_eos_stop_and_context(core, compiled, tmp_path):
    tokens = greedy(PROMPT, 8)
    stopped = compiled.generate(PROMPT, 8, stop=[tokens[3]])
    assert (list(stopped), stopped.finish_reason) == (tokens[: tokens.index(tokens[3]) + 1], "stop")
    onnx.save(decoder(), tmp_path / "model.onnx")
    config = {
        "eos_token_id": [tokens[2], VOCABULARY + 7],
        "max_position_embeddings": len(PROMPT) + 5,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    with core.compile_model(hetero.read_decoder(tmp_path / "model.onnx"), SPLIT) as short_model:
        ended_at_eos = short_model.generate(PROMPT)
        assert (list(ended_at_eos), ended_at_eos.finish_reason) == (
            tokens[: tokens.index(tokens[2]) + 1],
            "stop",
        )
        full = short_model.generate(PROMPT, eos=())
        assert (list(full), full.finish_reason) == (tokens[:5], "length")
        with pytest.raises(ArgumentError, match="context of the model is 11"):
            short_model.generate(range(11))


@pytest.mark.parametrize(
    "model",
    [decoder(), decoder_with_places_by("Reshape"), decoder_with_places_by("Cast", to=6)],
    ids=["Gather", "Reshape", "Cast"],
)
def test_generation_ends_with_the_position_table(core, model):
    with core.compile_model(hetero.read_decoder(model), SPLIT) as compiled:
        full = compiled.generate(PROMPT, 10**6)
        assert (len(list(full)), full.finish_reason) == (CONTEXT - len(PROMPT), "length")
        with pytest.raises(ArgumentError, match=f"context of the model is {CONTEXT}"):
            compiled.generate([1] * CONTEXT)


def test_logits_are_returned_on_request(core):
    model = hetero.read_decoder(decoder(), logits=True)
    with core.compile_model(model, SPLIT, affinity=PINS) as compiled:
        generation = compiled.generate(PROMPT, 3)
        for _ in range(3):
            ids = [*PROMPT, *generation.tokens]
            next(generation)
            assert generation.logits is not None
            np.testing.assert_allclose(generation.logits, whole_logits(ids), rtol=1e-3, atol=1e-4)


def test_only_tokens_return_to_the_client(core, compiled):
    def sent_nbytes(count: int) -> int:
        crossed()
        assert len(list(compiled.generate(PROMPT, count))) == count
        return sum(nbytes for *_, nbytes in crossed())

    nbytes_per_token = np.diff([sent_nbytes(count) for count in (2, 6, 10, 14)]) / 4
    # The mask grows by one number per token, and both subgraphs read it.
    assert np.ptp(np.diff(nbytes_per_token)) <= 64
    assert nbytes_per_token[0] < 2000


def test_caches_are_freed_at_end_cancel_and_drop(core, compiled):
    await_freed(core, 0)
    list(compiled.generate(PROMPT, 3))
    await_freed(core, 0)
    generation = compiled.generate(PROMPT)
    next(generation)
    generation.cancel()
    assert (list(generation), generation.finish_reason) == ([], "cancelled")
    await_freed(core, 0)
    next(compiled.generate(PROMPT))
    gc.collect()
    await_freed(core, 0)


def test_cancel_during_a_step(compiled, monkeypatch):
    generation = compiled.generate(PROMPT)
    next(generation)
    assert {s.state.shape for s in generation.query_state()} == {(1, 2, len(PROMPT), 8)}
    complete = Batcher._complete

    def cancel_first(self: Batcher, *step: Any) -> None:
        generation.cancel()
        complete(self, *step)

    monkeypatch.setattr(Batcher, "_complete", cancel_first)
    assert (list(generation), generation.finish_reason) == ([], "cancelled")
    assert generation.query_state() == ()


def test_generation_from_blob_and_cache(core, tmp_path):
    config = {"CACHE_DIR": str(tmp_path)}
    expected = greedy(PROMPT, 4)
    for _ in range(2):
        read = hetero.read_decoder(decoder())
        with core.compile_model(read, SPLIT, config, affinity=PINS) as compiled_model:
            blob = compiled_model.export_model()
            assert list(compiled_model.generate(PROMPT, 4)) == expected
    with core.import_model(blob) as again:
        assert list(again.generate(PROMPT, 4)) == expected


@pytest.mark.parametrize(
    ("ids", "options", "error", "text"),
    [
        ([], {}, ArgumentError, "empty"),
        ([1, VOCABULARY], {}, ArgumentError, "50; the vocabulary is 0 to 49"),
        ([-1], {}, ArgumentError, "-1"),
        ("once", {}, ArgumentTypeError, "tokenizer"),
        ([1.5], {}, ArgumentTypeError, "token ids"),
        ([[1, 2], []], {}, ArgumentError, "empty"),
        ([[1, 2], "once"], {}, ArgumentTypeError, "token ids"),
        ([1], {"max_new_tokens": 0}, ArgumentError, "max_new_tokens"),
        ([1], {"temperature": -1}, ArgumentError, "temperature"),
        ([1], {"temperature": "hot"}, ArgumentTypeError, "temperature"),
        ([1], {"top_k": 1.5}, ArgumentError, "top_k"),
        ([1], {"top_p": 0}, ArgumentError, "top_p"),
        ([1], {"temperature": 10**400}, ArgumentError, "temperature"),
        ([1], {"inputs": 5}, ArgumentTypeError, "a dict"),
        ([1], {"min_p": 2}, ArgumentError, "min_p"),
        ([1], {"repetition_penalty": 0}, ArgumentError, "repetition_penalty"),
        ([1], {"seed": -1}, ArgumentError, "seed"),
        ([1], {"stop": ["."]}, ArgumentTypeError, "stop"),
        ([1], {"stop": 2}, ArgumentTypeError, "stop=2: expected a list"),
        ([1], {"eos": 2}, ArgumentTypeError, "eos=2: expected a list"),
    ],
)
def test_invalid_arguments_do_not_disturb_others(compiled, ids, options, error, text):
    other = compiled.generate(PROMPT, 4)
    first = next(other)
    with pytest.raises(error, match=text):
        compiled.generate(ids, **options)
    assert [first, *other] == greedy(PROMPT, 4)


def with_names(**names: str) -> onnx.ModelProto:
    """Return the decoder with renamed ports."""
    model = onnx.ModelProto()
    model.CopyFrom(decoder())
    for port in (*model.graph.input, *model.graph.output):
        port.name = names.get(port.name, port.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return model


def test_unknown_ports_need_the_ports_argument(core):
    renamed = with_names(
        input_ids="a", attention_mask="b", position_ids="c", logits="d", past_key_values_0_key="e"
    )
    with pytest.raises(ArgumentError, match=r"inputs 'a'.*'b'.*'c'.*'e'.*ports="):
        hetero.read_decoder(renamed)
    states = {"e": "present_0_key", "past_key_values_*": "present_*"}
    ports = {"a": "ids", "b": "mask", "c": "positions", "d": "logits"}
    model = hetero.read_decoder(renamed, states=states, ports=ports)
    with core.compile_model(model, "CPU.0") as compiled:
        assert list(compiled.generate(PROMPT, 4)) == greedy(PROMPT, 4)
    for invalid_ports in ({"x": "ids"}, {"a": "word"}):
        with pytest.raises(ArgumentError, match="expected one of its ports"):
            hetero.read_decoder(renamed, states=states, ports=invalid_ports)
    with pytest.raises(ArgumentError, match="one input of token ids"):
        hetero.read_decoder(renamed, states=states, ports={**ports, "b": "ids"})


def test_incomplete_decoder_names_the_missing_part():
    with pytest.raises(ArgumentError, match=r"lm_head"):
        hetero.read_decoder(with_names(logits="hidden_states"))
    with pytest.raises(ArgumentError, match=r"'inputs_embeds'.*embeddings.*merge_models"):
        hetero.read_decoder(with_names(input_ids="inputs_embeds"))


@pytest.mark.parametrize("eos", [2, "</s>", [None], [True]])
def test_eos_must_be_a_list_of_ids(eos):
    with pytest.raises(ArgumentTypeError, match=r"eos=.*: expected a list"):
        hetero.read_decoder(decoder(), eos=eos)


def test_decoder_with_num_logits_to_keep(core):
    proto = with_names(logits="of_each")
    proto.graph.output[0].name = "logits"
    graph = parse_graph("""
        newest (int64 num_logits_to_keep, float[b, n, v] of_each) => (float[b, 1, v] logits) {
            newest_axis = Constant <value = int64[1] {1}> ()
            newest_count = Reshape (num_logits_to_keep, newest_axis)
            newest_from = Neg (newest_count)
            newest_end = Constant <value = int64[1] {100}> ()
            logits = Slice (of_each, newest_from, newest_end, newest_axis)
        }""")
    proto.graph.node.extend(graph.node)
    proto.graph.input.append(graph.input[0])
    with core.compile_model(hetero.read_decoder(proto), "CPU.0") as compiled:
        assert list(compiled.generate(PROMPT, 4)) == greedy(PROMPT, 4)


def test_model_that_is_not_a_decoder(core, tmp_path):
    with (
        core.compile_model(decoder(), "CPU.0") as plain,
        pytest.raises(ArgumentError, match="read_decoder"),
    ):
        plain.generate([1])
    onnx.save(decoder(), tmp_path / "model.onnx")
    (tmp_path / "genai_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"genai_config\.json"):
        hetero.read_decoder(tmp_path / "model.onnx")
