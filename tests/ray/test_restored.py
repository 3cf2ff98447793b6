"""States that a device takes with it: its stages alone run again, elsewhere, and give the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
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
from hetero.scheduler.client.remote_memory import RemoteMemory
from hetero.scheduler.client.restore import Restorer, Way
from hetero.scheduler.ray.loading import StageLoader
from hetero.scheduler.vocabulary.messages import Task
from tests.scheduler.parties import wait_for
from tests.support.full_batches import FullBatches, read
from tests.support.models import branches
from tests.support.stateful_models import STATES, decoder, expected

pytestmark = pytest.mark.ray

DEVICES = ["CPU.0", "CPU.1", "CPU.2"]
PINS = {"*_1": "CPU.1", "*_2": "CPU.2", "sample": "CPU.2"}
PROMPT, COUNT, KILLED_AT = list(range(20)), 16, 8


class Noted:
    """Where stages ran again, one entry for each run; and of how many tokens steps were."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.again: list[str] = []
        self.sizes: list[int] = []
        run_stage, feeds = Restorer._run_stage, StepInputs.feeds

        def noting_run(
            restorer: Restorer, number: int, inputs: Any, keep: Any, way: Way, is_wanted: Any
        ) -> Any:
            made = run_stage(restorer, number, inputs, keep, way, is_wanted)
            self.again.append(way.placement.stages[number].device)
            return made

        def noting_step(steps: StepInputs) -> dict[str, np.ndarray]:
            given = feeds(steps)
            self.sizes.append(given["input_ids"].shape[1])
            return given

        patch.setattr(Restorer, "_run_stage", noting_run)
        patch.setattr(StepInputs, "feeds", noting_step)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    return Noted(monkeypatch)


@pytest.fixture(scope="module")
def core() -> Iterator[hetero.Core]:
    with hetero.Core(devices={"CPU": 3}) as made:
        yield made


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no test wait since others have ended its device before it."""
    monkeypatch.setattr("hetero.scheduler.client.liveness._STEADY_S", 0.0)


@pytest.fixture
def compiled(core: hetero.Core) -> Iterator[hetero.CompiledModel]:
    """A decoder of three layers, each with its caches on a device of its own."""
    model = hetero.read_decoder(small_decoder(3))
    with core.compile_model(model, "HETERO:CPU.0,CPU.1,CPU.2", affinity=PINS) as made:
        assert {s.device for s in made.subgraphs} == set(DEVICES)
        yield made


def kill(core: hetero.Core, *devices: str) -> None:
    executor: Any = core.executor
    pids = [executor._ask(executor._devices.device(device), "ping") for device in devices]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def await_freed(core: hetero.Core) -> None:
    executor: Any = core.executor
    addresses = [executor._devices.device(device).address for device in DEVICES]
    told = executor._channel.status_of
    wait_for(lambda: all(told(a).get("kept_nbytes", -1) == 0 for a in addresses if a))


@pytest.mark.parametrize(
    "device", ["CPU.1", *(pytest.param(d, marks=pytest.mark.slow) for d in ("CPU.0", "CPU.2"))]
)
def test_one_stage_of_three_runs_again_and_the_text_goes_on(
    core: hetero.Core, compiled: hetero.CompiledModel, noted: Noted, device: str
) -> None:
    want = list(compiled.generate(PROMPT, COUNT))
    text = compiled.generate(PROMPT, COUNT)
    list(islice(text, KILLED_AT))
    kill(core, device)
    noted.sizes.clear()
    list(text)
    assert text.tokens == want
    assert set(noted.sizes) == {1}  # no other stage saw the prompt again
    # A run for the prompt, and for each token but the last; one more was begun, and may have ended.
    assert len(noted.again) in (KILLED_AT, KILLED_AT + 1)
    assert len(set(noted.again)) == 1
    del text
    await_freed(core)


def test_stages_of_two_devices_run_again(
    core: hetero.Core, compiled: hetero.CompiledModel, noted: Noted
) -> None:
    """The first kept what the second was given; then those where they are now are lost."""
    want = list(compiled.generate(PROMPT, COUNT))
    text = compiled.generate(PROMPT, COUNT)
    list(islice(text, KILLED_AT))
    kill(core, "CPU.0", "CPU.1")
    list(islice(text, 2))
    assert noted.again
    kill(core, *set(noted.again))
    noted.sizes.clear()
    list(text)
    assert text.tokens == want
    assert set(noted.sizes) == {1}


@pytest.mark.parametrize("are_joined", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rows_of_one_run_have_their_caches_again(
    core: hetero.Core,
    compiled: hetero.CompiledModel,
    noted: Noted,
    monkeypatch: pytest.MonkeyPatch,
    are_joined: bool,
) -> None:
    """Rows are joined before the loss, or after it: some are lost that no run reads."""
    batcher_of(compiled)._lanes = 1
    prompts = [PROMPT, [7], [8, 8, 8], [1, 2]]
    want = [list(compiled.generate(prompt, COUNT)) for prompt in prompts]
    texts = [compiled.generate(prompt, COUNT) for prompt in prompts]
    for text in texts:
        next(text)
    batches = FullBatches(monkeypatch)
    batches.of(texts)
    if are_joined:
        read(texts, [KILLED_AT - 1] * 4)
    kill(core, "CPU.1")
    noted.sizes.clear()
    read(texts, [None] * 4)
    assert max(batches.rows) == 4
    assert [text.tokens for text in texts] == want
    assert noted.again
    assert set(noted.sizes) == {1}


def test_what_is_not_kept_any_more_is_made_anew_of_the_tokens(
    core: hetero.Core, compiled: hetero.CompiledModel, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = list(compiled.generate(PROMPT, COUNT))
    monkeypatch.setattr("hetero.scheduler.client.deployment.MOST_NBYTES", 2**14)
    text = compiled.generate(PROMPT, COUNT)
    list(islice(text, KILLED_AT))
    kill(core, "CPU.1")
    list(text)
    assert text.tokens == want
    assert not noted.again


@pytest.mark.usefixtures("no_pause")
@pytest.mark.parametrize("device", ["CPU.0", pytest.param("CPU.1", marks=pytest.mark.slow)])
def test_a_request_that_is_no_text_goes_on_with_its_states(
    core: hetero.Core, noted: Noted, device: str
) -> None:
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
        assert len(noted.again) == 6
        del request
        await_freed(core)


@pytest.mark.usefixtures("no_pause")
def test_a_state_is_read_though_another_caller_received_meanwhile(
    core: hetero.Core, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever receives its own answer leaves the rest to a thread: runs again are among it."""
    with (
        core.compile_model(decoder(), "CPU.0", states=STATES) as compiled,
        core.compile_model(branches(), "CPU.1") as other,
    ):
        request = compiled.create_infer_request()
        request.infer({"ids": [[1]]})
        (want, *_) = [np.array(state.state) for state in request.query_state()]
        kill(core, "CPU.0")
        give = RemoteMemory.give

        def give_late(memory: RemoteMemory, channel: Any, task: Task, *rest: Any) -> Any:
            if task.request.route == REPLAY:
                for _ in range(2):  # the second knows that it is quick, and receives
                    other({"x": np.zeros((2, 3), np.float32)})
            return give(memory, channel, task, *rest)

        monkeypatch.setattr(RemoteMemory, "give", give_late)
        (got, *_) = [np.array(state.state) for state in request.query_state()]
        np.testing.assert_array_equal(got, want)
        assert noted.again


