"""Worker threads, and callers' threads that run stages of their own requests."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import InferenceError
from hetero.devices.request.request import Request
from hetero.scheduler import Limits, create_executor, inprocess
from hetero.scheduler.client import deployment as deployment_module
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.device import loop, workers
from hetero.scheduler.device.task_queue import OpenStage
from hetero.scheduler.types.placement import share
from tests.scheduler.models import build, chain, cut
from tests.scheduler.plugins import ToyPlugin, ToyProgram

X = np.arange(4, dtype=np.float32)
PATIENCE_S = 60.0
INLINE = Request(inline=True, timeout_s=300)


@pytest.fixture
def threads(monkeypatch):
    """Record the thread of each run of a stage."""
    run_threads: list[threading.Thread] = []
    run = ToyProgram.run

    def noted(self: ToyProgram, *arguments: object) -> object:
        run_threads.append(threading.current_thread())
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", noted)
    return run_threads


@pytest.fixture
def quick(monkeypatch):
    """Classify every request that has run once as short, independent of the load."""
    monkeypatch.setattr(deployment_module, "_QUICK_S", PATIENCE_S)


@pytest.fixture
def executor():
    executor = create_executor("inprocess", devices={"TOY": 3}, plugins=(ToyPlugin,))
    yield executor
    executor.close()


def test_waiting_caller_runs_its_own_short_request(executor, quick, threads):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", "TOY.2"))
    deployment.submit({"x": X}, INLINE).future.result()
    while not executor._workers.are_idle:  # a thread may still look for results to deliver
        threading.Event().wait(0.001)
    del threads[:]
    future = deployment.submit({"x": X}, INLINE).future
    assert future.done()
    np.testing.assert_array_equal(future.result().outputs["t2"], X + 3)
    assert threads == [threading.main_thread()] * 3
    del threads[:]
    deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert threading.main_thread() not in threads


def test_long_request_does_not_occupy_its_caller(executor, threads):
    deployment = executor.deploy(*chain("TOY.0", name="sleep_0.1_"))
    for _ in range(2):
        deployment.submit({"x": X}, INLINE).future.result()
    assert threading.main_thread() not in threads


def test_request_passes_its_stages_in_one_thread(executor, threads):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1", "TOY.2"))
    deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert len(threads) == 3
    assert len(set(threads)) == 1


def test_busy_worker_delegates_the_notice_to_the_client(executor, threads, monkeypatch):
    stories: dict[int, threading.Thread] = {}
    receive = Deployment._receive

    def noted(self: Deployment, message: Any) -> None:
        stories[message.task.stage] = threading.current_thread()
        receive(self, message)

    monkeypatch.setattr(Deployment, "_receive", noted)
    model = build([("Neg", "a", ["x"], "y"), ("Neg", "b", ["y"], "z")], ["y", "z"])
    deployment = executor.deploy(*cut(model, ("TOY.0", ["a"]), ("TOY.1", ["b"])))
    answer = deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    np.testing.assert_array_equal(answer.outputs["y"], -X)
    np.testing.assert_array_equal(answer.outputs["z"], X)
    assert stories[0] not in threads  # these threads run the second stage
    assert stories[1] in threads


def test_ctrl_c_in_callers_stage_ends_its_request(executor, monkeypatch):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1"))
    deployment.submit({"x": X}, INLINE).future.result()

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ToyProgram, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            deployment.submit({"x": X}, INLINE)
        # In a worker's thread, KeyboardInterrupt is an error like any other.
        with pytest.raises(InferenceError, match="KeyboardInterrupt"):
            deployment.submit({"x": X}, Request(timeout_s=300)).future.result()
    assert all(not loop.status()["tasks"] for loop in executor._loops.values())
    assert deployment.submit({"x": X}, INLINE).future.result()


FILES = {module.__file__ for module in (inprocess, loop, workers)}


def interrupted_after(number: int) -> Callable[[FrameType, str, Any], None]:
    """Return a profiler that raises KeyboardInterrupt after a call of the direct run's code."""
    calls = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        caller = frame if event == "c_return" else frame.f_back if event == "return" else None
        if caller and caller.f_code.co_filename in FILES and next(calls) == number:
            raise KeyboardInterrupt

    return profile


@pytest.mark.parametrize("stages", [1, 2])
def test_ctrl_c_during_a_callers_run_leaves_devices_free(executor, quick, stages):
    deployment = executor.deploy(*chain(*(f"TOY.{i}" for i in range(stages))))
    deployment.submit({"x": X}, INLINE).future.result()
    before = sys.getprofile()
    for number in itertools.count(1):
        sys.setprofile(interrupted_after(number))
        try:
            deployment.submit({"x": X}, INLINE)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        # It runs only if the devices are free, after the tasks left on them.
        assert deployment.submit({"x": X}, INLINE).future.result(), number
        assert not any(loop.status()["running"] for loop in executor._loops.values()), number
    assert number > 15
    assert all(not loop.status()["tasks"] for loop in executor._loops.values())


