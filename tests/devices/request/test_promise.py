"""`Promise`: results, errors, timeouts and callbacks."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero.devices.request.promise import Promise

TIMEOUT_S = 60.0


def test_result_wakes_waiters_and_calls_each_callback_once():
    promise: Promise[int] = Promise()
    calls: list[str] = []
    promise.add_done_callback(lambda p: calls.append(f"before {p.result()}"))
    with pytest.raises(TimeoutError):
        promise.result(0.0)
    with ThreadPoolExecutor() as threads:
        waiter = threads.submit(promise.result, TIMEOUT_S)
        assert not promise.done()
        promise.set_result(7)
        assert waiter.result(TIMEOUT_S) == promise.result() == 7
    promise.add_done_callback(lambda p: calls.append(f"after {p.result()}"))
    assert calls == ["before 7", "after 7"]
    assert promise.exception() is None


def test_exception_is_raised_by_result():
    promise: Promise[int] = Promise()
    promise.set_exception(KeyError("x"))
    assert isinstance(promise.exception(), KeyError)
    with pytest.raises(KeyError):
        promise.result()


def test_callback_added_during_set_result_is_called_once():
    for _ in range(200):
        promise: Promise[int] = Promise()
        barrier, calls = threading.Barrier(2), []

        def finish(promise: Promise[int] = promise, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(TIMEOUT_S)
            promise.set_result(1)

        thread = threading.Thread(target=finish)
        thread.start()
        barrier.wait(TIMEOUT_S)
        for _ in range(5):
            promise.add_done_callback(calls.append)
        thread.join(TIMEOUT_S)
        assert calls == [promise] * 5
