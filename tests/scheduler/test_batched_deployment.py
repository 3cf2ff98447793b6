"""Callers of a batched deployment: each its own rows, deadline, cancellation, error and story."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, cast

import numpy as np
import pytest

from devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    InferenceError,
    OverloadedError,
    RequestCancelledError,
)
from devices.request.answer import Answer, StageRun
from devices.request.request import PLAIN, Request
from scheduler import InProcessExecutor, Limits
from scheduler.client.batched_deployment import BatchedDeployment
from scheduler.client.batching import Batching
from scheduler.clock import Clock
from scheduler.executor import Callers, Submission
from scheduler.vocabulary.record import RequestRecord, StoryLine
from tests.scheduler.channels import KINDS, executor_on
from tests.scheduler.models import build, chain, cut
from tests.scheduler.plugins import ToyPlugin

PATIENCE_S = 60
Inputs = Mapping[str, Any]


class Below:
    """A deployment whose requests end when the test says so."""

    def __init__(self) -> None:
        self.plan = cut(build([("Neg", "n", ("x",), "y")], ["y"]), ("TOY", ["n"]))[0]
        self.callback_executor = ThreadPoolExecutor(1)
        self.clock = Clock("test")
        self.requests: list[tuple[Inputs, Request, Future[Answer]]] = []
        self.cancelled: list[int] = []
        #: Raised by the next submission.
        self.refusal: Exception | None = None
        self.waits = threading.Event()
        self.admits = threading.Event()
        self.came = threading.Condition()
        self.is_closed = False

    def submit(self, inputs: Inputs, request: Request = PLAIN) -> Submission:
        if self.refusal and not request.waits:
            raise self.refusal
        if self.refusal:
            self.waits.set()
            assert self.admits.wait(PATIENCE_S)
            self.refusal = None
        future: Future[Answer] = Future()
        with self.came:
            number = len(self.requests)
            self.requests.append((inputs, request, future))
            self.came.notify_all()

        def cancel() -> bool:
            self.cancelled.append(number)
            future.set_exception(RequestCancelledError("cancelled"))
            return True

        return Submission(number, future, cancel)

    def rows(self) -> list[list[float]]:
        return [inputs["x"].ravel().tolist() for inputs, *_ in self.requests]

    def await_requests(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: len(self.requests) >= count, PATIENCE_S)

    def answer(self, number: int, make: Callable[[Any], Any] = np.negative) -> None:
        inputs, _, future = self.requests[number]
        future.set_result(Answer({"y": make(inputs["x"])}, (StageRun(0, "TOY"),)))

    def fail(self, number: int, error: Exception) -> None:
        self.requests[number][2].set_exception(error)

    def story(self, request_id: int) -> list[StoryLine]:
        return [StoryLine(0.0, 1, f"story of {request_id}")]

    def joins(self, callers: Callers) -> None:
        """Nobody looks."""

    def caller_ended(self, record: RequestRecord, runs: Sequence[StageRun]) -> None:
        """Nobody looks."""

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def below() -> Below:
    return Below()


@pytest.fixture
def batched(below: Below) -> Iterator[BatchedDeployment]:
    made = BatchedDeployment(cast(Any, below), Batching(4, PATIENCE_S), Limits(requests=8))
    yield made
    made.close()


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)}


def rows_of(submission: Submission) -> list[float]:
    return cast("list[float]", submission.future.result(PATIENCE_S).outputs["y"].tolist())


def submit(batched: BatchedDeployment, *rows: float) -> list[Submission]:
    return [batched.submit(x(row)) for row in rows]


def test_each_caller_gets_its_rows(below: Below, batched: BatchedDeployment) -> None:
    (first,) = submit(batched, 1)
    others = [batched.submit(x(2, 3)), batched.submit(x(4))]
    assert below.rows() == [[1]]
    below.answer(0)
    assert below.rows() == [[1], [2, 3, 4]]
    below.answer(1)
    assert [rows_of(s) for s in (first, *others)] == [[-1], [-2, -3], [-4]]
    answer = others[0].future.result()
    assert not answer.outputs["y"].flags.writeable
    assert answer.stage_runs == (StageRun(0, "TOY"),)


def test_rows_of_other_shapes_are_not_joined(below: Below, batched: BatchedDeployment) -> None:
    submit(batched, 1)
    for width in (2, 3, 2):
        batched.submit({"x": np.full((1, width), width, np.float32)})
    below.answer(0)
    below.answer(1)
    assert below.rows() == [[1], [2, 2, 2, 2], [3, 3, 3]]


@pytest.mark.parametrize(
    "inputs",
    [{"x": np.float32(2)}, {"x": [1, 2]}, {"x": np.ones(2), "z": np.ones(3)}],
    ids=["no rows", "a sequence", "rows that differ"],
)
def test_what_cannot_be_joined_is_run_as_it_is(
    below: Below, batched: BatchedDeployment, inputs: dict[str, Any]
) -> None:
    submit(batched, 1)
    batched.submit(inputs)
    assert below.requests[1][0] is inputs


def test_a_cancelled_caller_is_in_no_batch(below: Below, batched: BatchedDeployment) -> None:
    _, second, third = submit(batched, 1, 2, 3)
    assert second.cancel()
    with pytest.raises(RequestCancelledError):
        second.future.result(PATIENCE_S)
    below.answer(0)
    below.answer(1)
    assert below.rows() == [[1], [3]]
    assert rows_of(third) == [-3]


def test_a_batch_is_stopped_when_its_last_caller_leaves(
    below: Below, batched: BatchedDeployment
) -> None:
    first, second, third = submit(batched, 1, 2, 3)
    below.answer(0)
    second.cancel()
    assert below.cancelled == []
    third.cancel()
    assert below.cancelled == [1]
    assert rows_of(first) == [-1]
    (fourth,) = submit(batched, 4)  # the pipeline is idle again
    below.answer(2)
    assert rows_of(fourth) == [-4]


def test_a_caller_that_leaves_a_running_batch_changes_nothing_for_the_others(
    below: Below, batched: BatchedDeployment
) -> None:
    _, second, third = submit(batched, 1, 2, 3)
    below.answer(0)
    second.cancel()
    below.answer(1)
    assert rows_of(third) == [-3]


def test_each_caller_has_its_own_deadline(below: Below, batched: BatchedDeployment) -> None:
    submit(batched, 1)
    short = batched.submit(x(2), Request(timeout_s=0.01))
    long = batched.submit(x(3), Request(timeout_s=PATIENCE_S))
    with pytest.raises(DeadlineError):
        short.future.result(PATIENCE_S)
    below.answer(0)
    below.answer(1)
    assert below.rows()[1] == [3]
    assert rows_of(long) == [-3]


def test_a_failed_batch_is_tried_caller_by_caller(below: Below, batched: BatchedDeployment) -> None:
    _, *callers = submit(batched, 1, 2, 3, 4)
    below.answer(0)
    below.fail(1, InferenceError("a row is bad"))
    callers[1].cancel()
    (later,) = submit(batched, 5)
    below.fail(2, InferenceError("2 is bad"))
    below.answer(3)
    assert below.rows() == [[1], [2, 3, 4], [2], [4], [5]]
    below.answer(4)
    with pytest.raises(InferenceError, match="2 is bad"):
        callers[0].future.result(PATIENCE_S)
    assert (rows_of(callers[2]), rows_of(later)) == ([-4], [-5])


def test_what_is_no_callers_fault_is_told_to_each_by_an_error_of_its_own(
    below: Below, batched: BatchedDeployment
) -> None:
    _, *callers = submit(batched, 1, 2, 3)
    below.answer(0)
    below.fail(1, DeviceLostError("gone", device="TOY"))
    errors = [caller.future.exception(PATIENCE_S) for caller in callers]
    assert [type(error) for error in errors] == [DeviceLostError] * 2
    assert errors[0] is not errors[1]
    assert len(below.requests) == 2


def test_an_answer_with_other_rows_is_no_ones(below: Below, batched: BatchedDeployment) -> None:
    _, *callers = submit(batched, 1, 2, 3)
    below.answer(0)
    below.answer(1, lambda rows: rows.max(keepdims=True))
    below.answer(2)
    below.answer(3)
    assert [rows_of(caller) for caller in callers] == [[-2], [-3]]


@pytest.mark.parametrize("refusal", [OverloadedError("full"), DeviceLostError("away")])
def test_a_batch_waits_for_room_and_its_callers_do_not_wait_to_submit(
    below: Below, batched: BatchedDeployment, refusal: Exception
) -> None:
    below.refusal = refusal
    (first,) = submit(batched, 1)
    assert below.waits.wait(PATIENCE_S)
    (second,) = submit(batched, 2)
    below.admits.set()
    below.await_requests(1)
    below.answer(0)
    below.await_requests(2)
    below.answer(1)
    assert [rows_of(first), rows_of(second)] == [[-1], [-2]]


def test_a_full_batcher_pushes_back(below: Below) -> None:
    batched = BatchedDeployment(
        cast(Any, below), Batching(2, PATIENCE_S, most=1), Limits(requests=1, waiting=0)
    )
    submit(batched, 1, 2)
    with pytest.raises(OverloadedError, match="2 of 2 requests"):
        batched.submit(x(3))
    batched.close()
    assert below.is_closed


def test_the_oldest_waits_no_longer_than_the_timeout(below: Below) -> None:
    batched = BatchedDeployment(cast(Any, below), Batching(4, 0.01), Limits())
    submit(batched, 1, 2)
    below.await_requests(2)
    assert below.rows() == [[1], [2]]
    batched.close()


def test_a_story_tells_the_batchs_too(below: Below, batched: BatchedDeployment) -> None:
    _, second, _ = submit(batched, 1, 2, 3)
    below.answer(0)
    below.answer(1)
    rows_of(second)
    lines = [line.what for line in batched.story(second.request_id)]
    assert lines == ["batch of 2: story of 1", "submitted with 4 bytes", "started", "answered"]


def test_closing_ends_those_that_wait_and_those_that_run(
    below: Below, batched: BatchedDeployment
) -> None:
    callers = submit(batched, 1, 2)
    batched.close()
    for caller in callers:
        with pytest.raises(RequestCancelledError):
            caller.future.result(PATIENCE_S)
    with pytest.raises(RequestCancelledError):
        submit(batched, 3)


@pytest.fixture(scope="module", params=KINDS)
def executor(request: pytest.FixtureRequest) -> Iterator[InProcessExecutor]:
    with executor_on(request.param, devices={"TOY": 2}, plugins=(ToyPlugin,)) as executor:
        yield executor


def test_many_threads_each_get_their_own_rows(executor: InProcessExecutor) -> None:
    plan, sources = chain("TOY.0", "TOY.1")
    deployment = executor.deploy(plan, sources)
    batched = BatchedDeployment(deployment, Batching(8, 0.001, busy=2), Limits())
    numbers = itertools.count(1)

    def call(_: int) -> bool:
        rows = np.arange(1, 1 + next(numbers) % 3 + 1, dtype=np.float32) * next(numbers)
        request = Request(inline=True)
        got = batched.submit({"x": rows}, request).future.result(PATIENCE_S).outputs
        alone = deployment.submit({"x": rows}).future.result(PATIENCE_S).outputs
        return all(np.array_equal(got[name], alone[name]) for name in alone)

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(call, range(300)))
    batched.close()


def test_all_callers_of_many_queued_batches_hear_of_a_lost_cluster(below: Below) -> None:
    batched = BatchedDeployment(
        cast(Any, below), Batching(1, PATIENCE_S, busy=1, most=1), Limits(requests=1000)
    )
    waiting = submit(batched, *range(500))
    below.refusal = ClusterError("the cluster is gone")
    below.fail(0, ClusterError("the cluster is gone"))
    for submission in waiting:
        with pytest.raises(ClusterError):
            submission.future.result(PATIENCE_S)
    batched.close()
