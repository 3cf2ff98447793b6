"""Worker threads: what they go on with, and what callers' threads do for their own requests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from devices.errors import InferenceError
from devices.request.request import Request
from scheduler import InProcessExecutor, Limits, create_executor
from scheduler.device import workers
from scheduler.device.loop import DeviceLoop
from tests.scheduler.models import chain
from tests.scheduler.plugins import ToyPlugin, ToyProgram

X = np.arange(4, dtype=np.float32)
PATIENCE_S = 60.0
INLINE = Request(inline=True, timeout_s=300)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The thread of each run of a stage."""
    found: list[threading.Thread] = []
    run = ToyProgram.run

    def noted(self: ToyProgram, *arguments: object) -> object:
        found.append(threading.current_thread())
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", noted)
    return found


@pytest.fixture
def executor() -> Iterator[InProcessExecutor]:
    executor = create_executor("inprocess", devices={"TOY": 3}, plugins=(ToyPlugin,))
    yield executor
    executor.close()


def test_a_caller_that_waits_runs_its_own_short_request(
    executor: InProcessExecutor, threads: list[threading.Thread]
) -> None:
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", "TOY.2"))
    deployment.submit({"x": X}, INLINE).future.result()
    del threads[:]
    future = deployment.submit({"x": X}, INLINE).future
    assert future.done()
    np.testing.assert_array_equal(future.result().outputs["t2"], X + 3)
    assert threads == [threading.main_thread()] * 3
    del threads[:]
    deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert threading.main_thread() not in threads


def test_a_long_request_leaves_its_caller_free(
    executor: InProcessExecutor, threads: list[threading.Thread]
) -> None:
    deployment = executor.deploy(*chain("TOY.0", name="sleep_0.1_"))
    for _ in range(2):
        deployment.submit({"x": X}, INLINE).future.result()
    assert threading.main_thread() not in threads


def test_a_request_goes_through_its_stages_in_one_thread(
    executor: InProcessExecutor, threads: list[threading.Thread]
) -> None:
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", "TOY.2"))
    deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert len(threads) == 3
    assert len(set(threads)) == 1


def test_ctrl_c_in_a_callers_stage_ends_the_request_and_is_raised(
    executor: InProcessExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment = executor.deploy(*chain("TOY.0", "TOY.1"))
    deployment.submit({"x": X}, INLINE).future.result()

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ToyProgram, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            deployment.submit({"x": X}, INLINE)
        # In a worker's thread nobody pressed a key: it is one more way to fail.
        with pytest.raises(InferenceError, match="KeyboardInterrupt"):
            deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert all(loop.is_empty for loop in executor._loops.values())
    assert deployment.submit({"x": X}, INLINE).future.result()


def test_a_caller_that_waits_for_admission_lends_its_thread_only_then(
    executor: InProcessExecutor, threads: list[threading.Thread]
) -> None:
    deployment = executor.deploy(*chain("TOY.0", "TOY.1"), limits=Limits(requests=1))
    deployment.submit({"x": X}, INLINE).future.result()
    slow = executor.deploy(*chain("TOY.0", name="sleep_0.05_"))
    busy = slow.submit({"x": X}, Request(timeout_s=300))
    first = deployment.submit({"x": X}, Request(timeout_s=300))
    second = deployment.submit({"x": X}, INLINE)
    for submission in (busy, first, second):
        assert submission.future.result()
    assert all(loop.is_empty for loop in executor._loops.values())


def wait_for_each_other(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Have no run end before so many have begun."""
    barrier = threading.Barrier(count)
    run = ToyProgram.run

    def met(self: ToyProgram, *arguments: object) -> object:
        barrier.wait(PATIENCE_S)
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", met)


@pytest.mark.parametrize(("usual_s", "watch_s"), [(60.0, PATIENCE_S), (0.0, 0.001)])
def test_what_is_queued_behind_a_task_is_run_where_that_is_long_by_custom_or_after_all(
    usual_s: float,
    watch_s: float,
    executor: InProcessExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(DeviceLoop, "usual_s", lambda self, task: usual_s)
    monkeypatch.setattr(workers, "_WATCH_S", watch_s)
    deployments = [executor.deploy(*chain(f"TOY.{i}")) for i in range(3)]
    wait_for_each_other(monkeypatch, 3)
    made = [deployment.submit({"x": X}, Request(timeout_s=300)) for deployment in deployments]
    for submission in made:
        np.testing.assert_array_equal(submission.future.result().outputs["t0"], X + 1)


def test_what_is_queued_behind_short_tasks_is_run_by_their_thread(
    executor: InProcessExecutor, threads: list[threading.Thread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeviceLoop, "usual_s", lambda self, task: 0.0)
    monkeypatch.setattr(workers, "_WATCH_S", PATIENCE_S)
    deployments = [executor.deploy(*chain(f"TOY.{i}")) for i in range(3)]
    queued = threading.Event()
    run = ToyProgram.run

    def held(self: ToyProgram, *arguments: object) -> object:
        assert queued.wait(PATIENCE_S)
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", held)
    made = [deployment.submit({"x": X}, Request(timeout_s=300)) for deployment in deployments]
    queued.set()
    for submission in made:
        assert submission.future.result()
    assert len(threads) == 3
    assert len(set(threads)) == 1
