"""Batched requests: each caller has its own rows, deadline, cancellation, error and story."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    InferenceError,
    OverloadedError,
    RequestCancelledError,
)
from hetero.devices.request.request import DEFAULT_REQUEST, Request
from hetero.devices.request.response import Response, StageTiming
from hetero.scheduler import Limits
from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.request_runner import RequestRunner
from hetero.scheduler.clock import Clock
from hetero.scheduler.executor import Submission
from hetero.scheduler.types import events
from hetero.scheduler.types.limits import Batching
from hetero.scheduler.types.placement import Route
from tests.scheduler.channel_kinds import KINDS, executor_on
from tests.scheduler.models import build, chain, cut
from tests.scheduler.plugins import ToyPlugin

PATIENCE_S = 60
Inputs = Mapping[str, Any]


class Below:
    """Attempts that end at the test's request."""

    def __init__(self) -> None:
        self.requests: list[tuple[Inputs, Request]] = []
        self.cancelled: list[int] = []
        #: Error that started attempts raise.
        self.refusal: Exception | None = None
        self.is_refused = threading.Event()
        #: Whether started attempts return results at once.
        self.answers = False
        self.arrival = threading.Condition()

    def runner(self, batching: Batching, limits: Limits) -> RequestRunner:
        plan = cut(build([("Neg", "n", ("x",), "y")], ["y"]), ("TOY", ["n"]))[0]
        self.run = RequestRunner(
            replace(limits, batching=batching),
            self,
            routes=(Route(plan, (0,)),),
            name="m",
            ids=itertools.count(1),
            in_flight=BytesInFlight(),
            clock=Clock("test"),
        )
        return self.run

    def start(self, request: Request, inputs: Inputs) -> None:
        if self.refusal:
            self.is_refused.set()
            raise self.refusal
        with self.arrival:
            self.requests.append((inputs, request))
            self.arrival.notify_all()
        if self.answers:
            self.answer_to(len(self.requests) - 1)

    def drop(self, request: Request) -> None:
        numbers = [n for n, (_, other) in enumerate(self.requests) if other is request]
        self.cancelled += numbers

    def answer(
        self, request: Request, inputs: Inputs, result: Inputs, runs: tuple[StageTiming, ...]
    ) -> Response:
        return Response(result, runs)

    def rows(self) -> list[list[float]]:
        return [inputs["x"].ravel().tolist() for inputs, _ in self.requests]

    def await_requests(self, count: int) -> None:
        with self.arrival:
            assert self.arrival.wait_for(lambda: len(self.requests) >= count, PATIENCE_S)

    def answer_to(self, number: int, make: Callable[[Any], Any] = np.negative) -> None:
        inputs, request = self.requests[number]
        result, runs = {"y": make(inputs["x"])}, (StageTiming(0, "TOY"),)
        self.run.handle(
            events.PartArrived(self.run.now_s(), request.id, request.attempt, result, runs)
        )

    def fail(self, number: int, error: Exception) -> None:
        _, request = self.requests[number]
        self.run.handle(events.AttemptFailed(self.run.now_s(), request.id, request.attempt, error))


@pytest.fixture
def below():
    return Below()


@pytest.fixture
def batched(below):
    result = below.runner(Batching(4, PATIENCE_S), Limits(requests=8, attempts=1))
    yield result
    result.close()


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)}


def rows_of(submission: Submission) -> list[float]:
    return cast("list[float]", submission.future.result(PATIENCE_S).outputs["y"].tolist())


def submit(batched: RequestRunner, *rows: float) -> list[Submission]:
    return [batched.submit(x(row), DEFAULT_REQUEST) for row in rows]


def test_each_caller_gets_its_own_rows(below, batched):
    (first,) = submit(batched, 1)
    others = [batched.submit(x(2, 3), DEFAULT_REQUEST), batched.submit(x(4), DEFAULT_REQUEST)]
    assert below.rows() == [[1]]
    below.answer_to(0)
    assert below.rows() == [[1], [2, 3, 4]]
    below.answer_to(1)
    assert [rows_of(s) for s in (first, *others)] == [[-1], [-2, -3], [-4]]
    answer = others[0].future.result()
    assert not answer.outputs["y"].flags.writeable
    assert answer.stage_timings == (StageTiming(0, "TOY"),)


