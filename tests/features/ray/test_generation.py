"""Generation on Ray continues after a device is lost and its KV caches are recomputed."""

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
from hetero.scheduler.types.messages import Outputs
from tests.support.decoders import decoder, greedy
from tests.support.full_batches import FullBatches, read

pytestmark = pytest.mark.ray

PROMPTS = [[3, 14, 15, 9, 2, 6], [7]]


PINS = {"*_1": "CPU.1", "sample": "CPU.1"}


@pytest.mark.slow
def test_generations_continue_after_device_losses():
    expected_tokens = [greedy(prompt, 24) for prompt in PROMPTS]
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder()),
            "HETERO:CPU.0,CPU.1",
            affinity=PINS,
        ) as compiled,
    ):
        assert {s.device for s in compiled.subgraphs} == {"CPU.0", "CPU.1"}
        generations = [compiled.generate(prompt, 24) for prompt in PROMPTS]
        executor: Any = core.executor
        for device in ("CPU.1", "CPU.0"):
            for _ in range(8):
                for generation in generations:
                    next(generation)
            os.kill(executor._ask(executor._devices.device(device), "ping"), signal.SIGKILL)
        assert [[*generation.tokens, *generation] for generation in generations] == expected_tokens


@pytest.mark.slow
def test_batched_generations_continue_after_device_losses(
    monkeypatch,
):
    """Threads read the sequences; a device is killed while one run has a row of each."""
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
            generations = [compiled.generate(prompt, 24) for prompt in prompts]
            batches.of(generations)
            read(generations, [None] * len(generations))
            assert [generation.tokens for generation in generations] == [
                greedy(p, 24) for p in prompts
            ]
            assert batches.on_full is None


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "max_nbytes"), [(["CPU.0"], 200), (["CPU.0", "CPU.1"], 300)])
def test_client_receives_one_small_message_per_token(monkeypatch, devices, max_nbytes):
    """The client receives little more than the token, although there are 16 caches."""
    token_nbytes: list[int] = []

    def record_message(parts: Any, get: Any = None, start: int = 0) -> Any:
        message = read_message(parts, get, start)
        if isinstance(message, Outputs) and message.task.stage == len(compiled.subgraphs) - 1:
            token_nbytes.append(sum(memoryview(part).nbytes for part in parts) - start)
        elif isinstance(message, Outputs):
            other_outputs.append(message)
        return message

    other_outputs: list[Outputs] = []
    read_message = envelope.from_frames
    monkeypatch.setattr(envelope, "from_frames", record_message)
    pins = {f"*_{i}": devices[i * len(devices) // 8] for i in range(8)}
    pins |= dict.fromkeys(("newest*", "logits", "sample"), devices[-1])
    with (
        hetero.Core("ray", devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder(8)), f"HETERO:{','.join(devices)}", affinity=pins
        ) as compiled,
    ):
        assert len(list(compiled.generate([3, 14, 15], 24, eos=()))) == 24
    assert other_outputs == []
    assert len(token_nbytes) == 24
    assert max(token_nbytes[1:]) <= max_nbytes


@pytest.mark.slow
def test_generation_continues_on_remaining_devices(
    monkeypatch,
):
    with (
        hetero.Core(devices={"CPU": 2}) as core,
        core.compile_model(
            hetero.read_decoder(decoder()), "HETERO:CPU.0,CPU.1", affinity=PINS
        ) as compiled,
    ):
        executor: Any = core.executor
        devices, missing = executor._devices, set[str]()
        with_addresses = devices.with_addresses

        def with_addresses_unless_missing(names: Collection[str], *, wait: bool = True) -> Any:
            if absent_names := missing.intersection(names):
                raise UnknownDeviceError(f"{absent_names} left the cluster")
            return with_addresses(names, wait=wait)

        monkeypatch.setattr(devices, "with_addresses", with_addresses_unless_missing)
        monkeypatch.setattr("hetero.scheduler.ray.executor.AWAITED_S", 0.0)
        generation = compiled.generate(PROMPTS[0], 24)
        for _ in range(8):
            next(generation)
        pid = executor._ask(devices.device("CPU.1"), "ping")
        missing.add("CPU.1")
        os.kill(pid, signal.SIGKILL)
        assert [*generation.tokens, *generation] == greedy(PROMPTS[0], 24)
        assert {s.device for s in compiled.subgraphs} == {"CPU.0"}
