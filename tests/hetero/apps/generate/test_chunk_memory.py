"""Prompt chunks of decoders that must fit the devices' memory."""

from __future__ import annotations

import numpy as np
import pytest

import hetero
from hetero.apps.generate.decoder_ports import Decoder, step_shapes
from hetero.apps.generate.generation import batcher_of
from hetero.apps.generate.prefill_chunks import MAX_CHUNK, MIN_CHUNK
from hetero.apps.generate.step_inputs import StepInputs
from tests.support.core_fixtures import core_fixture
from tests.support.decoders import VOCABULARY, decoder, greedy

core = core_fixture("module", devices={"CPU": 1})


@pytest.mark.parametrize("tokens", [0, 20, 10_000])
def test_chunks_of_prompts_fit_the_memory(core, tokens, monkeypatch):
    source = hetero.read_decoder(decoder())
    shapes = step_shapes(source, Decoder.of(source), 40)
    config = {"FIT_MEMORY": True, "PLAN_SHAPES": shapes, "VERIFY": "NO"}
    (memory,) = core.plan_model(source, "CPU", config).memory
    # The logits of each token of a chunk are live together.
    budget_nbytes = memory.peak_nbytes + tokens * VOCABULARY * np.float32().nbytes
    config |= {"DEVICE_MEMORY_NBYTES": {"CPU": budget_nbytes}, "MAX_SEQUENCES": 1}
    sizes = []
    feeds = StepInputs.feeds

    def record(self: StepInputs) -> dict[str, np.ndarray]:
        inputs = feeds(self)
        sizes.append(inputs["input_ids"].shape[1])
        return inputs

    monkeypatch.setattr(StepInputs, "feeds", record)
    prompt = [i % VOCABULARY for i in range(24)]
    with core.compile_model(source, "CPU", config) as compiled:
        assert list(compiled.generate(prompt, 3, eos=())) == greedy(prompt, 3)
        limit = batcher_of(compiled)._chunks.max_size
    assert MIN_CHUNK <= limit <= MAX_CHUNK
    assert max(sizes) <= limit
    assert (limit == MAX_CHUNK) == (tokens > MAX_CHUNK)
    assert limit <= max(MIN_CHUNK, tokens)
