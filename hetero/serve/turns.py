"""Requests that wait for room without a thread each: of greater priority first, bounded, timed."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from devices.errors import DeadlineError, OverloadedError
from devices.plugin.program import Value
from devices.request.answer import Answer
from devices.request.request import Request
from hetero.serve.served_model import ServedModel
from scheduler.executor import Submission

#: Seconds after which a request that waits looks again, where others' requests take the room.
_LOOK_S: Final = 0.02
#: Seconds of the devices up to which the loop's thread runs a request itself, and its bytes.
_QUICK_S: Final = 0.0005
_SMALL_NBYTES: Final = 65536


class Turns:
    """Runs the requests of one model on one event loop.

    `num_in_flight`: returns how many requests of the server there are, this one included.
    """

    def __init__(self, model: ServedModel, num_in_flight: Callable[[], int]) -> None:
        self._model = model
        self._num_in_flight = num_in_flight
        self._waiting: list[tuple[int, int, asyncio.Event]] = []
        self._numbers = itertools.count()

    def begin(self, values: Mapping[str, Value], request: Request) -> Submission | None:
        """Start a request; None where it has to wait for room, or for others that do."""
        if self._waiting:
            return None
        inline = self._is_quick(values, request)
        return self._submitted(values, request._replace(inline=True) if inline else request)

    async def end(
        self, begun: Submission | None, values: Mapping[str, Value], request: Request
    ) -> Answer:
        """Return the answer of a request that was begun; whoever cancels this cancels it.

        Raises OverloadedError: there is no room, and too many wait for some; HeteroError: what the
        request failed with.
        """
        submission = begun or await self._wait_for_turn(values, request)
        made = submission.future
        if not made.done():
            loop, answered = asyncio.get_running_loop(), asyncio.Event()
            made.add_done_callback(lambda _: _from_thread(loop, answered.set))
            try:
                await answered.wait()
            except asyncio.CancelledError:
                submission.cancel()
                raise
        self._wake_next()
        return made.result()

    def _is_quick(self, values: Mapping[str, Value], request: Request) -> bool:
        """Whether the loop's own thread may run a request: to hand it on would take longer.

        Only where nothing else runs, so that it waits for no device.
        """
        return (
            self._model.statistics.recent_s < _QUICK_S
            and request.timeout_s is None
            and self._num_in_flight() == 1
            and sum(getattr(value, "nbytes", _SMALL_NBYTES) for value in values.values())
            < _SMALL_NBYTES
        )

    def _submitted(self, values: Mapping[str, Value], request: Request) -> Submission | None:
        try:
            return self._model.submit(values, request)
        except OverloadedError:
            return None

    async def _wait_for_turn(self, values: Mapping[str, Value], request: Request) -> Submission:
        began_s = time.monotonic()
        if len(self._waiting) >= self._model.most_waiting:
            raise OverloadedError(
                f"model {self._model.name!r}: {len(self._waiting)} requests wait for room already. "
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
                            f"model {self._model.name!r}: no room within {request.timeout_s} s.",
                            timeout_s=request.timeout_s,
                        )
                with suppress(TimeoutError):
                    await asyncio.wait_for(turn.wait(), left_s)
                turn.clear()
                if self._waiting[0] is place and (made := self._submitted(values, request)):
                    return made
        finally:
            self._waiting.remove(place)
            heapq.heapify(self._waiting)
            self._wake_next()

    def _wake_next(self) -> None:
        if self._waiting:
            self._waiting[0][2].set()


def _from_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it who waited
        loop.call_soon_threadsafe(call)
