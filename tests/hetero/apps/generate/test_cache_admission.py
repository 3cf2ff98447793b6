"""Sequences wait, or are shorter, if the KV caches of all do not fit the memory at once."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final

import pytest

import hetero
from hetero.apps.generate.decoder_ports import Decoder, step_shapes
from hetero.apps.generate.generation import batcher_of
from hetero.devices.cpu.plugin import CPUPlugin
from hetero.devices.errors import ArgumentError, DeadlineError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Program, RunContext, Value
from hetero.devices.plugin.properties import Config
from tests.support.core_fixtures import core_fixture
from tests.support.decoders import decoder, greedy

#: Length of the KV cache of a plan.
LENGTH: Final = 8
#: Bytes of a token's keys and values in the decoder: two layers of two heads of 8 floats.
TOKEN_NBYTES: Final = 2 * 2 * 2 * 8 * 4
PROMPT: Final = [3, 14, 15]


class ExhaustedProgram(Program):
    """Program that runs out of memory in its fourth run."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._num_runs = 0

    def run(self, inputs: Sequence[Value], context: RunContext) -> list[Value]:
        self._num_runs += 1
        if self._num_runs > 3:
            raise MemoryError("no room for values")
        return list(self._program.run(inputs, context))


class ExhaustedPlugin(CPUPlugin):
    """A device that runs out of memory in the middle of a text."""

    name: ClassVar[str] = "EXHAUSTED"

    def compile(self, model: Model, config: Config) -> Program:
        return ExhaustedProgram(super().compile(model, config))


def options(**config: Any) -> dict[str, Any]:
    source = hetero.read_decoder(decoder())
    shapes = step_shapes(source, Decoder.of(source), LENGTH)
    return {"PLAN_SHAPES": shapes, "VERIFY": "NO", **config}


core = core_fixture("module", devices={"CPU": 1})


@pytest.fixture
def compiled(core):
    """A decoder with memory for the KV caches of two sequences."""
    config = options(MAX_SEQUENCES=2)
    with core.compile_model(hetero.read_decoder(decoder()), "CPU", config) as compiled:
        yield compiled


def test_budget_determines_the_number_of_sequences(core):
    source = hetero.read_decoder(decoder())
    (memory,) = core.plan_model(source, "CPU", options(FIT_MEMORY=True)).memory
    # A step reads the tokens of the cache, and writes one more.
    sequence_nbytes = TOKEN_NBYTES * (LENGTH + LENGTH + 1)
    room = memory.peak_nbytes + int(2.5 * sequence_nbytes)
    config = options(FIT_MEMORY=True, DEVICE_MEMORY_NBYTES={"CPU": room})
    with core.compile_model(source, "CPU", config) as compiled:
        assert compiled.get_property("MAX_SEQUENCES") == 3
        assert batcher_of(compiled).admission.capacity == 3 * LENGTH  # type: ignore[union-attr]
    with core.compile_model(source, "CPU", {**config, "MAX_SEQUENCES": 2}) as compiled:
        assert compiled.get_property("MAX_SEQUENCES") == 2


def test_third_sequence_waits_until_another_ends(compiled):
    first, second, third = (compiled.generate(PROMPT, 5, eos=()) for _ in range(3))
    next(first), next(second)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(list, third)
        while not batcher_of(compiled).admission._waiting:  # type: ignore[union-attr]
            assert not waits.done()
        assert not third.tokens
        assert list(second) == greedy(PROMPT, 5)[1:]
        assert waits.result() == greedy(PROMPT, 5)
    assert [*first.tokens, *first] == greedy(PROMPT, 5)


@pytest.mark.parametrize("way", ["cancelled", "dropped"])
def test_sequence_without_a_reader_makes_room(compiled, way):
    generations = [compiled.generate(PROMPT, 5, eos=()) for _ in range(2)]
    for generation in generations:
        next(generation)
    third = compiled.generate(PROMPT, 5, eos=())
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(list, third)
        while not batcher_of(compiled).admission._waiting:  # type: ignore[union-attr]
            assert not waits.done()
        if way == "cancelled":
            generations[0].cancel()
        else:
            del generations, generation
            gc.collect()
        assert waits.result() == greedy(PROMPT, 5)


def test_tasks_wait_without_blocking_their_event_loop(compiled):
    async def generate_all() -> list[list[int]]:
        generations = [compiled.generate(PROMPT, 5, eos=()) for _ in range(5)]
        texts: list[list[int]] = await asyncio.gather(*generations)
        return texts

    assert asyncio.run(generate_all()) == [greedy(PROMPT, 5)] * 5


def test_short_sequences_share_the_memory(compiled):
    generations = [compiled.generate([3], 3, eos=()) for _ in range(4)]
    assert [next(g) for g in generations] == greedy([3], 1) * 4


def test_memory_limits_the_length_of_a_sequence(compiled):
    generation = compiled.generate(PROMPT, 50, eos=())
    assert list(generation) == greedy(PROMPT, 2 * LENGTH - len(PROMPT))
    assert generation.finish_reason == "length"
    batch = compiled.generate([PROMPT, PROMPT], 50, eos=())
    assert [len(row) for row in (list(batch), batch.tokens)[1]] == [LENGTH - len(PROMPT)] * 2
    with pytest.raises(ArgumentError, match="memory for the KV cache of 16 tokens"):
        compiled.generate([3] * 16)
    with pytest.raises(ArgumentError, match="memory for the KV cache of 5 tokens"):
        compiled.generate([[3] * 5] * 3)


def test_wait_for_memory_has_a_deadline(core):
    config = options(MAX_SEQUENCES=1, REQUEST_TIMEOUT_S=0.05)
    with core.compile_model(hetero.read_decoder(decoder()), "CPU", config) as compiled:
        admission = batcher_of(compiled).admission
        assert admission is not None
        first, second = (compiled.generate(PROMPT, 5, eos=()) for _ in range(2))
        admission.wait(first._sequences)
        expected = "the devices hold 8 tokens of KV caches; running: 1 sequence of up to 8 tokens"
        with pytest.raises(DeadlineError, match=expected):
            next(second)
        with pytest.raises(DeadlineError, match=expected):
            asyncio.run(second.__anext__())


def test_number_of_sequences_without_planned_lengths(core):
    config = {"MAX_SEQUENCES": 2, "VERIFY": "NO"}
    with core.compile_model(hetero.read_decoder(decoder()), "CPU", config) as compiled:
        with pytest.raises(ArgumentError, match="3 prompts: expected at most 2"):
            compiled.generate([PROMPT] * 3)
        texts: list[list[int]] = []
        threads = [
            threading.Thread(
                target=lambda: texts.append(list(compiled.generate(PROMPT, 9, eos=())))
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == [greedy(PROMPT, 9)] * 4


def test_text_continues_after_a_device_ran_out_of_memory():
    source = hetero.read_decoder(decoder())
    config = options(FIT_MEMORY=True)
    with (
        hetero.Core("inprocess", plugins=[ExhaustedPlugin]) as core,
        core.compile_model(source, "HETERO:EXHAUSTED,CPU", config) as compiled,
    ):
        assert compiled.get_property("EXECUTION_DEVICES") == ["EXHAUSTED"]
        generation = compiled.generate(PROMPT, 8, eos=())
        assert list(generation) == greedy(PROMPT, 8)
        assert compiled.get_property("EXECUTION_DEVICES") == ["CPU"]
