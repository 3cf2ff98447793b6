"""Observers, which are notified of stage runs, ended requests, and changes of devices."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hetero.devices.request.response import StageTiming
from hetero.scheduler.types.events import DeviceLost, DeviceRemoved, DeviceReturned
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.request_record import RequestRecord

#: Event in the life of a device.
DeviceEvent = DeviceLost | DeviceRemoved | DeviceReturned


class ObservedRequest(NamedTuple):
    """Request that has ended or is in flight.

    `route`: the route of its last attempt, with the plan.
    `runs`: timings of the stages that produced its result; empty without a result. The requests of
        a batch share the timings.
    """

    deployment: str
    route: Route
    record: RequestRecord
    runs: tuple[StageTiming, ...]


class Observer(Protocol):
    """Receiver of notifications; its methods must return quickly and may run in any thread."""

    def ended(self, request: ObservedRequest) -> None:
        """Handle a request that has ended."""

    def ran(self, request: ObservedRequest) -> None:
        """Handle the stage runs of a request; called once for all requests of a batch."""

    def device(self, event: DeviceEvent) -> None:
        """Handle an event of a device."""
