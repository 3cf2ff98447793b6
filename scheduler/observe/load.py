"""Present load of an executor's deployments and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """Load of a device in use.

    `status`: the last reported `DeviceLoop.status`; empty before the first report.
    `silent_s`: seconds since the last heartbeat; None for a device of this process.
    """

    node: str
    status: Mapping[str, float]
    silent_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeploymentLoad:
    """Load of an open deployment: requests that wait for admission, and requests in flight."""

    model: str
    num_waiting: int
    num_in_flight: int


@dataclass(frozen=True, slots=True)
class Load:
    """Load of all deployments and devices.

    `nbytes_in_flight`: bytes that admission counts for the requests in flight.
    """

    deployments: tuple[DeploymentLoad, ...] = ()
    devices: Mapping[str, DeviceLoad] = field(default_factory=dict)
    nbytes_in_flight: int = 0
