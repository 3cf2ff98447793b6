"""Recomputation of states after a device loss: only the lost stages run again, elsewhere."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np
import onnx.parser
import pytest

import hetero
from hetero.apps.generate.generation import batcher_of
from hetero.apps.generate.step_inputs import StepInputs
from hetero.devices.request.request import REPLAY
from hetero.examples.small_decoder import small_decoder
from hetero.scheduler.client.recompute import RecomputationTarget, StateRecomputer
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.ray.loading import StageLoader
from hetero.scheduler.types.messages import Task
from tests.scheduler.endpoints import wait_for
from tests.support.core_fixtures import core_fixture
from tests.support.full_batches import FullBatches, read
from tests.support.models import branches
from tests.support.stateful_models import STATES, decoder, expected

pytestmark = pytest.mark.ray

DEVICES = ["CPU.0", "CPU.1", "CPU.2"]
PINS = {"*_1": "CPU.1", "*_2": "CPU.2", "sample": "CPU.2"}
PROMPT, COUNT, KILLED_AT = list(range(20)), 16, 8


class RecomputationLog:
    """Records the recomputed stages, their devices, and the number of tokens of each step."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.stages: list[int] = []
        self.devices: list[str] = []
        self.sizes: list[int] = []
        run_stage, feeds = StateRecomputer._run_stage, StepInputs.feeds

        def record_run(
            restorer: StateRecomputer,
            number: int,
            inputs: Any,
            keep: Any,
            target: RecomputationTarget,
            is_wanted: Any,
        ) -> Any:
            outputs = run_stage(restorer, number, inputs, keep, target, is_wanted)
            self.stages.append(number)
            self.devices.append(target.placement.stages[number].device)
            return outputs

        def record_step(steps: StepInputs) -> dict[str, np.ndarray]:
            inputs = feeds(steps)
            self.sizes.append(inputs["input_ids"].shape[1])
            return inputs

        patch.setattr(StateRecomputer, "_run_stage", record_run)
        patch.setattr(StepInputs, "feeds", record_step)


@pytest.fixture
def log(monkeypatch):
    return RecomputationLog(monkeypatch)


core = core_fixture("module", executor="ray", devices={"CPU": 3})


@pytest.fixture
def restart_at_once(monkeypatch):
    """Restart devices at once, although earlier tests have also killed them."""
    monkeypatch.setattr("hetero.scheduler.client.liveness._STEADY_S", 0.0)


@pytest.fixture
def compiled(core):
    """A decoder of three layers, each with its KV cache on another device."""
    model = hetero.read_decoder(small_decoder(3))
    with core.compile_model(model, "HETERO:CPU.0,CPU.1,CPU.2", affinity=PINS) as compiled:
        assert {s.device for s in compiled.subgraphs} == set(DEVICES)
        yield compiled


def kill(core: hetero.Core, *devices: str) -> None:
    executor: Any = core.executor
    pids = [executor._ask(executor._devices.device(device), "ping") for device in devices]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def await_freed(core: hetero.Core) -> None:
    executor: Any = core.executor
    addresses = [executor._devices.device(device).address for device in DEVICES]
    status_of = executor._channel.status_of
    wait_for(lambda: all(status_of(a).get("kept_nbytes", -1) == 0 for a in addresses if a))


