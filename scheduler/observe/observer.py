"""Observers: who is told of every request that ends and every device that goes or comes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from hetero.devices.request.response import StageTiming
from hetero.scheduler.vocabulary.events import DeviceLost, DeviceRemoved, DeviceReturned
from hetero.scheduler.vocabulary.placement import Route
from hetero.scheduler.vocabulary.record import RequestRecord

#: What became of a device.
DeviceEvent = DeviceLost | DeviceRemoved | DeviceReturned


class ObservedRequest(NamedTuple):
    """A request that has ended, however, or is on its way.

    `route`: the way of its last attempt, with the plan that it ran.
    `runs`: how the stages of its answer went; empty where there is none. Requests that were joined
        have the same ones.
    """

    deployment: str
    route: Route
    record: RequestRecord
    runs: tuple[StageTiming, ...]


class Observer(Protocol):
    """Someone who looks on; must return quickly, and may be called in any thread."""

    def ended(self, request: ObservedRequest) -> None:
        """Take note of a request that has ended."""

    def ran(self, request: ObservedRequest) -> None:
        """Take note of the stages that ran for a request, or once for all that were joined."""

    def device(self, event: DeviceEvent) -> None:
        """Take note of what became of a device."""
