"""Profile requests, and their devices in groups: identical devices are measured once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.support import Support
from hetero.planning.cost.calibration import LoadRound
from hetero.planning.cost.costs import DeviceIdentity, Time
from hetero.planning.cost.timing import LatencyMeasurement
from hetero.scheduler.executor import Executor
from hetero.scheduler.types.device_descriptor import DeviceDescriptor

#: Properties that do not affect run times, or that an identity contains elsewhere.
_IGNORED_PROPERTIES: Final = frozenset(
    ("INFERENCE_NUM_THREADS", "PERF_COUNT", "LOG_LEVEL", "CACHE_DIR", "DEVICE_ID", "ENABLE_MMAP")
)


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """A model to profile, with its inputs, devices and time limit."""

    executor: Executor
    model: Model
    inputs: Mapping[str, Value]
    devices: tuple[DeviceDescriptor, ...]
    #: Device name -> properties.
    configs: Mapping[str, Mapping[str, Any]]
    #: Device name -> its support of the whole model.
    supports: Mapping[str, Support]
    #: Time limit. Costs that are not measured by then are estimated; only the largest part of each
    #: device group is measured regardless of the limit.
    seconds: float


@dataclass(slots=True)
class DeviceGroup:
    """Identical devices, with their measurements so far."""

    identity: DeviceIdentity
    devices: list[DeviceDescriptor]
    parts: list[Model] = field(default_factory=list)
    nodes: dict[str, Time] = field(default_factory=dict)
    fused_groups: list[tuple[str, ...]] = field(default_factory=list)
    #: Run times of the largest part without load.
    run_times_s: list[float] = field(default_factory=list)
    #: Measurements of the largest part: one request at a time; many requests; many requests while
    #: all other devices work.
    latencies: list[LatencyMeasurement] = field(default_factory=list)
    single_rounds: list[LoadRound] = field(default_factory=list)
    concurrent_rounds: list[LoadRound] = field(default_factory=list)
    #: Measurements disturbed by other processes; see `DeviceCosts.disturbed_measurements`.
    disturbed: set[str] = field(default_factory=set)
    error: str | None = None

    @property
    def name(self) -> str:
        """The name of the measured device."""
        return self.devices[0].name


def identify_device(device: DeviceDescriptor, config: Mapping[str, Any]) -> DeviceIdentity:
    """Return the identity of a device; devices of equal identity have equal costs."""
    threads = int(config.get("INFERENCE_NUM_THREADS", 0) or 0) or device.num_threads
    relevant = {k: v for k, v in config.items() if k not in _IGNORED_PROPERTIES}
    return DeviceIdentity(
        device.plugin,
        device.version,
        device.fingerprint,
        device.node,
        threads,
        tuple(sorted((k, str(v)) for k, v in relevant.items())),
    )


def group_devices(request: ProfileRequest) -> list[DeviceGroup]:
    """Group the devices of a request by identity and supported nodes.

    Devices in a group share their costs, so the planner can exchange them.
    """
    groups: dict[tuple[DeviceIdentity, frozenset[str]], DeviceGroup] = {}
    for device in request.devices:
        identity = identify_device(device, request.configs.get(device.name, {}))
        supported = frozenset(request.supports[device.name])
        groups.setdefault((identity, supported), DeviceGroup(identity, [])).devices.append(device)
    return list(groups.values())
