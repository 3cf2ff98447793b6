"""Batches in the client's state machine: starts, shares of results, retries one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import DeviceLostError, InferenceError
from hetero.devices.request.response import StageTiming
from hetero.scheduler import Limits
from hetero.scheduler.client.batching import Batcher
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.limits import Batching
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.request_record import RequestRecord, RequestState
from tests.support.machine_routes import route


def machine(*routes: Route, size: int = 2, busy: int = 1, **limits: Any) -> ClientMachine:
    batching = Batching(size, 1.0, busy, 4)
    return ClientMachine(Limits(batching=batching, **limits), routes or (route("A"), route("B")))


def submit(
    m: ClientMachine, request_id: int, *, now_s: float = 0.0, rows: int = 1, group: str = "g"
) -> list[ev.ClientInstruction]:
    return m.handle(ev.Submitted(now_s, request_id, 4, 99.0, group=group, rows=rows))


def part(request_id: int, attempt: int, rows: int, now_s: float = 0.5) -> ev.PartArrived:
    timings = tuple(StageTiming(i, "A", output_nbytes=10) for i in range(2))
    return ev.PartArrived(now_s, request_id, attempt, {"y": np.arange(rows)}, timings)


def results(instructions: list[ev.ClientInstruction]) -> dict[int, Any]:
    """Return the rows or the error of each ended request."""
    return {
        i.request_id: i.outputs["y"].tolist() if isinstance(i, ev.Deliver) else i.error
        for i in instructions
        if isinstance(i, ev.Deliver | ev.Fail)
    }


def test_requests_wait_for_each_other_while_the_pipeline_is_busy():
    m = machine()
    assert submit(m, 1) == [ev.StartAttempt(1, 1, 0)]  # nothing runs, so it does not wait
    assert submit(m, 2) == [ev.Admitted(2)]
    assert submit(m, 3) == [ev.StartAttempt(2, 1, 1, (2, 3))]  # full
    assert submit(m, 4) == [ev.Admitted(4)]
    assert submit(m, 5, group="other") == [ev.Admitted(5)]
    assert m.next_deadline_s == 1.0
    assert m.handle(ev.TimePassed(0.999)) == []
    assert m.handle(ev.TimePassed(1.0)) == [ev.StartAttempt(4, 1, 0), ev.StartAttempt(5, 1, 1)]
    assert results(m.handle(part(2, 1, 2))) == {2: [0], 3: [1]}


def test_free_pipeline_takes_the_oldest_group():
    m = machine(size=4)
    submit(m, 1)
    for request_id, group in ((2, "g"), (3, "h"), (4, "g"), (5, "h")):
        assert submit(m, request_id, group=group) == [ev.Admitted(request_id)]
    assert m.handle(part(1, 1, 1))[1:] == [ev.StartAttempt(2, 1, 1, (2, 4))]
    assert m.handle(part(2, 1, 2))[2:] == [ev.StartAttempt(3, 1, 0, (3, 5))]


def test_failed_batch_is_retried_one_by_one_on_other_routes():
    m = machine()
    for request_id in (1, 2, 3):
        submit(m, request_id)  # 2 and 3 are joined, on route 1
    error = ValueError("bad input")
    assert m.handle(ev.AttemptFailed(0.5, 2, 1, error)) == [ev.DropAttempt(3, 1, 1)]
    assert [m.state(i) for i in (2, 3)] == [RequestState.JOINING] * 2
    assert m.handle(part(1, 1, 1))[1:] == [ev.StartAttempt(2, 2, 0)]
    (failed, start) = m.handle(ev.AttemptFailed(0.6, 2, 2, error))[-2:]
    assert results([failed]) == {2: error}
    assert start == ev.StartAttempt(3, 2, 0)
    assert results(m.handle(part(3, 2, 1))) == {3: [0]}
    assert m.num_in_flight == m.nbytes_in_flight == 0


def test_batch_of_a_lost_device_is_joined_again():
    m = machine()
    for request_id in (1, 2, 3):
        submit(m, request_id)
    instructions = m.handle(ev.DeviceLost(0.5, "B", "n", "killed"))
    assert instructions == [ev.DropAttempt(3, 1, 1), ev.StartAttempt(2, 2, 0, (2, 3))]
    (only,) = [m.record(1)]
    assert only is not None
    assert only.attempt == 1


def test_batch_on_the_only_route_is_tried_there_again():
    m = machine(route("A"))
    submit(m, 1)
    assert m.handle(ev.DeviceLost(0.5, "A", "n", "killed")) == [ev.DropAttempt(1, 1, 0)]
    assert m.handle(ev.DeviceReturned(0.6, "A")) == [ev.StartAttempt(1, 2, 0)]


def test_large_request_is_a_batch_by_itself():
    m = machine(size=4)
    submit(m, 1)
    submit(m, 2, rows=3)
    assert submit(m, 3, rows=2) == [ev.StartAttempt(2, 1, 1), ev.Admitted(3)]
    assert submit(m, 4, rows=9) == [ev.StartAttempt(3, 1, 0), ev.StartAttempt(4, 1, 1)]


def test_limit_in_flight_is_by_row_of_a_batch():
    m = machine(size=4, requests=2, waiting=0)
    assert [len(submit(m, i)) for i in range(8)] == [1] * 8
    (refused,) = submit(m, 8)
    assert isinstance(refused, ev.Fail)
    assert "8 of 8 requests" in str(refused.error)


@pytest.fixture
def batch():
    """Return a batcher, and its batch of three requests with 1, 2 and 1 rows."""
    batcher = Batcher(Batching(4, 1.0))
    records = [
        RequestRecord(ev.Submitted(0.0, i, 4, 9.0, group="g", rows=rows), i, 9.0, attempt=2)
        for i, rows in ((5, 1), (6, 2), (7, 1))
    ]
    batcher.begin(records)
    return batcher, records


def whole_at(num_runs: int) -> Any:
    return lambda route, runs, outputs: (route, runs, outputs) == (0, num_runs, 1)


def test_result_of_a_batch_is_split_for_waiting_requests(
    batch,
):
    batcher, records = batch
    assert not batcher.withdraw(records[0])
    shared = batcher.split_event(part(5, 2, 4), whole_at(2))
    assert shared is not None
    assert [(record.id, p.request_id, p.attempt, p.now_s) for record, p in shared] == [
        (6, 6, 2, 0.5),
        (7, 7, 2, 0.5),
    ]
    parts: list[Any] = [p for _, p in shared]
    assert [p.outputs["y"].tolist() for p in parts] == [[1, 2], [3]]
    assert [p.nbytes for p in parts] == [6, 6]  # 20 bytes of three requests
    assert [len(p.runs) for p in parts] == [2, 2]
    assert [record.is_first for record in records[1:]] == [True, False]


def test_parts_of_a_batch_are_collected(batch):
    batcher, _ = batch
    assert batcher.split_event(part(5, 2, 4), whole_at(3)) == []
    more = ev.PartArrived(0.6, 5, 2, {}, (StageTiming(2, "B", output_nbytes=4),))
    shared = batcher.split_event(more, whole_at(3))
    assert shared is not None
    parts: list[Any] = [p for _, p in shared]
    assert [(p.nbytes, [run.stage for run in p.runs]) for p in parts] == [(8, [0, 1, 2])] * 3


@pytest.mark.parametrize("fails", ["stage", "rows"])
def test_each_request_of_a_failed_batch_has_its_own_error(batch, fails):
    batcher, records = batch
    error = InferenceError("bad", stage=3, device="A", cause="x")
    event = ev.AttemptFailed(0.5, 5, 2, error) if fails == "stage" else part(5, 2, 3)
    shared = batcher.split_event(event, whole_at(2))
    assert shared is not None
    failures: list[Any] = [f for _, f in shared]
    assert [(r.id, f.request_id, f.attempt) for r, f in shared] == [(i, i, 2) for i in (5, 6, 7)]
    assert len({id(f.error) for f in failures} | {id(error)}) == 4
    assert {type(f.error) for f in failures} == {InferenceError}
    if fails == "stage":
        assert [f.error.data for f in failures] == [error.data] * 3
    assert all(batcher.may_be_of_others(record, error) for record in records)
    assert not batcher.may_be_of_others(records[0], DeviceLostError("lost"))


def test_events_of_single_or_unknown_batches_are_not_shared(
    batch,
):
    batcher, records = batch
    assert batcher.split_event(ev.CancelRequested(0.5, 5), whole_at(2)) is None
    assert batcher.split_event(part(5, 1, 4), whole_at(2)) is None  # an earlier attempt
    assert batcher.split_event(part(6, 2, 4), whole_at(2)) is None  # not the first of the batch
    alone = RequestRecord(ev.Submitted(0.0, 9, 4, 9.0), 9, 9.0, attempt=1)
    batcher.begin([alone])
    assert batcher.split_event(part(9, 1, 1), whole_at(2)) is None
    assert not batcher.may_be_of_others(alone, ValueError())
    assert batcher.withdraw(alone)
    assert batcher.withdraw(alone)  # it has no batch any more
    assert [batcher.withdraw(record) for record in records] == [False, False, True]
    assert batcher.in_flight == {}


def test_wait_for_a_batch_begins_at_admission():
    batcher = Batcher(Batching(4, 1.0))
    new, replayed = (
        RequestRecord(ev.Submitted(0.0, i, 4, 9.0, group="g"), i, 9.0, admitted_s=admitted_s)
        for i, admitted_s in ((1, None), (2, 0.5))
    )
    assert batcher.enqueue(new, 3.0) == 3.0 + 1.0
    assert batcher.enqueue(replayed, 3.0) == 0.5 + 1.0
