"""Texts of several threads and tasks that step as rows of one run: the tokens of each alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.parser import parse_graph

import hetero
from hetero.apps.generate.generation import batcher_of
from hetero.apps.generate.texts import MOST_AHEAD
from hetero.devices.errors import DeviceMemoryError, TensorLostError
from hetero.devices.request.infer_request import InferRequest
from hetero.scheduler.channels.memory import MemoryChannel
from tests.support.decoders import decoder
from tests.support.kinds_of_state import attention, grouped, recurrent, scattered
from tests.support.meeting import Meeting, read
from tests.support.remote_cores import Counting, await_freed, core_on, crossed

SPLIT = "HETERO:CPU.0,CPU.1"
PINS = {"*_1": "CPU.1", "sample": "CPU.1"}
PROMPTS: list[list[int]] = [[3, 14, 15, 9, 2, 6], [7], [8, 8, 8], list(range(20))]
#: One text takes the best tokens, the others draw theirs.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 6.0, "seed": 1},
    {"temperature": 4.0, "top_p": 0.7, "seed": 2, "repetition_penalty": 1.5},
    {"temperature": 8.0, "top_k": 9, "seed": 3},
]


@pytest.fixture
def meeting(monkeypatch: pytest.MonkeyPatch) -> Meeting:
    return Meeting(monkeypatch)


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with core_on(Counting) as made:
        yield made


@pytest.fixture(scope="module")
def compiled(core: hetero.Core) -> Iterator[hetero.CompiledModel]:
    """The decoder cut in two, with as many steps at once as if it were one device."""
    with core.compile_model(hetero.read_decoder(decoder()), SPLIT, affinity=PINS) as made:
        batcher_of(made)._lanes = 1
        yield made


def begun(
    compiled: hetero.CompiledModel, meeting: Meeting, counts: Sequence[int] = (20,) * 4
) -> list[hetero.Generation]:
    """Return texts that have had four tokens and step together."""
    made = [
        compiled.generate(prompt, count, **options)
        for prompt, count, options in zip(PROMPTS, counts, OPTIONS, strict=False)
    ]
    meeting.of(made)
    read(made, [4] * len(made))
    assert len({id(g._texts[0].group) for g in made}) == 1
    return made


def alone(compiled: hetero.CompiledModel, count: int = 20) -> list[list[int]]:
    return [
        list(compiled.generate(prompt, count, **options))
        for prompt, options in zip(PROMPTS, OPTIONS, strict=True)
    ]


def test_texts_of_several_threads_join_and_leave_between_steps(
    compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    counts = [24, 18, 24, 24]
    want = [tokens[:count] for tokens, count in zip(alone(compiled, 24), counts, strict=True)]
    assert set(meeting.rows) == {1}
    made = begun(compiled, meeting, counts[:3])
    later = compiled.generate(PROMPTS[3], 24, **OPTIONS[3])
    meeting.of([*made, later])
    crossed()
    read([*made, later], [None] * 4)
    assert [g.tokens for g in (*made, later)] == want
    assert {g.finish_reason for g in (*made, later)} == {"length"}
    assert {1, 3, 4} <= set(meeting.rows)  # the second ends before the others
    caches = sum(nbytes for *_, nbytes in crossed() if nbytes > 2 * 16 * 8 * 4 * 4)
    assert caches == 0  # they are joined where they are


def test_tasks_of_an_event_loop_step_together(
    compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    want = alone(compiled)

    async def together() -> list[list[int]]:
        made = [
            compiled.generate(p, 20, **options) for p, options in zip(PROMPTS, OPTIONS, strict=True)
        ]
        meeting.of(made)
        return await asyncio.gather(*made)

    assert asyncio.run(together()) == want
    assert max(meeting.rows) == 4


def test_a_task_that_is_cancelled_in_its_step_holds_up_nobody(
    compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    want = alone(compiled)

    async def together() -> None:
        made = begun(compiled, meeting)
        meeting.of([])
        leader = asyncio.ensure_future(made[1].__anext__())
        await asyncio.sleep(0)
        others = asyncio.gather(made[0], *made[2:])
        await asyncio.sleep(0)
        leader.cancel()
        await others
        await made[1]
        assert [g.tokens for g in made] == want

    asyncio.run(together())


def test_a_reader_that_stops_reading_holds_up_nobody_and_goes_on_later(
    core: hetero.Core, compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    want = alone(compiled)
    made = begun(compiled, meeting)
    meeting.of([])
    slow = made[2]._texts[0]
    read([made[0], made[1], made[3]], [None] * 3)
    assert [made[i].tokens for i in (0, 1, 3)] == [want[i] for i in (0, 1, 3)]
    assert len(slow.ahead) <= MOST_AHEAD + 1
    assert not slow.is_complete
    assert len(slow.tokens) == 4
    assert list(made[2]) == want[2][4:]
    assert made[2].tokens == want[2]


def test_texts_that_are_cancelled_or_dropped_leave(
    core: hetero.Core, compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    want = alone(compiled)
    made = begun(compiled, meeting)
    meeting.of([])
    made[1].cancel()
    assert (list(made[1]), made[1].finish_reason) == ([], "cancelled")
    del made[2]
    gc.collect()
    meeting.rows.clear()
    read([made[0], made[2]], [None] * 2)
    assert set(meeting.rows) <= {1, 2}
    assert [made[0].tokens, made[2].tokens] == [want[0], want[3]]
    made.clear()
    meeting.texts.clear()
    await_freed(core, 0)


def test_the_caches_of_one_of_several_can_be_seen(
    compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    want = alone(compiled)
    made = begun(compiled, meeting)
    meeting.of([])
    for generation in made:
        said = len(generation._texts[0].said) - 1
        shapes = {state.state.shape for state in generation.query_state()}
        assert shapes == {(1, 2, said, 8)}
    read(made, [None] * 4)
    assert [g.tokens for g in made] == want


@pytest.mark.parametrize("error", [TensorLostError, DeviceMemoryError])
def test_caches_that_cannot_be_joined_are_made_anew(
    compiled: hetero.CompiledModel,
    meeting: Meeting,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    want = alone(compiled)
    join, failures = InferRequest.join_states, [error("gone")] * 2

    def failing(self: InferRequest, *given: Any) -> None:
        if failures:
            raise failures.pop()
        join(self, *given)

    monkeypatch.setattr(InferRequest, "join_states", failing)
    made = [compiled.generate(p, 20, **o) for p, o in zip(PROMPTS, OPTIONS, strict=True)]
    try:
        read(made, [None] * 4)
        assert [g.tokens for g in made] == want
    finally:
        batcher_of(compiled)._meets = True


def test_rows_of_one_call_that_have_ended_leave(
    compiled: hetero.CompiledModel, meeting: Meeting
) -> None:
    want = [list(compiled.generate(prompt, 20)) for prompt in PROMPTS]
    ends = want[2][3]
    together = compiled.generate(PROMPTS, 20, stop=[ends])
    list(together)
    assert together.tokens == [list(compiled.generate(p, 20, stop=[ends])) for p in PROMPTS]
    assert len(set(meeting.rows)) > 2


def test_errors_reach_those_who_ask(
    compiled: hetero.CompiledModel, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = begun(compiled, meeting)
    meeting.of([])
    with monkeypatch.context() as patch:
        patch.setattr(InferRequest, "infer", _refuse)
        patch.setattr(InferRequest, "start_async", _refuse)
        for generation in made:
            while generation._texts[0].ahead:
                next(generation)
            with pytest.raises(hetero.errors.DeadlineError):
                next(generation)
    read(made, [None] * 4)
    assert [g.tokens for g in made] == alone(compiled)


def _refuse(*_: Any, **__: Any) -> None:
    raise hetero.errors.DeadlineError("late", timeout_s=1.0)


@pytest.mark.parametrize("make", [grouped, scattered, recurrent])
@pytest.mark.parametrize("device", ["CPU", "ORT"])
def test_states_of_every_kind_join(
    make: Callable[[], onnx.ModelProto], device: str, meeting: Meeting
) -> None:
    if device == "ORT":
        pytest.importorskip("onnxruntime")
    prompts = [[3, 14, 15, 1], [7], [9, 9]]
    with core_on(MemoryChannel, {device: 1}) as core:
        compiled = core.compile_model(hetero.read_decoder(make()), f"HETERO:{device}")
        want = [list(compiled.generate(prompt, 12)) for prompt in prompts]
        made = [compiled.generate(prompt, 12) for prompt in prompts]
        meeting.of(made)
        read(made, [None] * len(made))
        assert [g.tokens for g in made] == want
        assert max(meeting.rows) == len(prompts)
        rows = compiled.generate(prompts, 12)
        list(rows)
        assert rows.tokens == want


def test_texts_of_too_unequal_lengths_step_by_themselves(
    compiled: hetero.CompiledModel, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hetero.apps.generate.rows._FREE", 4)
    prompts = [list(range(40)), [7], [8], [9]]
    want = [list(compiled.generate(prompt, 8)) for prompt in prompts]
    made = [compiled.generate(prompt, 8) for prompt in prompts]
    read(made, [None] * 4)
    assert [g.tokens for g in made] == want
    assert max(meeting.rows) <= 3


def placed_by_past() -> onnx.ModelProto:
    """Return the decoder without positions: those follow from how long its caches are."""
    model = onnx.ModelProto()
    model.CopyFrom(decoder())
    graph, nodes = model.graph, list(model.graph.node)
    graph.input.remove(next(port for port in graph.input if port.name == "position_ids"))
    made = parse_graph("""
        places (int64 diagonal, int64[1] all, int64[1] zero) => (int64[length] position_ids) {
            end = Squeeze (all, zero)
            step = Constant <value = int64 {1}> ()
            position_ids = Range (diagonal, end, step)
        }""")
    place = next(i for i, node in enumerate(nodes) if node.name == "diagonal") + 1
    del graph.node[:]
    graph.node.extend([*nodes[3:place], *made.node, *nodes[:3], *nodes[place:]])
    return model


@pytest.mark.parametrize("make", [attention, placed_by_past])
def test_texts_of_a_model_that_knows_no_lengths_step_by_themselves(
    make: Callable[[], onnx.ModelProto], meeting: Meeting
) -> None:
    with core_on(MemoryChannel, {"CPU": 1}) as core:
        compiled = core.compile_model(hetero.read_decoder(make()), "HETERO:CPU")
        prompts = [[3, 14, 15], [7], [9, 9]]
        want = [list(compiled.generate(prompt, 12)) for prompt in prompts]
        made = [compiled.generate(prompt, 12) for prompt in prompts]
        read(made, [None] * 3)
        assert [g.tokens for g in made] == want
        assert set(meeting.rows) == {1}
        rows = compiled.generate(prompts, 12)
        list(rows)
        assert rows.tokens == want


def test_each_lane_has_its_share_of_the_texts(
    core: hetero.Core, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two devices run two steps at once, of half of the texts each."""
    with core.compile_model(hetero.read_decoder(decoder()), SPLIT, affinity=PINS) as compiled:
        assert batcher_of(compiled)._lanes == 2
        made = [compiled.generate([i], 20) for i in range(6)]
        read(made, [None] * 6)
        assert [g.tokens for g in made] == [list(compiled.generate([i], 20)) for i in range(6)]
        assert max(meeting.rows) <= 3


def test_logits_are_those_of_each_text(core: hetero.Core, meeting: Meeting) -> None:
    model = hetero.read_decoder(decoder(), logits=True)
    with core.compile_model(model, SPLIT, affinity=PINS) as compiled:
        batcher_of(compiled)._lanes = 1
        want = []
        for prompt in PROMPTS:
            generation = compiled.generate(prompt, 9)
            list(generation)
            want.append(generation.logits)
        made = [compiled.generate(prompt, 9) for prompt in PROMPTS]
        meeting.of(made)
        read(made, [None] * 4)
        assert max(meeting.rows) == 4
        for generation, logits in zip(made, want, strict=True):
            assert generation.logits is not None
            np.testing.assert_allclose(generation.logits, logits, rtol=1e-4, atol=1e-4)
