"""A promise: what waits for it, and who hears of it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from hetero.devices.request.promise import Promise

PATIENCE_S = 60.0


def test_it_gives_its_value_to_who_waits_and_calls_back_each_once() -> None:
    promise: Promise[int] = Promise()
    told: list[str] = []
    promise.add_done_callback(lambda made: told.append(f"before {made.result()}"))
    with pytest.raises(TimeoutError):
        promise.result(0.0)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(promise.result, PATIENCE_S)
        assert not promise.done()
        promise.set_result(7)
        assert waiting.result(PATIENCE_S) == promise.result() == 7
    promise.add_done_callback(lambda made: told.append(f"after {made.result()}"))
    assert told == ["before 7", "after 7"]
    assert promise.exception() is None


def test_its_error_is_raised_in_the_values_place() -> None:
    promise: Promise[int] = Promise()
    promise.set_exception(KeyError("x"))
    assert isinstance(promise.exception(), KeyError)
    with pytest.raises(KeyError):
        promise.result()


def test_who_adds_a_callback_while_it_ends_hears_of_it_once() -> None:
    for _ in range(200):
        promise: Promise[int] = Promise()
        both, told = threading.Barrier(2), []

        def end(promise: Promise[int] = promise, both: threading.Barrier = both) -> None:
            both.wait(PATIENCE_S)
            promise.set_result(1)

        thread = threading.Thread(target=end)
        thread.start()
        both.wait(PATIENCE_S)
        for _ in range(5):
            promise.add_done_callback(told.append)
        thread.join(PATIENCE_S)
        assert told == [promise] * 5
