"""Requests kept in flight: how many at once, until when, and what becomes of a failure."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from hetero.devices.request.response import Response
from hetero.measure.load_generator import keep_in_flight

ANSWER = Response({}, ())


def test_number_in_flight_is_limited_and_all_are_awaited() -> None:
    waiting: list[Future[Response]] = []
    most, told = [0], []

    def submit() -> Future[Response]:
        future: Future[Response] = Future()
        waiting.append(future)
        most[0] = max(most[0], len(waiting))
        if len(waiting) == 3:  # the pipeline is full: the oldest is done
            pool.submit(waiting.pop(0).set_result, ANSWER)
        return future

    def more(sent: int) -> bool:
        if sent == 10:
            for future in waiting:
                pool.submit(future.set_result, ANSWER)
        return sent < 10

    def answered(began_s: float, ended_s: float, answer: Response) -> None:
        told.append((began_s <= ended_s, answer))

    with ThreadPoolExecutor(1) as pool:
        keep_in_flight(submit, 3, more, answered)
    assert most == [3]
    assert told == [(True, ANSWER)] * 10


@pytest.mark.parametrize("jobs", [1, 4])
def test_first_failed_request_ends_the_load(jobs: int) -> None:
    sent: list[int] = []

    def submit() -> Future[Response]:
        future: Future[Response] = Future()
        sent.append(len(sent))
        if len(sent) == 5:
            future.set_exception(ZeroDivisionError("the fifth"))
        else:
            future.set_result(ANSWER)
        return future

    with pytest.raises(ZeroDivisionError, match="the fifth"):
        keep_in_flight(submit, jobs, lambda sent: True, lambda *told: None)
    assert len(sent) == 5


def test_error_in_the_callback_is_raised() -> None:
    def answered(*told: Any) -> None:
        raise LookupError("by hand")

    def submit() -> Future[Response]:
        future: Future[Response] = Future()
        future.set_result(ANSWER)
        return future

    with pytest.raises(LookupError, match="by hand"):
        keep_in_flight(submit, 2, lambda sent: True, answered)
