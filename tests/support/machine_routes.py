"""Routes and results for tests of the client's state machine."""

from __future__ import annotations

from typing import Any

from hetero.devices.request.response import StageTiming
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.plan import Plan, Stage


def route(*devices: str, share: float = 1.0) -> Route:
    """Return a route with a stage on each device."""
    stages = tuple(Stage(i, device, (), (), ()) for i, device in enumerate(devices))
    return Route(Plan("m", (), (), stages), tuple(range(len(stages))), share)


def answered(
    now_s: float, request_id: int, attempt: int, answer: Any, nbytes: int = 0
) -> ev.PartArrived:
    """Return the event of a complete result."""
    return ev.PartArrived(now_s, request_id, attempt, {"y": answer}, RUNS, nbytes)


#: Stage timings of every result.
RUNS = tuple(StageTiming(i, "A") for i in range(5))
