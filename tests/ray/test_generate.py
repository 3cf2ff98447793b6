"""Decoders on Ray: what a device that dies had kept is made anew, and the text goes on."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from functools import partial
from typing import Any

import pytest

import hetero
from hetero.apps.generate.generation import batcher_of
from hetero.devices.errors import UnknownDeviceError
from hetero.scheduler.channels import envelope
from hetero.scheduler.vocabulary.messages import Outputs
from tests.support.decoders import decoder, greedy
from tests.support.full_batches import FullBatches, read

pytestmark = pytest.mark.ray

PROMPTS = [[3, 14, 15, 9, 2, 6], [7]]


PINS = {"*_1": "CPU.1", "sample": "CPU.1"}


@pytest.mark.slow
def test_texts_go_on_when_a_device_dies_in_the_middle() -> None:
    want = [greedy(prompt, 24) for prompt in PROMPTS]
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder()),
            "HETERO:CPU.0,CPU.1",
            affinity=PINS,
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


def test_texts_step_together_and_go_on_when_a_device_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads read them; a device is killed when all of them are rows of one run."""
    prompts = [*PROMPTS, [8, 8, 8], [1, 2]]
    batches = FullBatches(monkeypatch)
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder()), "HETERO:CPU.0,CPU.1", affinity=PINS
        ) as compiled,
    ):
        batcher_of(compiled)._lanes = 1
        executor: Any = core.executor
        for device in ("CPU.1", "CPU.0"):
            pid = executor._ask(executor._devices.device(device), "ping")
            batches.on_full = partial(os.kill, pid, signal.SIGKILL)
            texts = [compiled.generate(prompt, 24) for prompt in prompts]
            batches.of(texts)
            read(texts, [None] * len(texts))
            assert [text.tokens for text in texts] == [greedy(p, 24) for p in prompts]
            assert batches.on_full is None


@pytest.mark.parametrize(("devices", "most_nbytes"), [(["CPU.0"], 200), (["CPU.0", "CPU.1"], 300)])
def test_a_client_hears_of_a_token_in_one_message_and_few_bytes(
    monkeypatch: pytest.MonkeyPatch, devices: list[str], most_nbytes: int
) -> None:
    """Of 16 caches, wherever they are, it needs to know little more than that they are there."""
    heard: list[int] = []

    def counted(parts: Any, get: Any = None, start: int = 0) -> Any:
        message = read_message(parts, get, start)
        if isinstance(message, Outputs) and message.task.stage == len(compiled.subgraphs) - 1:
            heard.append(sum(memoryview(part).nbytes for part in parts) - start)
        elif isinstance(message, Outputs):
            others.append(message)
        return message

    others: list[Outputs] = []
    read_message = envelope.from_frames
    monkeypatch.setattr(envelope, "from_frames", counted)
    pins = {f"*_{i}": devices[i * len(devices) // 8] for i in range(8)}
    pins |= dict.fromkeys(("newest*", "logits", "sample"), devices[-1])
    with (
        hetero.Core("ray", devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder(8)), f"HETERO:{','.join(devices)}", affinity=pins
        ) as compiled,
    ):
        assert len(list(compiled.generate([3, 14, 15], 24, eos=()))) == 24
    assert others == []
    assert len(heard) == 24
    assert max(heard[1:]) <= most_nbytes


@pytest.mark.slow
def test_a_text_goes_on_on_what_is_left_when_a_device_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder()), "HETERO:CPU.0,CPU.1", affinity=PINS
        ) as compiled,
    ):
        executor: Any = core.executor
        devices, gone = executor._devices, set[str]()
        reached = devices.reached

        def unless_gone(names: Collection[str], *, wait: bool = True) -> Any:
            if left := gone.intersection(names):
                raise UnknownDeviceError(f"{left} left the cluster")
            return reached(names, wait=wait)

        monkeypatch.setattr(devices, "reached", unless_gone)
        monkeypatch.setattr("hetero.scheduler.ray.executor.AWAITED_S", 0.0)
        text = compiled.generate(PROMPTS[0], 24)
        for _ in range(8):
            next(text)
        pid = executor._ask(devices.device("CPU.1"), "ping")
        gone.add("CPU.1")
        os.kill(pid, signal.SIGKILL)
        assert [*text.tokens, *text] == greedy(PROMPTS[0], 24)
        assert {s.device for s in compiled.subgraphs} == {"CPU.0"}
