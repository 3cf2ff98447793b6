"""Requests that wait for room: the first in line goes first, and many cost no more than few."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from devices.errors import OverloadedError
from devices.request.request import Request
from hetero.serve.turns import Turns

COUNT = 500


def test_many_wait_in_line() -> None:
    has_room, begun, looks = False, [], []

    def submit(number: int, _: object) -> Any:
        if not has_room:
            raise OverloadedError("there is no room.")
        begun.append(number)
        made: Future[int] = Future()
        made.set_result(number)
        return SimpleNamespace(future=made)

    async def run() -> list[Any]:
        nonlocal has_room
        loop, turns, model = asyncio.get_running_loop(), Turns("it", COUNT), {"submit": submit}
        tasks = []
        for number in range(COUNT):
            request = Request(priority=number % 2)
            inference: Any = SimpleNamespace(
                model=SimpleNamespace(**model), values=number, request=request, submission=None
            )
            turns.begin(inference)
            tasks.append(loop.create_task(turns.end(inference)))
        await asyncio.sleep(0)
        later = loop.call_later
        loop.call_later = lambda *given: looks.append(given) or later(*given)  # type: ignore[assignment,method-assign]
        await asyncio.sleep(0.2)
        has_room = True
        return await asyncio.gather(*tasks)

    assert asyncio.run(run()) == [*range(COUNT)]
    assert begun == [*range(1, COUNT, 2), *range(0, COUNT, 2)]
    assert len(looks) < COUNT
