"""The request runner: its own thread keeps deadlines and is left alone otherwise."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from devices.errors import DeadlineError
from devices.request.answer import Answer
from devices.request.request import PLAIN, Request
from scheduler import Limits
from scheduler.client import runner as runner_module
from scheduler.client.bytes_in_flight import BytesInFlight
from scheduler.client.runner import RequestRunner
from scheduler.vocabulary.events import AttemptAnswered
from scheduler.vocabulary.placement import Route
from scheduler.vocabulary.plan import Plan, Stage

_WAIT_S = 30.0
_ROUTE = Route(Plan("m", (), (), (Stage(0, "A", (), (), ()),)), (0,))


class _Counted(queue.SimpleQueue[Any]):
    """A queue that counts how often its thread was woken to look at the deadlines."""

    num_looks = 0

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self.num_looks += item is None
        super().put(item, block, timeout)


class _Nowhere:
    """Attempts that go nowhere: the test answers them, or nobody does."""

    def start(self, request: Request, inputs: Mapping[str, Any]) -> None:
        pass

    def drop(self, request: Request) -> None:
        pass


def _runner(limits: Limits | None = None, in_flight: BytesInFlight | None = None) -> RequestRunner:
    return RequestRunner(
        limits or Limits(),
        _Nowhere(),
        routes=[_ROUTE],
        name="m",
        ids=itertools.count(1),
        in_flight=in_flight or BytesInFlight(),
    )


def _run(runner: RequestRunner) -> None:
    """Run a request, and have the runner's thread come by while none is left."""
    submission = runner.submit({}, PLAIN)
    runner.handle(AttemptAnswered(runner.now_s(), submission.request_id, 1, Answer({}, ())))
    submission.future.result(_WAIT_S)
    for _ in range(2):  # the second is taken once the first has been seen to
        came_by = threading.Event()
        runner.later(came_by.set)
        assert came_by.wait(_WAIT_S)


def test_requests_after_the_first_do_not_wake_the_thread_that_keeps_deadlines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counting = SimpleNamespace(SimpleQueue=_Counted, Empty=queue.Empty)
    monkeypatch.setattr(runner_module, "queue", counting)
    runner = _runner()
    for _ in range(5):
        _run(runner)
    assert runner._orders.num_looks == 1  # type: ignore[attr-defined]  # it is a _Counted
    runner.close()


def test_a_request_after_others_ends_at_its_own_earlier_deadline() -> None:
    runner = _runner()
    _run(runner)
    early = runner.submit({}, Request(timeout_s=0.02))
    with pytest.raises(DeadlineError):
        early.future.result(_WAIT_S)
    runner.close()


def test_a_callback_or_an_order_that_raises_leaves_deadlines_kept() -> None:
    def fail(_: object = None) -> None:
        raise RuntimeError("of whoever embeds it")

    runner = _runner()
    first = runner.submit({}, Request(timeout_s=0.02))
    first.future.add_done_callback(fail)
    runner.later(fail)
    with pytest.raises(DeadlineError):
        first.future.result(_WAIT_S)
    second = runner.submit({}, Request(timeout_s=0.02))
    with pytest.raises(DeadlineError):
        second.future.result(_WAIT_S)
    runner.close()


def test_bytes_that_another_deployment_gives_back_admit_who_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner_module, "LOOK_S", _WAIT_S)  # nobody looks by himself
    shared = BytesInFlight()
    limits = Limits(nbytes=100)
    waiting, other = (_runner(limits, shared) for _ in range(2))
    inputs = {"x": np.zeros(60, np.uint8)}
    waiting.submit({}, PLAIN)  # one request of a deployment may always be in flight
    held = other.submit(inputs, PLAIN)
    submits = threading.Thread(target=waiting.submit, args=(inputs, PLAIN))
    submits.start()
    while not waiting.counts()[0]:
        time.sleep(0.001)
    held.cancel()
    submits.join(_WAIT_S / 3)
    assert waiting.counts() == (0, 2)
    for runner in (waiting, other):
        runner.close()