@pytest.mark.usefixtures("no_pause")
def test_a_request_hears_of_what_goes_wrong_once_its_states_are_there_again(
    core: hetero.Core, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    with core.compile_model(decoder(), "CPU.0", states=STATES) as compiled:
        request = compiled.create_infer_request()
        request.infer({"ids": [[1]]})
        kill(core, "CPU.0")
        give = RemoteMemory.give

        def failing(memory: RemoteMemory, channel: Any, task: Task, *rest: Any) -> Any:
            if noted.again and task.request.route != REPLAY:
                raise MemoryError("no room")
            return give(memory, channel, task, *rest)

        monkeypatch.setattr(RemoteMemory, "give", failing)
        with pytest.raises(MemoryError, match="no room"):
            request.infer({"ids": [[2]]})


@pytest.mark.usefixtures("no_pause")
def test_a_device_is_started_again_whatever_went_wrong_the_first_time(
    core: hetero.Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = {"x": np.zeros((2, 3), np.float32)}
    with core.compile_model(branches(), "CPU.0") as compiled:
        want = compiled(inputs)[0]
        load, faults = StageLoader.load, [RuntimeError("no more threads")]

        def failing(loader: StageLoader, *what: Any) -> Any:
            if faults:
                raise faults.pop()
            return load(loader, *what)

        monkeypatch.setattr(StageLoader, "load", failing)
        kill(core, "CPU.0")
        np.testing.assert_array_equal(compiled(inputs)[0], want)
        assert not faults


@pytest.mark.parametrize("how", [pytest.param("compiled", marks=pytest.mark.slow), "imported"])
def test_a_state_of_random_numbers_is_not_made_of_others(
    core: hetero.Core, noted: Noted, how: str
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        g (float[2] x, float[2] past) => (float[2] y, float[2] present) {
            drawn = RandomUniformLike (x)
            present = Add (past, drawn)
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
        if how == "imported":
            compiled = stack.enter_context(core.import_model(compiled.export_model()))
        request = compiled.create_infer_request()
        x = np.zeros(2, np.float32)
        for _ in range(2):
            request.infer({"x": x})
        kill(core, "CPU.0")
        with pytest.raises(hetero.HeteroError, match="reset_state"):
            request.infer({"x": x})
        assert not noted.again
        request.reset_state()
        assert (request.infer({"x": x})["y"] <= 0).all()
