"""Requests and loads that observers receive."""

from __future__ import annotations

from hetero.devices.request.response import StageTiming
from hetero.scheduler.observe.load import DeploymentLoad, DeviceLoad, Load
from hetero.scheduler.observe.observer import ObservedRequest
from hetero.scheduler.types import events
from hetero.scheduler.types.placement import single_placement
from hetero.scheduler.types.request_record import RequestRecord, RequestState
from tests.scheduler.models import chain

LOAD = Load(
    (DeploymentLoad("m", 2, 3), DeploymentLoad("m", 1, 1)),
    {
        "A": DeviceLoad(
            "n1", {"tasks": 5.0, "running": 2.0, "streams": 4.0, "kept_nbytes": 7.0}, 0.25
        ),
        "B": DeviceLoad("n2", {}, 1.5),
    },
    1000,
)


def ended(
    state: RequestState,
    latency_s: float,
    *,
    model: str = "m",
    attempts: int = 1,
    runs: tuple[StageTiming, ...] = (),
) -> ObservedRequest:
    """Return a request submitted at 10 s, and admitted at 11 s if it had an attempt."""
    record = RequestRecord(events.Submitted(10.0, 1, 24, 99.0), 1, 99.0)
    record.state, record.attempt = state, attempts
    record.admitted_s = 11.0 if attempts else None
    record.ended_s = 10.0 + latency_s
    (route,) = single_placement(chain("A", "B", name=model)[0]).routes
    return ObservedRequest("deployment", route, record, runs)
