"""The request runner: its own thread keeps deadlines and is left alone otherwise."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from devices.errors import DeadlineError
from devices.request.answer import Answer
from devices.request.request import PLAIN, Request
from scheduler import Limits
from scheduler.client import runner as runner_module
from scheduler.client.bytes_in_flight import BytesInFlight
from scheduler.client.runner import RequestRunner
from scheduler.events import AttemptAnswered
from scheduler.placement import Route
from scheduler.plan import Plan, Stage

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


def _runner() -> RequestRunner:
    return RequestRunner(
        Limits(),
        _Nowhere(),
        routes=[_ROUTE],
        name="m",
        ids=itertools.count(1),
        in_flight=BytesInFlight(),
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
