"""Requests that wait for room without a thread each: of greater priority first, bounded, timed."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from contextlib import suppress
from typing import Final

from devices.errors import DeadlineError, OverloadedError
from devices.request.answer import Answer
from hetero.serve.inference import Inference
from scheduler.executor import Submission

#: Seconds after which a request that waits looks again, where others' requests take the room.
_LOOK_S: Final = 0.02


class Turns:
    """Runs the requests of one model on one event loop; `most` of them may wait for room."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    def begin(self, inference: Inference) -> None:
        """Submit a request, unless it has to wait for room, or for others that do."""
        if not self._waiting:
            _submit(inference)

    async def end(self, inference: Inference) -> Answer:
        """Return the answer of a request that was begun; whoever cancels this cancels it."""
        submission = inference.submission or await self._wait_for_turn(inference)
        made = submission.future
        if not made.done():
            loop, answered = asyncio.get_running_loop(), asyncio.Event()

            def wake(_: object) -> None:
                with suppress(RuntimeError):  # the loop has ended, and with it who waited
                    loop.call_soon_threadsafe(answered.set)

            made.add_done_callback(wake)
            try:
                await answered.wait()
            except asyncio.CancelledError:
                submission.cancel()
                raise
        self._wake_next()
        return made.result()

    async def _wait_for_turn(self, inference: Inference) -> Submission:
        began_s, request = time.monotonic(), inference.request
        if len(self._waiting) >= self._most:
            raise OverloadedError(
                f"model {self._name!r}: {len(self._waiting)} requests wait for room already. "
                "Send fewer at once, or raise MAX_REQUESTS_WAITING."
            )
        turn = asyncio.Event()
        place = (-request.priority, next(self._numbers), turn)
        heapq.heappush(self._waiting, place)
        try:
            while True:
                left_s = _LOOK_S
                if request.timeout_s is not None:
                    left_s = min(left_s, began_s + request.timeout_s - time.monotonic())
                    if left_s <= 0:
                        raise DeadlineError(
                            f"model {self._name!r}: no room within {request.timeout_s} s.",
                            timeout_s=request.timeout_s,
                        )
                with suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), left_s)
                turn.clear()
                if self._waiting[0] is place and (made := _submit(inference)):
                    return made
        finally:
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting:
            self._waiting[0][2].set()


def _submit(inference: Inference) -> Submission | None:
    with suppress(OverloadedError):
        inference.submission = inference.model.submit(inference.values, inference.request)
    return inference.submission
