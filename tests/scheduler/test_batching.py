"""When requests are joined: each in one batch, in order, none kept waiting without need."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.client.batching import (
    BatchEnded,
    Batcher,
    Batching,
    FireBatch,
    RequestArrived,
    RequestLeft,
)
from scheduler.vocabulary.events import TimePassed


def batcher(size: int = 4, timeout_s: float = 1.0, busy: int = 1, most: int = 8) -> Batcher:
    return Batcher(Batching(size, timeout_s, busy, most))


def arrive(b: Batcher, *ids: int, now_s: float = 0.0, rows: int = 1) -> list[tuple[int, ...]]:
    fired = [f for i in ids for f in b.handle(RequestArrived(now_s, i, "g", rows))]
    return [f.request_ids for f in fired]


def test_an_idle_pipeline_gets_the_first_request_at_once() -> None:
    assert batcher().handle(RequestArrived(0.0, 1, "g", 1)) == [FireBatch(1, (1,))]


def test_requests_gather_while_a_batch_runs() -> None:
    b = batcher()
    assert arrive(b, 1, 2, 3) == [(1,)]
    assert b.handle(BatchEnded(0.1, 1)) == [FireBatch(2, (2, 3))]


def test_a_full_batch_is_fired_though_the_pipeline_is_busy() -> None:
    b = batcher()
    assert arrive(b, 1, 2, 3, 4, 5, 6) == [(1,), (2, 3, 4, 5)]


def test_a_pipeline_of_several_stages_is_not_busy_with_one_batch() -> None:
    assert arrive(batcher(busy=2), 1, 2, 3) == [(1,), (2,)]


def test_the_oldest_waits_the_timeout_at_most() -> None:
    b = batcher()
    arrive(b, 1)
    arrive(b, 2, now_s=0.5)
    arrive(b, 3, now_s=0.9)
    assert b.next_due_s == 1.5
    assert b.handle(TimePassed(1.4)) == []
    assert b.handle(TimePassed(1.5)) == [FireBatch(2, (2, 3))]
    assert b.next_due_s is None


def test_without_time_to_wait_nothing_is_joined() -> None:
    assert arrive(batcher(timeout_s=0.0), 1, 2, 3) == [(1,), (2,), (3,)]


def test_no_batch_has_more_rows_than_its_size_but_one_requests_own() -> None:
    b = batcher(size=4)
    arrive(b, 1)
    assert arrive(b, 2, rows=3) == []
    assert arrive(b, 3, rows=2) == [(2,)]
    assert arrive(b, 4, rows=9) == [(3,), (4,)]


def test_groups_are_not_mixed_and_the_oldest_goes_first() -> None:
    b = batcher()
    arrive(b, 1)
    for request_id, group in ((2, "g"), (3, "h"), (4, "g")):
        assert b.handle(RequestArrived(0.0, request_id, group, 1)) == []
    assert b.handle(BatchEnded(0.0, 1)) == [FireBatch(2, (2, 4))]
    assert b.handle(BatchEnded(0.0, 2)) == [FireBatch(3, (3,))]


def test_a_request_that_left_is_in_no_batch() -> None:
    b = batcher()
    arrive(b, 1, 2, 3)
    b.handle(RequestLeft(0.0, 2))
    b.handle(RequestLeft(0.0, 2))
    assert b.handle(BatchEnded(0.0, 1)) == [FireBatch(2, (3,))]


def test_only_so_many_batches_are_in_flight() -> None:
    b = batcher(size=1, most=2)
    assert arrive(b, 1, 2, 3) == [(1,), (2,)]
    assert b.handle(TimePassed(9.0)) == []
    assert b.next_due_s is None
    assert b.handle(BatchEnded(9.0, 1)) == [FireBatch(3, (3,))]


Step = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 2), st.integers(1, 6)),
    st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 5), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 5), st.just(0)),
)


@given(st.lists(Step, max_size=60), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2))
def test_every_request_is_in_one_batch_in_order_and_in_time(
    steps: list[tuple[str, int, int]], size: int, busy: int, more: int
) -> None:
    timeout_s, now_s = 2.0, 0.0
    b = batcher(size, timeout_s, busy, busy + more)
    arrived: dict[int, tuple[int, int, float]] = {}
    left: set[int] = set()
    batches: list[FireBatch] = []
    in_flight: list[int] = []

    def look(fired: list[FireBatch]) -> None:
        batches.extend(fired)
        in_flight.extend(f.batch for f in fired)
        inside = {i for f in batches for i in f.request_ids}
        waiting = {i: v for i, v in arrived.items() if i not in inside | left}
        assert len(in_flight) <= busy + more
        if not waiting:
            return
        assert len(in_flight) >= busy  # it is not kept from an idle pipeline
        if len(in_flight) < busy + more:
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
            look(b.handle(RequestArrived(now_s, request_id, number, rows)))
        elif what == "leave" and number in arrived:
            if not any(number in f.request_ids for f in batches):
                left.add(number)
            look(b.handle(RequestLeft(now_s, number)))
        elif what == "end" and in_flight:
            ended = in_flight.pop(number % len(in_flight))
            look(b.handle(BatchEnded(now_s, ended)))
        elif what == "wait":
            now_s += number / 2
            look(b.handle(TimePassed(now_s)))
    while in_flight:
        look(b.handle(BatchEnded(now_s, in_flight.pop(0))))

    fired = [i for f in batches for i in f.request_ids]
    assert sorted(fired) == sorted(set(arrived) - left)
    for group in range(3):
        mine = [i for i in fired if arrived[i][0] == group]
        assert mine == sorted(mine)
    for batch in batches:
        assert len({arrived[i][0] for i in batch.request_ids}) == 1
        rows_of = [arrived[i][1] for i in batch.request_ids]
        assert len(rows_of) == 1 or sum(rows_of) <= size


@pytest.mark.parametrize("gone", [0, 1])
def test_what_is_due_is_the_oldest_that_still_waits(gone: int) -> None:
    b = batcher()
    arrive(b, 1)
    arrive(b, 2, now_s=0.25)
    arrive(b, 3, now_s=0.5)
    b.handle(RequestLeft(0.5, 2 + gone))
    assert b.next_due_s == (1.5, 1.25)[gone]
