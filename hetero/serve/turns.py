"""Requests that wait for room without a thread each: of greater priority first, bounded, timed."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from contextlib import suppress
from typing import Final

from devices.errors import DeadlineError, OverloadedError
from devices.request.answer import Answer
from hetero.serve.inference import Inference

#: Seconds after which it is looked again whether there is room, where others' requests take it.
_LOOK_S: Final = 0.02


class Turns:
    """Runs the requests of one model on one event loop; `most` of them may wait for room."""

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._waiting: list[tuple[int, int, Inference, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, inference: Inference) -> None:
        """Submit a request, unless it has to wait for room, or for others that do."""
        if not self._waiting:
            _submit(inference)

    async def end(self, inference: Inference) -> Answer:
        """Return the answer of a request that was begun; whoever cancels this cancels it."""
        try:
            if inference.submission is None:
                await self._wait_for_turn(inference)
            assert inference.submission is not None
            made = inference.submission.future
            if not made.done():
                loop, answered = asyncio.get_running_loop(), asyncio.Event()

                def wake(_: object) -> None:
                    with suppress(RuntimeError):  # the loop has ended, and with it who waited
                        loop.call_soon_threadsafe(answered.set)

                made.add_done_callback(wake)
                await answered.wait()
        except asyncio.CancelledError:
            if inference.submission is not None:
                inference.submission.cancel()
            raise
        self._look()
        return made.result()

    async def _wait_for_turn(self, inference: Inference) -> None:
        request = inference.request
        if len(self._waiting) >= self._most:
            raise OverloadedError(
                f"model {self._name!r}: {len(self._waiting)} requests wait for room already. "
                "Send fewer at once, or raise MAX_REQUESTS_WAITING."
            )
        turn = asyncio.get_running_loop().create_future()
        place = (-request.priority, next(self._numbers), inference, turn)
        heapq.heappush(self._waiting, place)
        self._look()
        try:
            await asyncio.wait_for(turn, request.timeout_s)
        except TimeoutError as error:
            raise DeadlineError(
                f"model {self._name!r}: no room within {request.timeout_s} s.",
                timeout_s=request.timeout_s,
            ) from error
        finally:
            if place in self._waiting:  # it has gone
                self._waiting.remove(place)
                heapq.heapify(self._waiting)

    def _look(self) -> None:
        """Submit those that wait, as far as there is room."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            _, _, inference, turn = self._waiting[0]
            if not turn.done():
                try:
                    _submit(inference)
                except Exception as error:
                    turn.set_exception(error)
                else:
                    if inference.submission is None:
                        self._timer = turn.get_loop().call_later(_LOOK_S, self._look)
                        return
                    turn.set_result(None)
            heapq.heappop(self._waiting)


def _submit(inference: Inference) -> None:
    with suppress(OverloadedError):
        inference.submission = inference.model.submit(inference.values, inference.request)
