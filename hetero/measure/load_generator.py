"""Load generator: keeps a fixed number of requests in flight to measure a full pipeline."""

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
    continues: Callable[[int], bool],
    on_response: Callable[[float, float, Response], None],
) -> None:
    """Keep `jobs` requests in flight while `continues` is true, then wait for all of them.

    `continues`: called with the number of requests so far; whether to send another one.
    `on_response`: called from any thread with the request's start, its end and the response.
    Raises the error of the first request that failed; no request is sent after it.
    """
    slots = threading.Semaphore(jobs)
    errors: list[BaseException] = []

    def acquire_slot() -> None:
        while not slots.acquire(timeout=WAIT_SLICE_S):
            pass

    def finish(start_s: float, future: FutureLike[Response]) -> None:
        end_s = time.monotonic()
        try:
            on_response(start_s, end_s, future.result())
        except BaseException as error:  # raised again in the caller's thread
            errors.append(error)
        finally:
            slots.release()

    count = 0
    while continues(count):
        acquire_slot()
        if errors:
            slots.release()
            break
        start_s = time.monotonic()
        submit().add_done_callback(partial(finish, start_s))
        count += 1
    for _ in range(jobs):
        acquire_slot()
    if errors:
        raise errors[0]