def test_batch_takes_the_highest_priority_and_any_profile(below, batched):
    submit(batched, 1)
    for request in (Request(priority=2), Request(profile=True), Request(priority=1)):
        batched.submit(x(2), request)
    below.answer_to(0)
    _, joined = below.requests[1]
    assert below.rows() == [[1], [2, 2, 2]]
    assert (joined.priority, joined.profile) == (2, True)


def test_rows_of_other_shapes_are_not_joined(below, batched):
    submit(batched, 1)
    for width in (2, 3, 2):
        batched.submit({"x": np.full((1, width), width, np.float32)}, DEFAULT_REQUEST)
    below.answer_to(0)
    below.answer_to(1)
    assert below.rows() == [[1], [2, 2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize(
    "inputs",
    [{"x": np.float32(2)}, {"x": [1, 2]}, {"x": np.ones(2), "z": np.ones(3)}],
    ids=["no rows", "a sequence", "rows that differ"],
)
def test_unjoinable_request_runs_alone(below, batched, inputs):
    submit(batched, 1)
    batched.submit(inputs, DEFAULT_REQUEST)
    assert below.requests[1][0] is inputs


def test_cancelled_caller_is_in_no_batch(below, batched):
    _, second, third = submit(batched, 1, 2, 3)
    assert second.cancel()
    with pytest.raises(RequestCancelledError):
        second.future.result(PATIENCE_S)
    below.answer_to(0)
    below.answer_to(1)
    assert below.rows() == [[1], [3]]
    assert rows_of(third) == [-3]


def test_batch_is_cancelled_when_its_last_caller_leaves(below, batched):
    first, second, third = submit(batched, 1, 2, 3)
    below.answer_to(0)
    second.cancel()
    assert below.cancelled == []
    third.cancel()
    assert below.cancelled == [1]
    assert rows_of(first) == [-1]
    (fourth,) = submit(batched, 4)  # the pipeline is idle again
    below.answer_to(2)
    assert rows_of(fourth) == [-4]


def test_cancelled_caller_does_not_affect_others_in_batch(below, batched):
    _, second, third = submit(batched, 1, 2, 3)
    below.answer_to(0)
    second.cancel()
    below.answer_to(1)
    assert rows_of(third) == [-3]


def test_each_caller_has_its_own_deadline(below, batched):
    submit(batched, 1)
    short = batched.submit(x(2), Request(timeout_s=0.01))
    long = batched.submit(x(3), Request(timeout_s=PATIENCE_S))
    with pytest.raises(DeadlineError):
        short.future.result(PATIENCE_S)
    below.answer_to(0)
    below.answer_to(1)
    assert below.rows()[1] == [3]
    assert rows_of(long) == [-3]


def test_failed_batch_is_retried_per_caller(below, batched):
    _, *callers = submit(batched, 1, 2, 3, 4)
    below.answer_to(0)
    below.fail(1, InferenceError("a row is bad"))
    callers[1].cancel()
    (later,) = submit(batched, 5)
    below.fail(2, InferenceError("2 is bad"))
    below.answer_to(3)
    assert below.rows() == [[1], [2, 3, 4], [2], [4], [5]]
    below.answer_to(4)
    with pytest.raises(InferenceError, match="2 is bad"):
        callers[0].future.result(PATIENCE_S)
    assert (rows_of(callers[2]), rows_of(later)) == ([-4], [-5])


def test_batch_failure_gives_each_caller_its_own_error(below, batched):
    _, *callers = submit(batched, 1, 2, 3)
    below.answer_to(0)
    below.fail(1, DeviceLostError("gone", device="TOY"))
    errors = [caller.future.exception(PATIENCE_S) for caller in callers]
    assert [type(error) for error in errors] == [DeviceLostError] * 2
    assert errors[0] is not errors[1]
    assert len(below.requests) == 2


def test_result_with_wrong_rows_fails_every_caller(below, batched):
    _, *callers = submit(batched, 1, 2, 3)
    below.answer_to(0)
    below.answer_to(1, lambda rows: rows.max(keepdims=True))
    below.answer_to(2)
    below.answer_to(3)
    assert [rows_of(caller) for caller in callers] == [[-2], [-3]]


def test_batch_without_room_is_retried_without_blocking_submit(
    below,
):
    batched = below.runner(Batching(4, PATIENCE_S), Limits())
    below.refusal = OverloadedError("full")
    (first,) = submit(batched, 1)
    assert below.is_refused.is_set()
    (second,) = submit(batched, 2)
    below.answers, below.refusal = True, None
    assert [rows_of(first), rows_of(second)] == [[-1], [-2]]
    batched.close()


def test_batch_waits_for_a_device_without_blocking_submit(below, batched):
    batched.handle(events.DeviceLost(batched.now_s(), "TOY", "n", "away"))
    first, second = submit(batched, 1, 2)
    assert below.requests == []
    batched.handle(events.DeviceReturned(batched.now_s(), "TOY"))
    below.answer_to(0)
    assert [rows_of(first), rows_of(second)] == [[-1], [-2]]


def test_batch_of_a_lost_device_is_joined_again(below):
    batched = below.runner(Batching(4, PATIENCE_S), Limits())
    first, *others = submit(batched, 1, 2, 3)
    below.answer_to(0)
    batched.handle(events.DeviceLost(batched.now_s(), "TOY", "n", "away"))
    assert below.cancelled == [1]
    batched.handle(events.DeviceReturned(batched.now_s(), "TOY"))
    assert below.rows() == [[1], [2, 3], [2, 3]]
    below.answer_to(1)  # after the deadline
    below.answer_to(2)
    assert [rows_of(s) for s in (first, *others)] == [[-1], [-2], [-3]]
    batched.close()


def test_full_batcher_applies_backpressure(below):
    batched = below.runner(Batching(2, PATIENCE_S, most=1), Limits(requests=1, waiting=0))
    submit(batched, 1, 2)
    with pytest.raises(OverloadedError, match="2 of 2 requests"):
        batched.submit(x(3), DEFAULT_REQUEST)
    batched.close()


def test_oldest_caller_waits_no_longer_than_the_timeout(below):
    batched = below.runner(Batching(4, 0.01), Limits())
    submit(batched, 1, 2)
    below.await_requests(2)
    assert below.rows() == [[1], [2]]
    batched.close()


def test_story_includes_that_of_the_batch(below, batched):
    _, second, _ = submit(batched, 1, 2, 3)
    below.answer_to(0)
    below.answer_to(1)
    rows_of(second)
    lines = [line.event for line in batched.story(second.request_id)]
    assert lines == ["submitted with 4 bytes", "batch of 2: started", "answered"]


def test_close_ends_waiting_and_running_requests(below, batched):
    callers = submit(batched, 1, 2)
    batched.close()
    for caller in callers:
        with pytest.raises(RequestCancelledError):
            caller.future.result(PATIENCE_S)
    with pytest.raises(RequestCancelledError):
        submit(batched, 3)


@pytest.fixture(scope="module", params=KINDS)
def executor(request):
    with executor_on(request.param, devices={"TOY": 2}, plugins=(ToyPlugin,)) as executor:
        yield executor


def test_concurrent_callers_get_their_own_rows(executor):
    plan, sources = chain("TOY.0", "TOY.1")
    deployment = executor.deploy(plan, sources)
    limits = Limits(batching=Batching(8, 0.001, busy=2))
    batched = executor.deploy(plan, sources, limits=limits)
    numbers = itertools.count(1)

    def call(_: int) -> bool:
        rows = np.arange(1, 1 + next(numbers) % 3 + 1, dtype=np.float32) * next(numbers)
        request = Request(inline=True)
        outputs = batched.submit({"x": rows}, request).future.result(PATIENCE_S).outputs
        alone = deployment.submit({"x": rows}).future.result(PATIENCE_S).outputs
        return all(np.array_equal(outputs[name], alone[name]) for name in alone)

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(call, range(300)))
    batched.close()


def test_lost_cluster_fails_callers_of_all_queued_batches(below):
    batched = below.runner(Batching(1, PATIENCE_S, busy=1, most=1), Limits(requests=1000))
    waiting = submit(batched, *range(500))
    below.refusal = ClusterError("the cluster is gone")
    below.fail(0, ClusterError("the cluster is gone"))
    for submission in waiting:
        with pytest.raises(ClusterError):
            submission.future.result(PATIENCE_S)
    batched.close()
