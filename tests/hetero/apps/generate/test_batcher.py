"""Continuous batching: each sequence gets the tokens that it would get in a batch of its own."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

import hetero
from hetero.apps.generate.generation import batcher_of
from hetero.apps.generate.sequences import MAX_UNREAD
from hetero.devices.errors import DeviceMemoryError, TensorLostError
from hetero.devices.request.infer_request import InferRequest
from hetero.scheduler.channels.memory import MemoryChannel
from tests.support.decoders import decoder
from tests.support.full_batches import FullBatches, read
from tests.support.remote_cores import Counting, await_freed, core_on, crossed
from tests.support.stateful_decoders import attention, grouped, recurrent, scattered

SPLIT = "HETERO:CPU.0,CPU.1"
PINS = {"*_1": "CPU.1", "sample": "CPU.1"}
PROMPTS: list[list[int]] = [[3, 14, 15, 9, 2, 6], [7], [8, 8, 8], list(range(20))]
#: One sequence is greedy, the others are sampled.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 6.0, "seed": 1},
    {"temperature": 4.0, "top_p": 0.7, "seed": 2, "repetition_penalty": 1.5},
    {"temperature": 8.0, "top_k": 9, "seed": 3},
]


@pytest.fixture
def batches(monkeypatch):
    return FullBatches(monkeypatch)


@pytest.fixture(scope="module")
def core():
    with core_on(Counting) as counting_core:
        yield counting_core


@pytest.fixture(scope="module")
def compiled(core):
    """The decoder split over two devices, one step at a time."""
    with core.compile_model(hetero.read_decoder(decoder()), SPLIT, affinity=PINS) as compiled_model:
        batcher_of(compiled_model)._lanes = 1
        yield compiled_model


def start_batch(
    compiled: hetero.CompiledModel, batches: FullBatches, counts: Sequence[int] = (20,) * 4
) -> list[hetero.Generation]:
    """Return generations that share a batch and have four tokens each."""
    generations = [
        compiled.generate(prompt, count, **options)
        for prompt, count, options in zip(PROMPTS, counts, OPTIONS, strict=False)
    ]
    batches.of(generations)
    read(generations, [4] * len(generations))
    assert len({id(g._sequences[0].group) for g in generations}) == 1
    return generations


def generate_alone(compiled: hetero.CompiledModel, count: int = 20) -> list[list[int]]:
    return [
        list(compiled.generate(prompt, count, **options))
        for prompt, options in zip(PROMPTS, OPTIONS, strict=True)
    ]


@pytest.fixture(scope="module")
def tokens_alone(compiled):
    """The tokens of each prompt without the others."""
    return generate_alone(compiled)


def test_sequences_of_threads_join_and_leave(compiled, batches):
    counts = [24, 18, 24, 24]
    expected = [
        tokens[:count] for tokens, count in zip(generate_alone(compiled, 24), counts, strict=True)
    ]
    assert set(batches.rows) == {1}
    generations = start_batch(compiled, batches, counts[:3])
    later = compiled.generate(PROMPTS[3], 24, **OPTIONS[3])
    batches.of([*generations, later])
    crossed()
    read([*generations, later], [None] * 4)
    assert [g.tokens for g in (*generations, later)] == expected
    assert {g.finish_reason for g in (*generations, later)} == {"length"}
    assert {1, 3, 4} <= set(batches.rows)  # the second one ends first
    caches = sum(nbytes for *_, nbytes in crossed() if nbytes > 2 * 16 * 8 * 4 * 4)
    assert caches == 0  # caches are joined on their devices


def test_tasks_of_an_event_loop_share_steps(compiled, batches, tokens_alone):

    async def gather() -> list[list[int]]:
        generations = [
            compiled.generate(p, 20, **options) for p, options in zip(PROMPTS, OPTIONS, strict=True)
        ]
        batches.of(generations)
        return await asyncio.gather(*generations)

    assert asyncio.run(gather()) == tokens_alone
    assert max(batches.rows) == 4


def test_cancelled_task_does_not_block_others(compiled, batches, tokens_alone):

    async def gather() -> None:
        generations = start_batch(compiled, batches)
        batches.of([])
        leader = asyncio.ensure_future(generations[1].__anext__())
        await asyncio.sleep(0)
        others = asyncio.gather(generations[0], *generations[2:])
        await asyncio.sleep(0)
        leader.cancel()
        await others
        await generations[1]
        assert [g.tokens for g in generations] == tokens_alone

    asyncio.run(gather())


def test_slow_reader_does_not_block_others(
    core,
    compiled,
    batches,
    tokens_alone,
):
    generations = start_batch(compiled, batches)
    batches.of([])
    slow = generations[2]._sequences[0]
    read([generations[0], generations[1], generations[3]], [None] * 3)
    assert [generations[i].tokens for i in (0, 1, 3)] == [tokens_alone[i] for i in (0, 1, 3)]
    assert len(slow.unread) <= MAX_UNREAD + 1
    assert not slow.is_complete
    assert len(slow.tokens) == 4
    assert list(generations[2]) == tokens_alone[2][4:]
    assert generations[2].tokens == tokens_alone[2]


def test_cancelled_and_dropped_sequences_leave(
    core,
    compiled,
    batches,
    tokens_alone,
):
    generations = start_batch(compiled, batches)
    batches.of([])
    generations[1].cancel()
    assert (list(generations[1]), generations[1].finish_reason) == ([], "cancelled")
    del generations[2]
    gc.collect()
    batches.rows.clear()
    read([generations[0], generations[2]], [None] * 2)
    assert set(batches.rows) <= {1, 2}
    assert [generations[0].tokens, generations[2].tokens] == [tokens_alone[0], tokens_alone[3]]
    generations.clear()
    batches.sequences.clear()
    await_freed(core, 0)


def test_query_state_of_one_sequence_of_a_batch(compiled, batches, tokens_alone):
    generations = start_batch(compiled, batches)
    batches.of([])
    for generation in generations:
        length = len(generation._sequences[0].ids) - 1
        shapes = {state.state.shape for state in generation.query_state()}
        assert shapes == {(1, 2, length, 8)}
    read(generations, [None] * 4)
    assert [g.tokens for g in generations] == tokens_alone


@pytest.mark.slow
@pytest.mark.parametrize("error", [TensorLostError, DeviceMemoryError])
def test_caches_that_cannot_be_joined_are_recomputed(
    compiled,
    batches,
    monkeypatch,
    error,
    tokens_alone,
):
    join, failures = InferRequest.join_states, [error("gone")] * 2

    def failing(self: InferRequest, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        join(self, *arguments)

    monkeypatch.setattr(InferRequest, "join_states", failing)
    generations = [compiled.generate(p, 20, **o) for p, o in zip(PROMPTS, OPTIONS, strict=True)]
    try:
        read(generations, [None] * 4)
        assert [g.tokens for g in generations] == tokens_alone
    finally:
        batcher_of(compiled)._joins_calls = True


@pytest.mark.slow
def test_rows_of_one_call_leave_at_their_end(compiled, batches):
    expected = [list(compiled.generate(prompt, 20)) for prompt in PROMPTS]
    ends = expected[2][3]
    batch = compiled.generate(PROMPTS, 20, stop=[ends])
    list(batch)
    assert batch.tokens == [list(compiled.generate(p, 20, stop=[ends])) for p in PROMPTS]
    assert len(set(batches.rows)) > 2


def test_errors_reach_each_caller(
    compiled,
    batches,
    monkeypatch,
    tokens_alone,
):
    generations = start_batch(compiled, batches)
    batches.of([])
    with monkeypatch.context() as patch:
        patch.setattr(InferRequest, "infer", _refuse)
        patch.setattr(InferRequest, "start_async", _refuse)
        for generation in generations:
            while generation._sequences[0].unread:
                next(generation)
            with pytest.raises(hetero.errors.DeadlineError):
                next(generation)
    read(generations, [None] * 4)
    assert [g.tokens for g in generations] == tokens_alone


def _refuse(*_: Any, **__: Any) -> None:
    raise hetero.errors.DeadlineError("late", timeout_s=1.0)


@pytest.mark.parametrize("make", [grouped, scattered, recurrent])
@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_states_of_each_kind_are_joined(make, device, batches):
    if device == "ORT":
        pytest.importorskip("onnxruntime")
    prompts = [[3, 14, 15, 1], [7], [9, 9]]
    with core_on(MemoryChannel, {device: 1}) as core:
        compiled = core.compile_model(hetero.read_decoder(make()), f"HETERO:{device}")
        expected = [list(compiled.generate(prompt, 12)) for prompt in prompts]
        generations = [compiled.generate(prompt, 12) for prompt in prompts]
        batches.of(generations)
        read(generations, [None] * len(generations))
        assert [g.tokens for g in generations] == expected
        assert max(batches.rows) == len(prompts)
        rows = compiled.generate(prompts, 12)
        list(rows)
        assert rows.tokens == expected


def test_sequences_of_unequal_lengths_are_not_batched(compiled, batches, monkeypatch):
    monkeypatch.setattr("hetero.apps.generate.batch_layout._FREE_LENGTH", 4)
    prompts = [list(range(40)), [7], [8], [9]]
    expected = [list(compiled.generate(prompt, 8)) for prompt in prompts]
    generations = [compiled.generate(prompt, 8) for prompt in prompts]
    read(generations, [None] * 4)
    assert [g.tokens for g in generations] == expected
    assert max(batches.rows) <= 3


def without_positions() -> onnx.ModelProto:
    """Return the decoder without position ids; it derives them from the length of its caches."""
    model = onnx.ModelProto()
    model.CopyFrom(decoder())
    graph, nodes = model.graph, list(model.graph.node)
    graph.input.remove(next(port for port in graph.input if port.name == "position_ids"))
    position_graph = parse_graph("""
        places (int64 diagonal, int64[1] all, int64[1] zero) => (int64[length] position_ids) {
            end = Squeeze (all, zero)
            step = Constant <value = int64 {1}> ()
            position_ids = Range (diagonal, end, step)
        }""")
    index = next(i for i, node in enumerate(nodes) if node.name == "diagonal") + 1
    del graph.node[:]
    graph.node.extend([*nodes[3:index], *position_graph.node, *nodes[:3], *nodes[index:]])
    return model


@pytest.mark.parametrize("make", [attention, without_positions])
def test_model_without_lengths_does_not_batch(make, batches):
    with core_on(MemoryChannel, {"CPU": 1}) as core:
        compiled = core.compile_model(hetero.read_decoder(make()), "HETERO:CPU")
        prompts = [[3, 14, 15], [7], [9, 9]]
        expected = [list(compiled.generate(prompt, 12)) for prompt in prompts]
        generations = [compiled.generate(prompt, 12) for prompt in prompts]
        read(generations, [None] * 3)
        assert [g.tokens for g in generations] == expected
        assert set(batches.rows) == {1}
        rows = compiled.generate(prompts, 12)
        list(rows)
        assert rows.tokens == expected


def test_each_lane_has_an_equal_share(core, batches, monkeypatch):
    """Two devices run two steps at once, each with half of the sequences."""
    with core.compile_model(hetero.read_decoder(decoder()), SPLIT, affinity=PINS) as compiled:
        assert batcher_of(compiled)._lanes == 2
        generations = [compiled.generate([i], 20) for i in range(6)]
        read(generations, [None] * 6)
        assert [g.tokens for g in generations] == [
            list(compiled.generate([i], 20)) for i in range(6)
        ]
        assert max(batches.rows) <= 3


def test_logits_of_each_sequence_of_a_batch(core, batches):
    model = hetero.read_decoder(decoder(), logits=True)
    with core.compile_model(model, SPLIT, affinity=PINS) as compiled:
        batcher_of(compiled)._lanes = 1
        expected = []
        for prompt in PROMPTS:
            generation = compiled.generate(prompt, 9)
            list(generation)
            expected.append(generation.logits)
        generations = [compiled.generate(prompt, 9) for prompt in PROMPTS]
        batches.of(generations)
        read(generations, [None] * 4)
        assert max(batches.rows) == 4
        for generation, logits in zip(generations, expected, strict=True):
            assert generation.logits is not None
            np.testing.assert_allclose(generation.logits, logits, rtol=1e-4, atol=1e-4)
