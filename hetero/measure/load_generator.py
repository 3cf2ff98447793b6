"""Requests kept in flight: what fills a pipeline in order to measure it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from hetero.devices.plugin.one_shot_event import WAIT_SLICE_S
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.response import Response


def keep_in_flight(
    submit: Callable[[], FutureLike[Response]],
    jobs: int,
    more: Callable[[int], bool],
    answered: Callable[[float, float, Response], None],
) -> None:
    """Send requests, `jobs` at a time, as long as more are wanted; wait for all of them.

    `more`: whether another one follows those sent so far.
    `answered`: called for each answer, from any thread, with when its request was sent and it came.
    Raises BaseException: what the first request that failed ended with; no other was sent after it.
    """
    free = threading.Semaphore(jobs)
    errors: list[BaseException] = []

    def wait_for_one() -> None:
        while not free.acquire(timeout=WAIT_SLICE_S):
            pass

    def finished(began_s: float, answer: FutureLike[Response]) -> None:
        ended_s = time.monotonic()
        try:
            answered(began_s, ended_s, answer.result())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            free.release()

    sent = 0
    while more(sent):
        wait_for_one()
        if errors:
            free.release()
            break
        began_s = time.monotonic()
        submit().add_done_callback(partial(finished, began_s))
        sent += 1
    for _ in range(jobs):
        wait_for_one()
    if errors:
        raise errors[0]
