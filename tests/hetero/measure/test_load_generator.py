"""The load generator: number of requests in flight, end of the load, failures."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from hetero.devices.request.response import Response
from hetero.measure.load_generator import keep_in_flight

RESPONSE = Response({}, ())


def test_requests_in_flight_are_limited_and_awaited():
    waiting: list[Future[Response]] = []
    max_in_flight, calls = [0], []

    def submit() -> Future[Response]:
        future: Future[Response] = Future()
        waiting.append(future)
        max_in_flight[0] = max(max_in_flight[0], len(waiting))
        if len(waiting) == 3:  # the pipeline is full, so the oldest request ends
            pool.submit(waiting.pop(0).set_result, RESPONSE)
        return future

    def keep_sending(num_sent: int) -> bool:
        if num_sent == 10:
            for future in waiting:
                pool.submit(future.set_result, RESPONSE)
        return num_sent < 10

    def on_response(started_s: float, ended_s: float, response: Response) -> None:
        calls.append((started_s <= ended_s, response))

    with ThreadPoolExecutor(1) as pool:
        keep_in_flight(submit, 3, keep_sending, on_response)
    assert max_in_flight == [3]
    assert calls == [(True, RESPONSE)] * 10


@pytest.mark.parametrize("jobs", [1, 4])
def test_first_failed_request_ends_the_load(jobs):
    num_sent: list[int] = []

    def submit() -> Future[Response]:
        future: Future[Response] = Future()
        num_sent.append(len(num_sent))
        if len(num_sent) == 5:
            future.set_exception(ZeroDivisionError("the fifth"))
        else:
            future.set_result(RESPONSE)
        return future

    with pytest.raises(ZeroDivisionError, match="the fifth"):
        keep_in_flight(submit, jobs, lambda num_sent: True, lambda *calls: None)
    assert len(num_sent) == 5


def test_error_in_the_callback_is_raised():
    def on_response(*calls: Any) -> None:
        raise LookupError("by hand")

    def submit() -> Future[Response]:
        future: Future[Response] = Future()
        future.set_result(RESPONSE)
        return future

    with pytest.raises(LookupError, match="by hand"):
        keep_in_flight(submit, 2, lambda num_sent: True, on_response)
