"""Workers that receive their tasks themselves, alone or several short tasks together."""

from __future__ import annotations

import threading
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from hetero.scheduler.device.workers import _LOOK_S, PumpingWorkers
from tests.scheduler.endpoints import LONG_S


@pytest.fixture(autouse=True)
def tasks_take_no_time(monkeypatch):
    """Stop the clock, as a busy machine may interrupt any task for milliseconds."""
    monkeypatch.setattr(
        "hetero.scheduler.device.workers.time", SimpleNamespace(monotonic=lambda: 0.0)
    )


class Script:
    """Channel that delivers tasks in batches, and loop that runs them and records the order.

    `runs`: function of each task; does nothing by default.
    """

    def __init__(self, *batches: str, runs: Any = lambda task: None) -> None:
        self.done: list[str] = []
        self.num_waits = 0
        self._batches = [list(batch) for batch in batches]
        self._runs = runs
        self._came: list[str] = []
        self._ended = threading.Event()
        self._woken = threading.Event()
        self.workers = PumpingWorkers("script")
        #: The loop of the tasks: the number of tasks that wait for a stream.
        self.loop: Any = SimpleNamespace(run=self.run, num_waiting=0)

    def play(self) -> str:
        self.workers.serve(self)  # type: ignore[arg-type]  # of a channel it only receives
        assert self._ended.wait(LONG_S)
        self.workers.stop()
        return "".join(self.done)

    def run(self, task: str) -> None:
        self.done.append(task)
        self._runs(task)

    def pump(self, timeout_s: float) -> int:
        if not self._came:
            if not timeout_s:
                return 0
            self.num_waits += 1
            if not self._batches:
                self._ended.set()
                self._woken.wait(LONG_S)
                return 0
            self._came = self._batches.pop(0)
        task: Any = self._came.pop(0)
        self.workers.start(self.loop, task)
        return 1

    def wake(self) -> None:
        self._woken.set()

    def cork(self) -> None:
        self.done.append("[")

    def uncork(self) -> None:
        self.done.append("]")


def test_outputs_of_a_single_task_are_sent_at_once():
    assert Script("a", "b", "c").play() == "abc"


def test_outputs_of_half_of_the_concurrent_tasks_are_sent_together():
    assert Script("abcd", "efgh", "i", "j").play() == "abcd[ef][gh][i]j"
    assert Script("abc", "def").play() == "abcdef"  # the next device runs one at a time


def test_task_waits_for_few_others():
    done = Script("a" * 40, "x" * 40).play()
    assert done.startswith("a" * 40 + "[x")
    assert max(map(len, done[40:].replace("[", "]").split("]"))) == 16
    assert done.count("x") == 40


def test_failing_task_uncorks_its_channel():
    def fail(task: str) -> None:
        if task == "!":
            raise RuntimeError

    assert Script("abcd", "e!f", runs=fail).play() == "abcd[e!][f]"


def test_outputs_of_long_tasks_are_sent_one_by_one():
    script = Script("abcd", "efgh")
    script.workers._ewma_s = LONG_S  # as if the last ones had been
    assert script.play() == "abcdefgh"


@pytest.mark.parametrize("when_s", [_LOOK_S, 0])
def test_unexpected_error_leaves_the_device_receiving(when_s):
    def fail(task: str) -> None:
        if task == "!":
            raise RuntimeError("of a task")

    class Damaged(Script):
        num_damaged = 0

        def pump(self, timeout_s: float) -> int:
            if "!" in self.done and timeout_s == when_s:
                self.num_damaged += 1
                if self.num_damaged == 1:
                    raise RuntimeError("of a message")
            return super().pump(timeout_s)

    damaged = Damaged("abcd", "!e", "f", runs=fail)
    assert damaged.play().replace("[", "").replace("]", "") == "abcd!ef"
    assert damaged.num_damaged


def test_streams_added_during_long_tasks_remain():
    script = Script()
    workers = script.workers
    workers.serve(script)  # type: ignore[arg-type]  # of a channel it only receives
    asking = threading.Thread(target=workers.run_at_once, args=(4,))
    real = workers._keep

    def keep(count: int) -> None:  # preempted between its reading and its writing
        if not asking.ident:
            asking.start()
            asking.join(0.2)
        real(count)

    workers._keep = keep  # type: ignore[method-assign]
    for _ in range(20):
        workers._note(LONG_S, script.loop)
    asking.join(LONG_S)
    assert workers.count == 5  # one receives while four run
    script._woken.set()
    workers.stop()


def test_run_time_of_tasks_is_a_moving_average():
    script = Script()
    workers = script.workers
    for seconds in (0.0008, 0.0, 0.0004):
        workers._note(seconds, script.loop)
    assert workers._ewma_s == pytest.approx(0.0008 / 8 * (7 / 8) ** 2 + 0.0004 / 8)


@pytest.fixture
def started(monkeypatch):
    """Names of the threads that workers have started; none of them runs."""
    names: list[str] = []

    def start(work: object, name: str) -> threading.Thread:
        names.append(name)
        return threading.current_thread()

    monkeypatch.setattr("hetero.scheduler.device.workers.start_thread", start)
    return names


@pytest.mark.parametrize(("mean_s", "num_waiting"), [(0.01, 0), (0.001, 1)])
def test_tasks_near_a_limit_start_few_threads(started, mean_s, num_waiting):
    script = Script()
    script.workers._channel = script  # type: ignore[assignment]  # it only receives
    script.loop.num_waiting = num_waiting
    random = Random(1)
    for _ in range(3000):
        script.workers._note(random.expovariate(1 / mean_s), script.loop)
    assert 1 <= len(started) <= 30  # crossings of the limit and of its half in turn


def test_thread_receives_during_shorter_tasks_while_several_wait(started):
    script = Script()
    workers = script.workers
    workers.serve(script)  # type: ignore[arg-type]  # of a channel it only receives
    workers._ewma_s = 0.003
    for _ in range(100):
        workers._note(0.003, script.loop)
    assert workers.count == 1
    script.loop.num_waiting = 1
    workers._note(0.003, script.loop)
    assert workers.count == 2
    script.loop.num_waiting = 0
    for _ in range(63):
        workers._note(0.003, script.loop)
    assert workers.count == 2  # as several may wait again soon
    workers._note(0.003, script.loop)
    assert workers.count == 1
    assert len(started) == 2


def test_all_arrived_tasks_are_received_after_a_task():
    script = Script("abc", "d")
    script.workers._ewma_s = 0.003
    received: list[int] = []

    def run(task: str) -> None:
        script.done.append(task)
        received.append(len(script._came))
        script.workers._ewma_s = 0.003  # it takes no time in this test

    script.loop.run = run
    assert script.play() == "abcd"
    assert received == [2, 0, 0, 0]
