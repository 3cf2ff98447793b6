"""The load: what waits and what runs now, of an executor's deployments and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class DeviceLoad:
    """A device that is used.

    `status`: what `DeviceLoop.status` last said; empty before it said anything.
    `silent_s`: seconds since it was heard; None for a device of this process.
    """

    node: str
    status: Mapping[str, float]
    silent_s: float | None = None


@dataclass(frozen=True, slots=True)
class DeploymentLoad:
    """A deployment that is open: requests that wait for admission, and those that are in flight."""

    model: str
    num_waiting: int
    num_in_flight: int


@dataclass(frozen=True, slots=True)
class Load:
    """What waits and what runs.

    `nbytes_in_flight`: bytes that the requests in flight are counted for.
    """

    deployments: tuple[DeploymentLoad, ...] = ()
    devices: Mapping[str, DeviceLoad] = field(default_factory=dict)
    nbytes_in_flight: int = 0
