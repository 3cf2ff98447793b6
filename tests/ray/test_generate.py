"""Decoders on Ray: what a device that dies had kept is made anew, and the text goes on."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import hetero
from tests.support.decoders import decoder, greedy

pytestmark = pytest.mark.ray

PROMPTS = [[3, 14, 15, 9, 2, 6], [7]]


def test_texts_go_on_when_a_device_dies_in_the_middle() -> None:
    want = [greedy(prompt, 24) for prompt in PROMPTS]
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder()),
            "HETERO:CPU.0,CPU.1",
            affinity={"*_1": "CPU.1", "sample": "CPU.1"},
        ) as compiled,
    ):
        assert {s.device for s in compiled.subgraphs} == {"CPU.0", "CPU.1"}
        texts = [compiled.generate(prompt, 24) for prompt in PROMPTS]
        executor: Any = core.executor
        for device in ("CPU.1", "CPU.0"):
            for _ in range(8):
                for text in texts:
                    next(text)
            os.kill(executor._ask(executor._devices.device(device), "ping"), signal.SIGKILL)
        assert [[*text.tokens, *text] for text in texts] == want