@pytest.mark.parametrize(
    "device", ["CPU.1", *(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU.0", "CPU.2"))]
)
def test_generation_recomputes_only_the_lost_stage(core, compiled, log, device):
    expected_tokens = list(compiled.generate(PROMPT, COUNT))
    generation = compiled.generate(PROMPT, COUNT)
    list(islice(generation, KILLED_AT))
    kill(core, device)
    log.sizes.clear()
    list(generation)
    assert generation.tokens == expected_tokens
    assert set(log.sizes) == {1}  # no other stage read the prompt again
    num_layer_runs, *other_runs = sorted(Counter(log.stages).values(), reverse=True)
    # The layer runs once for the prompt and once for each token except the last. Another run had
    # started and may have ended.
    assert num_layer_runs in (KILLED_AT, KILLED_AT + 1)
    # The step after that reads its token from CPU.2, so the last token may be lost with its cache.
    assert other_runs in ([[], [1]] if device == "CPU.2" else [[]])
    assert len(set(log.devices)) == 1
    del generation
    await_freed(core)


@pytest.mark.slow
def test_generation_recomputes_stages_of_two_lost_devices(core, compiled, log):
    """Two neighbouring stages are lost, and later also the devices that replaced theirs."""
    expected_tokens = list(compiled.generate(PROMPT, COUNT))
    generation = compiled.generate(PROMPT, COUNT)
    list(islice(generation, KILLED_AT))
    kill(core, "CPU.0", "CPU.1")
    list(islice(generation, 2))
    assert log.devices
    kill(core, *set(log.devices))
    log.sizes.clear()
    list(generation)
    assert generation.tokens == expected_tokens
    assert set(log.sizes) == {1}


@pytest.mark.slow
@pytest.mark.parametrize("joined_before_loss", [False, True])
def test_batched_sequences_recompute_their_caches(
    core,
    compiled,
    log,
    monkeypatch,
    joined_before_loss,
):
    """Sequences join a batch before or after the loss; no run may read some of the lost states."""
    batcher_of(compiled)._lanes = 1
    prompts = [PROMPT, [7], [8, 8, 8], [1, 2]]
    expected_tokens = [list(compiled.generate(prompt, COUNT)) for prompt in prompts]
    generations = [compiled.generate(prompt, COUNT) for prompt in prompts]
    for generation in generations:
        next(generation)
    batches = FullBatches(monkeypatch)
    batches.of(generations)
    if joined_before_loss:
        read(generations, [KILLED_AT - 1] * 4)
    kill(core, "CPU.1")
    log.sizes.clear()
    read(generations, [None] * 4)
    assert max(batches.rows) == 4
    assert [generation.tokens for generation in generations] == expected_tokens
    assert log.devices
    assert set(log.sizes) == {1}


def test_generation_without_lineage_restarts_from_its_tokens(
    core,
    compiled,
    log,
    monkeypatch,
):
    expected_tokens = list(compiled.generate(PROMPT, COUNT))
    monkeypatch.setattr("hetero.scheduler.client.deployment.MOST_NBYTES", 2**14)
    generation = compiled.generate(PROMPT, COUNT)
    list(islice(generation, KILLED_AT))
    kill(core, "CPU.1")
    list(generation)
    assert generation.tokens == expected_tokens
    assert not log.devices


@pytest.mark.usefixtures("restart_at_once")
@pytest.mark.parametrize("device", ["CPU.0", pytest.param("CPU.1", marks=pytest.mark.slow)])
def test_infer_request_recomputes_lost_states(core, log, device):
    with core.compile_model(
        decoder(), "HETERO:CPU.0,CPU.1", affinity={"1/*": "CPU.1"}, states=STATES
    ) as compiled:
        request = compiled.create_infer_request()
        tokens = [1]
        for turn in range(12):
            if turn == 6:
                kill(core, device)
            if turn % 2:
                request.start_async({"ids": [tokens[-1:]]})
                request.wait()
                logits = request.results["logits"]
            else:
                logits = request.infer({"ids": [tokens[-1:]]})["logits"]
            tokens.append(int(np.argmax(logits)))
        assert tokens == expected(decoder())
        assert len(log.devices) == 6
        del request
        await_freed(core)


@pytest.mark.slow
@pytest.mark.usefixtures("restart_at_once")
def test_query_state_recomputes_while_other_caller_receives(core, log, monkeypatch):
    """A caller that receives its own result leaves other messages, such as replays, to a thread."""
    with (
        core.compile_model(decoder(), "CPU.0", states=STATES) as compiled,
        core.compile_model(branches(), "CPU.1") as other,
    ):
        request = compiled.create_infer_request()
        request.infer({"ids": [[1]]})
        (before, *_) = [np.array(state.state) for state in request.query_state()]
        kill(core, "CPU.0")
        send = RemoteMemory.send_resident_inputs

        def send_after_others(memory: RemoteMemory, channel: Any, task: Task, *rest: Any) -> Any:
            if task.request.route == REPLAY:
                for _ in range(2):  # the second is known to be fast and receives its own result
                    other({"x": np.zeros((2, 3), np.float32)})
            return send(memory, channel, task, *rest)

        monkeypatch.setattr(RemoteMemory, "send_resident_inputs", send_after_others)
        (after, *_) = [np.array(state.state) for state in request.query_state()]
        np.testing.assert_array_equal(after, before)
        assert log.devices


@pytest.mark.slow
@pytest.mark.usefixtures("restart_at_once")
def test_error_after_recomputation_reaches_the_request(core, log, monkeypatch):
    with core.compile_model(decoder(), "CPU.0", states=STATES) as compiled:
        request = compiled.create_infer_request()
        request.infer({"ids": [[1]]})
        kill(core, "CPU.0")
        send = RemoteMemory.send_resident_inputs

        def fail(memory: RemoteMemory, channel: Any, task: Task, *rest: Any) -> Any:
            if log.devices and task.request.route != REPLAY:
                raise MemoryError("no room")
            return send(memory, channel, task, *rest)

        monkeypatch.setattr(RemoteMemory, "send_resident_inputs", fail)
        with pytest.raises(MemoryError, match="no room"):
            request.infer({"ids": [[2]]})


@pytest.mark.slow
@pytest.mark.usefixtures("restart_at_once")
def test_failed_reload_of_stages_is_retried(core, monkeypatch):
    inputs = {"x": np.zeros((2, 3), np.float32)}
    with core.compile_model(branches(), "CPU.0") as compiled:
        before = compiled(inputs)[0]
        load, faults = StageLoader.load, [RuntimeError("no more threads")]

        def fail(loader: StageLoader, *arguments: Any) -> Any:
            if faults:
                raise faults.pop()
            return load(loader, *arguments)

        monkeypatch.setattr(StageLoader, "load", fail)
        kill(core, "CPU.0")
        np.testing.assert_array_equal(compiled(inputs)[0], before)
        assert not faults


@pytest.mark.parametrize("source", [pytest.param("compiled", marks=pytest.mark.slow), "imported"])
def test_random_state_is_not_recomputed(core, log, source):
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x, float[2] past) => (float[2] y, float[2] present) {
            noise = RandomUniformLike (x)
            present = Add (past, noise)
            y = Neg (present)
        }"""
    )
    with ExitStack() as stack:
        compiled = stack.enter_context(
            core.compile_model(
                model,
                "HETERO:CPU.0,CPU.1",
                affinity={"op:Neg": "CPU.1"},
                states={"past": "present"},
            )
        )
        if source == "imported":
            compiled = stack.enter_context(core.import_model(compiled.export_model()))
        request = compiled.create_infer_request()
        x = np.zeros(2, np.float32)
        for _ in range(2):
            request.infer({"x": x})
        kill(core, "CPU.0")
        with pytest.raises(hetero.HeteroError, match="reset_state"):
            request.infer({"x": x})
        assert not log.devices
        request.reset_state()
        assert (request.infer({"x": x})["y"] <= 0).all()
