"""An observer for scheduler tests."""

from __future__ import annotations

from hetero.devices.request.response import StageTiming
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest


class Notes:
    """Observer that records ended requests."""

    def __init__(self) -> None:
        self.requests: list[ObservedRequest] = []
        self.ran_stages: list[tuple[StageTiming, ...]] = []

    def ended(self, request: ObservedRequest) -> None:
        self.requests.append(request)

    def ran(self, request: ObservedRequest) -> None:
        self.ran_stages.append(request.runs)

    def device(self, event: DeviceEvent) -> None:
        """Ignore events of devices."""
