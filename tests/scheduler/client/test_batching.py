"""Batching: each request is in one batch, in order, without unnecessary waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hetero.scheduler.client.batching import Batcher
from hetero.scheduler.types.events import Submitted
from hetero.scheduler.types.limits import Batching
from hetero.scheduler.types.request_record import RequestRecord
from tests.simulation.batches import next_due_s


class Batches:
    """Batcher whose requests have numbers as names, and whose batches end in order."""

    def __init__(self, size: int, timeout_s: float, busy: int, most: int) -> None:
        self.batcher = Batcher(Batching(size, timeout_s, busy, most))
        self._records: dict[int, RequestRecord] = {}
        self._in_flight: list[list[RequestRecord]] = []

    @property
    def next_due_s(self) -> float | None:
        return next_due_s(self.batcher)

    def put(self, number: int, group: Hashable, rows: int, now_s: float) -> None:
        submitted = Submitted(now_s, number, 0, 1e9, group=group, rows=rows)
        self._records[number] = RequestRecord(submitted, number, 1e9)
        self.batcher.enqueue(self._records[number], now_s)

    def leave(self, number: int) -> None:
        self.batcher.remove(self._records[number])

    def fired(self, now_s: float = 0.0) -> list[tuple[int, ...]]:
        batches = []
        while requests := self.batcher.take_batch(now_s):
            self.batcher.begin(requests)
            batches.append(requests)
        self._in_flight += batches
        return [tuple(request.id for request in requests) for requests in batches]

    def ended(self, which: int = 0) -> None:
        *others, last = self._in_flight.pop(which)
        assert not any(self.batcher.withdraw(request) for request in others)
        assert self.batcher.withdraw(last)


def batcher(size: int = 4, timeout_s: float = 1.0, busy: int = 1, most: int = 8) -> Batches:
    return Batches(size, timeout_s, busy, most)


def arrive(
    b: Batches, *ids: int, now_s: float = 0.0, rows: int = 1, group: str = "g"
) -> list[tuple[int, ...]]:
    batches: list[tuple[int, ...]] = []
    for i in ids:
        b.put(i, group, rows, now_s)
        batches += b.fired(now_s)
    return batches


def end(b: Batches, now_s: float = 0.0) -> list[tuple[int, ...]]:
    b.ended()
    return b.fired(now_s)


def test_idle_pipeline_receives_first_request_at_once():
    assert arrive(batcher(), 1) == [(1,)]


def test_requests_gather_while_a_batch_runs():
    b = batcher()
    assert arrive(b, 1, 2, 3) == [(1,)]
    assert end(b, 0.1) == [(2, 3)]


def test_full_batch_starts_on_a_busy_pipeline():
    b = batcher()
    assert arrive(b, 1, 2, 3, 4, 5, 6) == [(1,), (2, 3, 4, 5)]


def test_pipeline_of_several_stages_accepts_a_second_batch():
    assert arrive(batcher(busy=2), 1, 2, 3) == [(1,), (2,)]


def test_oldest_request_waits_the_timeout_at_most():
    b = batcher()
    arrive(b, 1)
    arrive(b, 2, now_s=0.5)
    arrive(b, 3, now_s=0.9)
    assert b.next_due_s == 1.5
    assert b.fired(1.4) == []
    assert b.fired(1.5) == [(2, 3)]
    assert b.next_due_s is None


def test_zero_timeout_joins_no_requests():
    assert arrive(batcher(timeout_s=0.0), 1, 2, 3) == [(1,), (2,), (3,)]


def test_batch_exceeds_its_size_for_one_request_only():
    b = batcher(size=4)
    arrive(b, 1)
    assert arrive(b, 2, rows=3) == []
    assert arrive(b, 3, rows=2) == [(2,)]
    assert arrive(b, 4, rows=9) == [(3,), (4,)]


def test_groups_are_separate_and_the_oldest_starts_first():
    b = batcher()
    arrive(b, 1)
    for request_id, group in ((2, "g"), (3, "h"), (4, "g")):
        assert arrive(b, request_id, group=group) == []
    assert end(b) == [(2, 4)]
    assert end(b) == [(3,)]


def test_cancelled_request_is_in_no_batch():
    b = batcher()
    arrive(b, 1, 2, 3)
    b.leave(2)
    b.leave(2)
    assert end(b) == [(3,)]


def test_batches_in_flight_are_limited():
    b = batcher(size=1, most=2)
    assert arrive(b, 1, 2, 3) == [(1,), (2,)]
    assert b.fired(9.0) == []
    assert b.next_due_s is None
    assert end(b, 9.0) == [(3,)]


def test_request_without_a_group_runs_alone():
    b = batcher()
    arrive(b, 1)
    for request_id in (2, 3):
        b.put(request_id, None, 1, 0.0)
    assert (b.fired(), end(b), end(b)) == ([], [(2,)], [(3,)])


Step = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 5), st.just(0)),
)


@given(st.lists(Step, max_size=60), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2))
def test_every_request_is_in_one_timely_batch(steps, size, busy, more):
    timeout_s, now_s = 2.0, 0.0
    b = batcher(size, timeout_s, busy, busy + more)
    arrived: dict[int, tuple[int, int, float]] = {}
    left: set[int] = set()
    batches: list[tuple[int, ...]] = []
    num_ended = 0

    def look() -> None:
        batches.extend(b.fired(now_s))
        inside = {i for ids in batches for i in ids}
        waiting = {i: v for i, v in arrived.items() if i not in inside | left}
        num_in_flight = len(batches) - num_ended
        assert len(b.batcher.in_flight) == num_in_flight <= busy + more
        if not waiting:
            return
        assert num_in_flight >= busy  # an idle pipeline starts it at once
        if num_in_flight < busy + more:
            assert all(now_s < at_s + timeout_s for _, _, at_s in waiting.values())
            rows = Counter[int]()
            for group, count, _ in waiting.values():
                rows[group] += count
            assert all(count < size for count in rows.values())
            assert b.next_due_s == min(at_s for *_, at_s in waiting.values()) + timeout_s

    for what, number, rows in steps:
        if what == "arrive":
            request_id = len(arrived)
            arrived[request_id] = (number, rows, now_s)
            b.put(request_id, number, rows, now_s)
        elif what == "leave" and number in arrived:
            if not any(number in ids for ids in batches):
                left.add(number)
            b.leave(number)
        elif what == "end" and (running := len(b.batcher.in_flight)):
            num_ended += 1
            b.ended(number % running)
        elif what == "wait":
            now_s += number / 2
        look()
    while b.batcher.in_flight:
        num_ended += 1
        b.ended()
        look()

    ran = [i for ids in batches for i in ids]
    assert sorted(ran) == sorted(set(arrived) - left)
    for group in range(3):
        mine = [i for i in ran if arrived[i][0] == group]
        assert mine == sorted(mine)
    for batch in batches:
        assert len({arrived[i][0] for i in batch}) == 1
        rows_of = [arrived[i][1] for i in batch]
        assert len(rows_of) == 1 or sum(rows_of) <= size


@pytest.mark.parametrize("cancelled_number", [0, 1])
def test_due_time_is_that_of_the_oldest_waiting_request(cancelled_number):
    b = batcher()
    arrive(b, 1)
    arrive(b, 2, now_s=0.25)
    arrive(b, 3, now_s=0.5)
    b.leave(2 + cancelled_number)
    assert b.next_due_s == (1.5, 1.25)[cancelled_number]
