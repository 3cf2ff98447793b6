"""Decoders: prompts in, tokens out, over devices that share the layers."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

import hetero
from hetero.apps.generate.pace import LARGEST, Pace
from hetero.apps.generate.steps import Steps
from hetero.apps.generate.together import Together
from hetero.errors import ArgumentError, ArgumentTypeError, HeteroError, ModelError
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
def core() -> Iterator[hetero.Core]:
    with core_on(Counting) as made:
        yield made


@pytest.fixture(scope="module")
def whole() -> Iterator[hetero.CompiledModel]:
    """The decoder on one device of this process."""
    with (
        core_on(MemoryChannel) as core,
        core.compile_model(hetero.read_decoder(decoder()), "CPU.0") as made,
    ):
        yield made


@pytest.fixture(scope="module")
def compiled(core: hetero.Core) -> Iterator[hetero.CompiledModel]:
    """The decoder, a layer and the choice of the token on the second device."""
    with core.compile_model(hetero.read_decoder(decoder()), SPLIT, affinity=PINS) as made:
        assert {s.device for s in made.subgraphs} == {"CPU.0", "CPU.1"}
        yield made


def test_the_best_tokens_are_those_of_the_whole_text_at_once(
    compiled: hetero.CompiledModel,
) -> None:
    for prompt in (PROMPT, [7], np.arange(20), np.int32([[4, 5]])):
        want = greedy(np.ravel(prompt), 8)
        generation = compiled.generate(prompt, 8)
        assert list(generation) == want == generation.tokens
        assert generation.finish_reason == "length"
        assert list(generation) == []


def test_asyncio_and_several_at_once_get_the_same(compiled: hetero.CompiledModel) -> None:
    prompts = [PROMPT, [7], [8, 8, 8], [1, 2]]

    async def streamed(prompt: list[int]) -> list[int]:
        return [token async for token in compiled.generate(prompt, 6)]

    async def together() -> list[list[int]]:
        return await asyncio.gather(*map(streamed, prompts), compiled.generate(PROMPT, 6))

    want = [greedy(prompt, 6) for prompt in prompts]
    assert asyncio.run(together()) == [*want, want[0]]
    turns = [compiled.generate(prompt, 6) for prompt in prompts]
    for _ in range(6):
        for generation in turns:
            next(generation)
    assert [generation.tokens for generation in turns] == want


def test_several_prompts_go_on_as_rows_with_the_tokens_that_each_has_alone(
    compiled: hetero.CompiledModel,
) -> None:
    prompts = [PROMPT, [7], [8, 8, 8]]
    for options in ({}, {"temperature": 6.0, "repetition_penalty": 1.5}):
        alone = [
            list(compiled.generate(p, 8, seed=5 + i, **options)) for i, p in enumerate(prompts)
        ]
        together = compiled.generate(prompts, 8, seed=5, **options)
        assert [list(row) for row in zip(*together, strict=True)] == alone == together.tokens
        assert together.finish_reasons == ["length"] * 3
    ends = alone[0][2]
    alone = [
        list(compiled.generate(p, 8, seed=5 + i, stop=[ends], **options))
        for i, p in enumerate(prompts)
    ]
    together = compiled.generate(prompts, 8, seed=5, stop=[ends], **options)
    rows = [list(row) for row in zip(*together, strict=True)]
    assert rows[0] == [*alone[0], *[None] * (len(rows[0]) - len(alone[0]))]
    assert (
        asyncio.run(awaited(compiled.generate(prompts, 8, seed=5, stop=[ends], **options))) == alone
    )


async def awaited(text: Any) -> Any:
    return await text


def test_a_long_prompt_is_computed_in_parts(
    compiled: hetero.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero.apps.generate.pace.LARGEST", 4)
    prompts = [list(range(10)), [5, 6, 7]]
    parts = []
    feeds = Steps.feeds

    def noted(self: Steps) -> dict[str, np.ndarray]:
        given = feeds(self)
        parts.append(given["input_ids"].shape[1])
        return given

    monkeypatch.setattr(Steps, "feeds", noted)
    assert list(compiled.generate(prompts[0], 6)) == greedy(prompts[0], 6)
    assert parts == [4, 4, 2, 1, 1, 1, 1, 1]
    together = compiled.generate(prompts, 6)
    list(together)
    assert together.tokens == [greedy(prompt, 6) for prompt in prompts]


def test_beside_other_texts_parts_cost_about_what_their_steps_do() -> None:
    """Two steps of one text, or half of what more of them do; seconds are said, not measured."""
    pace = Pace()
    assert pace.size(begins=True) == LARGEST
    pace.stepped(1.0)
    assert pace.size(begins=True) == 2  # a token of a prompt is taken to cost a step
    pace.fed(2, 1.0)
    assert pace.size(begins=False) == LARGEST  # nobody had a token meanwhile
    pace.fed(LARGEST, 8.0)  # a token costs a sixteenth of a step
    sizes = {}
    for others in (1, 16, 1000):
        for _ in range(others):
            pace.stepped(1.0)
        sizes[others] = pace.size(begins=False)
    assert sizes == {1: 32, 16: 128, 1000: 128}
    for _ in range(16):
        pace.stepped(1.0)
    assert pace.size(begins=True) == 32


def test_prompts_in_parts_of_any_size_beside_other_texts_give_the_same(
    compiled: hetero.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = np.random.default_rng(3).integers(2, 5, 200).tolist()
    monkeypatch.setattr(Pace, "size", lambda self, begins: sizes.pop())
    fed = []
    monkeypatch.setattr(Pace, "fed", lambda self, size, seconds: fed.append(size))
    prompts = [PROMPT, list(range(20)), [7] * 9]
    texts = [compiled.generate(prompt, 8) for prompt in prompts]
    for _ in range(8):
        for text in texts:
            next(text)
    assert [text.tokens for text in texts] == [greedy(prompt, 8) for prompt in prompts]
    assert min(fed) > 1  # a part of one token may round otherwise than one of several
    assert sum(fed) == sum(map(len, prompts))


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
def test_tokens_are_drawn_as_the_options_say_on_any_split(
    whole: hetero.CompiledModel, compiled: hetero.CompiledModel, options: dict[str, Any]
) -> None:
    draw = np.random.Generator(np.random.Philox(11))
    told, want = list(PROMPT), []
    for _ in range(12):
        drawn = float(draw.random(dtype=np.float32))
        want.append(chosen(whole_logits(told), drawn, told, **options))
        told.append(want[-1])
    assert list(compiled.generate(PROMPT, 12, seed=11, **options)) == want
    assert list(whole.generate(PROMPT, 12, seed=11, **options)) == want


@pytest.mark.parametrize("temperature", [1e-29, 1e-38, 1e-50])
def test_where_it_is_very_cold_the_best_is_drawn(
    compiled: hetero.CompiledModel, temperature: float
) -> None:
    assert list(compiled.generate(PROMPT, 4, temperature=temperature)) == greedy(PROMPT, 4)


def test_without_a_seed_each_text_is_another(whole: hetero.CompiledModel) -> None:
    first, second = (whole.generate(PROMPT, 20, temperature=1e4) for _ in range(2))
    assert list(first) != list(second)  # chance: 50 ** -20


def test_it_ends_at_eos_at_stop_and_with_the_context(
    core: hetero.Core, compiled: hetero.CompiledModel, tmp_path: Path
) -> None:
    tokens = greedy(PROMPT, 8)
    stopped = compiled.generate(PROMPT, 8, stop=[tokens[3]])
    assert (list(stopped), stopped.finish_reason) == (tokens[: tokens.index(tokens[3]) + 1], "stop")
    onnx.save(decoder(), tmp_path / "model.onnx")
    told = {"eos_token_id": [tokens[2], VOCABULARY + 7], "max_position_embeddings": len(PROMPT) + 5}
    (tmp_path / "config.json").write_text(json.dumps(told))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    with core.compile_model(hetero.read_decoder(tmp_path / "model.onnx"), SPLIT) as short:
        ended = short.generate(PROMPT)
        assert (list(ended), ended.finish_reason) == (tokens[: tokens.index(tokens[2]) + 1], "stop")
        full = short.generate(PROMPT, eos=())
        assert (list(full), full.finish_reason) == (tokens[:5], "length")
        with pytest.raises(ArgumentError, match="the model takes 11"):
            short.generate(range(11))


@pytest.mark.parametrize(
    "model",
    [decoder(), decoder_with_places_by("Reshape"), decoder_with_places_by("Cast", to=6)],
    ids=["Gather", "Reshape", "Cast"],
)
def test_it_ends_with_the_table_of_positions(core: hetero.Core, model: onnx.ModelProto) -> None:
    with core.compile_model(hetero.read_decoder(model), SPLIT) as compiled:
        full = compiled.generate(PROMPT, 10**6)
        assert (len(list(full)), full.finish_reason) == (CONTEXT - len(PROMPT), "length")
        with pytest.raises(ArgumentError, match=f"the model takes {CONTEXT}"):
            compiled.generate([1] * CONTEXT)


def test_logits_are_kept_where_they_are_asked_for(core: hetero.Core) -> None:
    model = hetero.read_decoder(decoder(), logits=True)
    with core.compile_model(model, SPLIT, affinity=PINS) as compiled:
        generation = compiled.generate(PROMPT, 3)
        for _ in range(3):
            told = [*PROMPT, *generation.tokens]
            next(generation)
            assert generation.logits is not None
            np.testing.assert_allclose(generation.logits, whole_logits(told), rtol=1e-3, atol=1e-4)


def test_the_client_gets_a_token_and_caches_stay(
    core: hetero.Core, compiled: hetero.CompiledModel
) -> None:
    def sent_nbytes(count: int) -> int:
        crossed()
        assert len(list(compiled.generate(PROMPT, count))) == count
        return sum(nbytes for *_, nbytes in crossed())

    each = np.diff([sent_nbytes(count) for count in (2, 6, 10, 14)]) / 4
    # The mask is a number longer for each token, and read in both halves' one bias.
    assert np.ptp(np.diff(each)) <= 64
    assert each[0] < 2000


def test_caches_are_freed_at_the_end_when_cancelled_and_when_dropped(
    core: hetero.Core, compiled: hetero.CompiledModel
) -> None:
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


def test_caches_can_be_seen_and_a_cancel_meets_a_step(
    compiled: hetero.CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = compiled.generate(PROMPT)
    next(generation)
    assert {s.state.shape for s in generation.query_state()} == {(1, 2, len(PROMPT), 8)}
    answered = Together._answered

    def cancelled_meanwhile(self: Together, *step: Any) -> None:
        generation.cancel()
        answered(self, *step)

    monkeypatch.setattr(Together, "_answered", cancelled_meanwhile)
    assert (list(generation), generation.finish_reason) == ([], "cancelled")
    assert generation.query_state() == ()


def test_a_blob_and_a_cache_generate_too(core: hetero.Core, tmp_path: Path) -> None:
    config = {"CACHE_DIR": str(tmp_path)}
    want = greedy(PROMPT, 4)
    for _ in range(2):
        read = hetero.read_decoder(decoder())
        with core.compile_model(read, SPLIT, config, affinity=PINS) as made:
            blob = made.export_model()
            assert list(made.generate(PROMPT, 4)) == want
    with core.import_model(blob) as again:
        assert list(again.generate(PROMPT, 4)) == want


@pytest.mark.parametrize(
    ("ids", "options", "error", "text"),
    [
        ([], {}, ArgumentError, "empty"),
        ([1, VOCABULARY], {}, ArgumentError, "50; the model's vocabulary is 0 to 49"),
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
        ([1], {"stop": 2}, ArgumentTypeError, "stop=2: wanted a list"),
        ([1], {"eos": 2}, ArgumentTypeError, "eos=2: wanted a list"),
    ],
)
def test_what_does_not_fit_is_refused_and_others_go_on(
    compiled: hetero.CompiledModel, ids: Any, options: Any, error: type[HeteroError], text: str
) -> None:
    other = compiled.generate(PROMPT, 4)
    first = next(other)
    with pytest.raises(error, match=text):
        compiled.generate(ids, **options)
    assert [first, *other] == greedy(PROMPT, 4)


def renamed(**names: str) -> onnx.ModelProto:
    """Return the decoder with ports of other names."""
    model = onnx.ModelProto()
    model.CopyFrom(decoder())
    for port in (*model.graph.input, *model.graph.output):
        port.name = names.get(port.name, port.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return model


def test_ports_that_names_do_not_tell_are_asked_for(core: hetero.Core) -> None:
    strange = renamed(
        input_ids="a", attention_mask="b", position_ids="c", logits="d", past_key_values_0_key="e"
    )
    with pytest.raises(ArgumentError, match=r"inputs 'a'.*'b'.*'c'.*'e'.*ports="):
        hetero.read_decoder(strange)
    states = {"e": "present_0_key", "past_key_values_*": "present_*"}
    ports = {"a": "ids", "b": "mask", "c": "positions", "d": "logits"}
    model = hetero.read_decoder(strange, states=states, ports=ports)
    with core.compile_model(model, "CPU.0") as compiled:
        assert list(compiled.generate(PROMPT, 4)) == greedy(PROMPT, 4)
    for wrong in ({"x": "ids"}, {"a": "word"}):
        with pytest.raises(ArgumentError, match="wanted one of its ports"):
            hetero.read_decoder(strange, states=states, ports=wrong)
    with pytest.raises(ArgumentError, match="one input of token ids"):
        hetero.read_decoder(strange, states=states, ports={**ports, "b": "ids"})


def test_a_part_of_a_decoder_says_what_is_missing() -> None:
    with pytest.raises(ArgumentError, match=r"lm_head"):
        hetero.read_decoder(renamed(logits="hidden_states"))
    with pytest.raises(ArgumentError, match=r"'inputs_embeds'.*embeddings.*merge_models"):
        hetero.read_decoder(renamed(input_ids="inputs_embeds"))


@pytest.mark.parametrize("eos", [2, "</s>", [None], [True]])
def test_what_ends_texts_is_a_list_of_tokens(eos: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"eos=.*: wanted a list"):
        hetero.read_decoder(decoder(), eos=eos)


def test_logits_are_asked_for_of_the_newest_position(core: hetero.Core) -> None:
    asking = renamed(logits="of_each")
    asking.graph.output[0].name = "logits"
    graph = parse_graph("""
        newest (int64 num_logits_to_keep, float[b, n, v] of_each) => (float[b, 1, v] logits) {
            newest_axis = Constant <value = int64[1] {1}> ()
            newest_count = Reshape (num_logits_to_keep, newest_axis)
            newest_from = Neg (newest_count)
            newest_end = Constant <value = int64[1] {100}> ()
            logits = Slice (of_each, newest_from, newest_end, newest_axis)
        }""")
    asking.graph.node.extend(graph.node)
    asking.graph.input.append(graph.input[0])
    with core.compile_model(hetero.read_decoder(asking), "CPU.0") as compiled:
        assert list(compiled.generate(PROMPT, 4)) == greedy(PROMPT, 4)


def test_a_model_that_is_no_decoder_says_so(core: hetero.Core, tmp_path: Path) -> None:
    with (
        core.compile_model(decoder(), "CPU.0") as plain,
        pytest.raises(ArgumentError, match="read_decoder"),
    ):
        plain.generate([1])
    onnx.save(decoder(), tmp_path / "model.onnx")
    (tmp_path / "genai_config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"genai_config\.json"):
        hetero.read_decoder(tmp_path / "model.onnx")