@pytest.fixture
def gate(monkeypatch):
    """Event for which runs on devices wait."""
    gate_opened = threading.Event()
    run = ToyProgram.run

    def held(self: ToyProgram, *arguments: object) -> object:
        assert gate_opened.wait(PATIENCE_S)
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", held)
    return gate_opened


def test_caller_of_a_busy_device_waits_its_turn(executor, gate, threads):
    deployment = executor.deploy(*chain("TOY.0"))
    gate.set()
    deployment.submit({"x": X}, INLINE).future.result()
    gate.clear()
    del threads[:]
    submissions = [
        deployment.submit({"x": X + i}, r) for i, r in enumerate((Request(), INLINE, INLINE))
    ]
    assert not any(submission.future.done() for submission in submissions)
    gate.set()
    for i, submission in enumerate(submissions):
        np.testing.assert_array_equal(submission.future.result(PATIENCE_S).outputs["t0"], X + i + 1)
    assert threading.main_thread() not in threads


def test_request_run_by_its_caller_is_observed(executor, quick):
    deployment = executor.deploy(*chain("TOY.0"))
    stories = []
    for request in (Request(), INLINE):
        submissions = deployment.submit({"x": X}, request)
        (run,) = submissions.future.result(PATIENCE_S).stage_timings
        stories.append(
            ([line.event for line in submissions.story()], run.stage, run.device, run.output_nbytes)
        )
        assert run.queued_s >= 0 < run.run_s
    assert stories[0] == stories[1]


def test_run_that_fails_in_callers_thread_is_replayed_elsewhere(executor, quick, monkeypatch):
    plans = [chain(name) for name in ("TOY.0", "TOY.1")]
    placement = share([plan for plan, _ in plans], [1, 1])
    deployment = executor.deploy(placement, [source for _, sources in plans for source in sources])
    deployment.submit({"x": X}, INLINE).future.result()
    run, full = ToyProgram.run, [MemoryError("by design")]

    def fail_once(self: ToyProgram, *arguments: object) -> object:
        if full:
            raise full.pop()
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", fail_once)
    submissions = deployment.submit({"x": X}, INLINE)
    np.testing.assert_array_equal(submissions.future.result(PATIENCE_S).outputs["t0"], X + 1)
    assert max(line.attempt for line in submissions.story()) == 2
    assert all(not loop.status()["tasks"] for loop in executor._loops.values())


def test_waiting_caller_lends_its_thread_after_admission(executor, threads):
    deployment = executor.deploy(*chain("TOY.0", "TOY.1"), limits=Limits(requests=1))
    deployment.submit({"x": X}, INLINE).future.result()
    slow = executor.deploy(*chain("TOY.0", name="sleep_0.05_"))
    busy = slow.submit({"x": X}, Request(timeout_s=300))
    first = deployment.submit({"x": X}, Request(timeout_s=300))
    second = deployment.submit({"x": X}, INLINE)
    for submission in (busy, first, second):
        assert submission.future.result()
    assert all(not loop.status()["tasks"] for loop in executor._loops.values())


def wait_for_each_other(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Make runs wait until `count` of them have started."""
    barrier = threading.Barrier(count)
    run = ToyProgram.run

    def met(self: ToyProgram, *arguments: object) -> object:
        barrier.wait(PATIENCE_S)
        return run(self, *arguments)  # type: ignore[arg-type]  # whatever it was called with

    monkeypatch.setattr(ToyProgram, "run", met)


@pytest.mark.parametrize(("ewma_s", "watch_s"), [(60.0, PATIENCE_S), (0.0, 0.001)])
def test_tasks_behind_a_long_task_move_to_another_thread(
    ewma_s,
    watch_s,
    executor,
    monkeypatch,
):
    monkeypatch.setattr(OpenStage, "ewma_s", property(lambda self: ewma_s, lambda self, _: None))
    monkeypatch.setattr(workers, "_WATCH_S", watch_s)
    deployments = [executor.deploy(*chain(f"TOY.{i}")) for i in range(3)]
    wait_for_each_other(monkeypatch, 3)
    submissions = [
        deployment.submit({"x": X}, Request(timeout_s=300)) for deployment in deployments
    ]
    for submission in submissions:
        np.testing.assert_array_equal(submission.future.result().outputs["t0"], X + 1)


def test_tasks_behind_short_tasks_run_on_the_same_thread(
    executor,
    threads,
    gate,
    monkeypatch,
):
    monkeypatch.setattr(OpenStage, "ewma_s", property(lambda self: 0.0, lambda self, _: None))
    monkeypatch.setattr(workers, "_WATCH_S", PATIENCE_S)
    deployments = [executor.deploy(*chain(f"TOY.{i}")) for i in range(3)]
    submissions = [
        deployment.submit({"x": X}, Request(timeout_s=300)) for deployment in deployments
    ]
    gate.set()
    for submission in submissions:
        assert submission.future.result()
    assert len(threads) == 3
    assert len(set(threads)) == 1
