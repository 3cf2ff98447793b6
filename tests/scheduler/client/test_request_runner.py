"""Request runner: its clock thread keeps deadlines and is not woken otherwise."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import (
    DeadlineError,
    OverloadedError,
    RequestCancelledError,
    TensorLostError,
    UnsupportedOperationError,
)
from hetero.devices.request.request import DEFAULT_REQUEST, Request
from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler import Limits
from hetero.scheduler.client import request_runner as runner_module
from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.request_runner import RequestRunner
from hetero.scheduler.clock import Clock
from hetero.scheduler.types.events import PartArrived
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.plan import Plan, Stage
from hetero.scheduler.types.request_record import RequestRecord
from tests.support.manual_clock import ManualClock

_WAIT_S = 30.0
_ROUTE = Route(Plan("m", (), (), (Stage(0, "A", (), (), ()),)), (0,))


class _Nowhere:
    """Attempts without devices; the test delivers their results."""

    def start(self, request: Request, inputs: Mapping[str, Any]) -> None:
        pass

    def drop(self, request: Request) -> None:
        pass

    def answer(self, request: Request, inputs: Any, value: Any, runs: Any) -> Response:
        return Response(value, runs)


@pytest.fixture
def clock():
    value = Clock("test")
    yield value
    value.close()


def _runner(
    clock: Clock, limits: Limits | None = None, in_flight: BytesInFlight | None = None
) -> RequestRunner:
    return RequestRunner(
        limits or Limits(),
        _Nowhere(),
        routes=[_ROUTE],
        name="m",
        ids=itertools.count(1),
        in_flight=in_flight or BytesInFlight(),
        clock=clock,
    )


class _Failing(_Nowhere):
    """Attempts that fail to start."""

    def start(self, request: Request, inputs: Mapping[str, Any]) -> None:
        raise TensorLostError("an input is gone", port="x", device="A")


def test_error_of_failed_start_keeps_no_inputs_alive(
    clock,
):
    runner = _runner(clock)
    runner.attempts = _Failing()
    array = np.zeros(1)
    reference = weakref.ref(array)
    future = runner.submit({"x": array}, DEFAULT_REQUEST).future
    del array
    assert isinstance(future.exception(_WAIT_S), TensorLostError)
    assert reference() is None


class _Answered(_Nowhere):
    """Attempt whose result may arrive during the request for its outputs."""

    def __init__(self, runner: RequestRunner, is_soon: bool) -> None:
        self._runner, self._is_soon = runner, is_soon

    def pending_outputs(self, request: Request, inputs: Any) -> dict[str, Any]:
        if self._is_soon:
            answered = PartArrived(self._runner.now_s(), request.id, 1, {}, [StageTiming(0, "A")])
            self._runner.handle(answered)
        return {"y": "what stands for it"}


@pytest.mark.parametrize("is_soon", [True, False])
def test_finished_request_awaits_no_more_outputs(clock, is_soon):
    """Its device may have freed the output, so a wait for it would never end."""
    runner = _runner(clock)
    runner.attempts = _Answered(runner, is_soon)
    submission = runner.submit({}, DEFAULT_REQUEST)
    assert submission.pending_outputs() == ({} if is_soon else {"y": "what stands for it"})
    assert submission.future.done() is is_soon


def _run(runner: RequestRunner, clock: Clock) -> None:
    """Run a request, and wake the clock thread after its end."""
    submission = runner.submit({}, DEFAULT_REQUEST)
    runner.handle(PartArrived(runner.now_s(), submission.request_id, 1, {}, [StageTiming(0, "A")]))
    submission.future.result(_WAIT_S)
    for _ in range(2):  # the second event is handled after the first
        came_by = threading.Event()
        clock.call_soon(came_by.set)
        assert came_by.wait(_WAIT_S)


def test_later_requests_do_not_wake_the_clock(clock, monkeypatch):
    sets: list[float] = []
    real = clock.set
    monkeypatch.setattr(clock, "set", lambda timer, due_s: (sets.append(due_s), real(timer, due_s)))
    runner = _runner(clock)
    for _ in range(5):
        _run(runner, clock)
    assert len(sets) == 1
    runner.close()


def test_later_request_ends_at_its_earlier_deadline(clock):
    runner = _runner(clock)
    _run(runner, clock)
    early = runner.submit({}, Request(timeout_s=0.02))
    with pytest.raises(DeadlineError):
        early.future.result(_WAIT_S)
    runner.close()


def test_deadlines_hold_after_a_raising_callback_or_order(clock):
    def fail(_: object = None) -> None:
        raise RuntimeError("of whoever embeds it")

    runner = _runner(clock)
    first = runner.submit({}, Request(timeout_s=0.02))
    first.future.add_done_callback(fail)
    clock.call_soon(fail)
    with pytest.raises(DeadlineError):
        first.future.result(_WAIT_S)
    second = runner.submit({}, Request(timeout_s=0.02))
    with pytest.raises(DeadlineError):
        second.future.result(_WAIT_S)
    runner.close()


def test_bytes_freed_by_a_deployment_admit_anothers_request(
    clock,
    monkeypatch,
):
    monkeypatch.setattr(runner_module, "WAIT_SLICE_S", _WAIT_S)  # nothing else checks the queue
    shared = BytesInFlight()
    limits = Limits(nbytes=100)
    waiting, other = (_runner(clock, limits, shared) for _ in range(2))
    inputs = {"x": np.zeros(60, np.uint8)}
    waiting.submit({}, DEFAULT_REQUEST)  # one request of a deployment may always be in flight
    reference = other.submit(inputs, DEFAULT_REQUEST)
    submits = threading.Thread(target=waiting.submit, args=(inputs, DEFAULT_REQUEST))
    submits.start()
    while not waiting.counts()[0]:
        time.sleep(0.001)
    reference.cancel()
    submits.join(_WAIT_S / 3)
    assert waiting.counts() == (0, 2)
    for runner in (waiting, other):
        runner.close()


def test_attempt_dropped_at_its_start_is_not_awaited(clock):
    runner = _runner(clock)
    real = runner.attempts.start

    def start(request: Request, inputs: Mapping[str, Any]) -> None:  # preempted at its start
        runner.cancel(request.id)
        real(request, inputs)

    runner.attempts.start = start  # type: ignore[method-assign]
    submission = runner.submit({}, DEFAULT_REQUEST)
    with pytest.raises(RequestCancelledError):
        submission.future.result(_WAIT_S)
    assert runner._in_flight.num_running == 0
    assert runner.running_attempts() == []
    runner.close()


def test_interrupt_during_completion_leaves_no_caller_waiting(clock):
    runner = _runner(clock)
    others = [runner.submit({}, Request(timeout_s=_WAIT_S)) for _ in range(3)]

    def interrupt(record: RequestRecord, runs: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt

    runner._ended = interrupt
    with pytest.raises(KeyboardInterrupt):
        runner.close()
    for other in others:
        with pytest.raises(RequestCancelledError):
            other.future.result(_WAIT_S)


def _interrupt_after(number: int) -> Callable[[FrameType, str, Any], None]:
    """Return a profiler that raises KeyboardInterrupt at the start or end of a call in `submit`."""
    calls = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code is RequestRunner.submit.__code__:
            return
        if event in ("call", "return", "c_return") and next(calls) == number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    return profile


def test_ctrl_c_during_a_submission_leaves_nothing_counted(clock):
    in_flight = BytesInFlight()
    runner = _runner(clock, in_flight=in_flight)
    before = sys.getprofile()
    for number in itertools.count(1):
        sys.setprofile(_interrupt_after(number))
        try:
            submission = runner.submit({"x": np.zeros(4)}, DEFAULT_REQUEST)
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        counts = (*runner.counts(), in_flight.nbytes, in_flight.num_running, len(runner._calls))
        assert counts == (0,) * 5, number
        assert [state.num_running for state in runner.machine._routes.states] == [0], number
        other = runner.submit({}, DEFAULT_REQUEST)
        assert other.cancel()
    assert number > 50
    assert submission.cancel()
    runner.close()


def test_unbuildable_result_fails_its_request(clock):
    runner = _runner(clock)

    def answer(*of: Any) -> Response:
        raise MemoryError("no room for the answer")

    runner.attempts.answer = answer  # type: ignore[method-assign]
    submission = runner.submit({}, DEFAULT_REQUEST)
    runner.handle(PartArrived(clock.now_s(), submission.request_id, 1, {}, (StageTiming(0, "A"),)))
    with pytest.raises(MemoryError, match="no room"):
        submission.future.result(_WAIT_S)
    runner.close()


class _Recorded(_Nowhere):
    """Attempts that are recorded."""

    def __init__(self) -> None:
        self.started: list[Request] = []
        self.dropped: list[Request] = []

    def start(self, request: Request, inputs: Mapping[str, Any]) -> None:
        self.started.append(request)

    def drop(self, request: Request) -> None:
        self.dropped.append(request)


@pytest.fixture
def manual():
    """Return a runner of one request at a time, its clock and its attempts."""
    clock, attempts = ManualClock(100.0), _Recorded()
    runner = _runner(clock, Limits(requests=1, waiting=1, timeout_s=50.0))
    runner.attempts = attempts
    return runner, clock, attempts


def _record(runner: RequestRunner, number: int) -> RequestRecord:
    return next(record for record in runner.live_records() if record.id == number)


def _finish(runner: RequestRunner, number: int) -> None:
    runner.handle(PartArrived(runner.now_s(), number, 1, {"y": number}, [StageTiming(0, "A")]))


def test_record_has_the_options_of_the_request(manual):
    runner, _, attempts = manual
    request = Request(timeout_s=7.0, priority=3, trace="00-1", waits=None, profile=True)
    runner.submit({"x": np.zeros(3)}, request, frozenset("A"))
    submitted = _record(runner, 1).submitted
    assert (submitted.now_s, submitted.deadline_s, submitted.nbytes) == (100.0, 107.0, 24)
    assert (submitted.waits, submitted.priority, submitted.preferred_devices, submitted.trace) == (
        *(None, 3),
        *(frozenset("A"), "00-1"),
    )
    assert (submitted.group, submitted.rows) == (None, 0)  # without batching
    (started,) = attempts.started
    assert (started.id, started.attempt, started.profile) == (1, 1, True)
    assert runner.counts() == (0, 1)
    assert [attempt for attempt, _ in runner.running_attempts()] == [started]
    assert (runner.has_ended(started), runner.live_route()) == (False, 0)
    assert runner.has_ended(started._replace(attempt=1))  # an equal record of another attempt
    _finish(runner, 1)
    assert runner.has_ended(started)
    assert runner.running_attempts() == []


def test_caller_waits_until_its_deadline(manual):
    runner, clock, _ = manual
    runner.submit({}, DEFAULT_REQUEST)
    with pytest.raises(DeadlineError, match="request 2: no answer after") as caught:
        runner.submit({}, Request(timeout_s=1.0))
    assert caught.value.data["request_id"] == 2
    # The wait ends at the deadline, plus the millisecond that makes it pass.
    assert clock.time_s == pytest.approx(101.0, abs=0.002)
    assert max(clock.waits_s) <= runner_module.WAIT_SLICE_S
    assert runner.counts() == (0, 1)


def test_caller_is_admitted_as_another_request_ends(manual):
    runner, clock, attempts = manual
    first = runner.submit({}, DEFAULT_REQUEST)
    timer = clock.timer(lambda: _finish(runner, first.request_id))
    timer.make_due_by(100.4)
    second = runner.submit({}, DEFAULT_REQUEST)
    assert second.waited_s == pytest.approx(0.4, abs=runner_module.WAIT_SLICE_S + 0.002)
    assert [request.id for request in attempts.started] == [1, 2]
    assert first.future.result(0).outputs == {"y": 1}
    assert second.story()[0].event.startswith("submitted")


def test_full_queue_refuses_callers_by_the_name_of_the_model(manual):
    runner, _, attempts = manual
    runner.submit({}, DEFAULT_REQUEST)
    with pytest.raises(OverloadedError, match="m: 1 of 1 requests"):
        runner.submit({}, Request(waits=False))
    later = runner.submit({}, Request(waits=None))  # its caller does not wait
    assert not later.future.done()
    assert len(attempts.started) == 1
    with pytest.raises(OverloadedError, match="1 of 1 callers wait"):
        runner.submit({}, DEFAULT_REQUEST)
    _finish(runner, 1)
    assert [request.id for request in attempts.started] == [1, later.request_id]


def test_cancelled_request_is_dropped_on_its_devices(manual):
    runner, clock, attempts = manual
    submission = runner.submit({}, DEFAULT_REQUEST)
    clock.pass_s(2.0)
    assert submission.cancel()
    assert attempts.dropped == attempts.started
    assert not submission.cancel()
    assert isinstance(submission.future.exception(0), RequestCancelledError)
    assert [(line.time_s, line.event) for line in submission.story()][-1] == (
        102.0,
        "CancelRequested came late and was dropped",
    )
    assert (submission.story()[-2].time_s, submission.story()[-2].event) == (102.0, "cancelled")


def test_deadline_passes_without_a_caller(manual):
    runner, clock, attempts = manual
    submission = runner.submit({}, Request(timeout_s=3.0))
    clock.pass_s(2.9)
    assert not submission.future.done()
    clock.pass_s(0.2)
    assert isinstance(submission.future.exception(0), DeadlineError)
    assert attempts.dropped == attempts.started
    closed = runner.submit({}, DEFAULT_REQUEST)
    runner.close()
    assert "m: closed with the request in flight" in str(closed.future.exception(0))
    with pytest.raises(RequestCancelledError, match="m: closed; compile the model again"):
        runner.submit({}, DEFAULT_REQUEST)


def test_forked_process_is_refused_by_the_name_of_the_model(manual, monkeypatch):
    runner, _, _ = manual
    monkeypatch.setattr(runner.home_process, "is_current", False)
    with pytest.raises(UnsupportedOperationError, match=r"^m: made in process"):
        runner.submit({}, DEFAULT_REQUEST)
