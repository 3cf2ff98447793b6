"""What is profiled, and its devices by kind: alike ones are measured once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.support import Support
from hetero.planning.cost.calibration import Round
from hetero.planning.cost.costs import DeviceIdentity, Time
from hetero.planning.cost.timing import Look
from hetero.scheduler.executor import Executor
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

#: Properties that do not change times, or that an identity has elsewhere.
_TIMELESS: Final = frozenset(
    ("INFERENCE_NUM_THREADS", "PERF_COUNT", "LOG_LEVEL", "CACHE_DIR", "DEVICE_ID", "ENABLE_MMAP")
)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is profiled."""

    executor: Executor
    model: Model
    inputs: Mapping[str, Value]
    devices: tuple[DeviceDescriptor, ...]
    #: Device name -> its properties.
    configs: Mapping[str, Mapping[str, Any]]
    #: Device name -> its answer about the whole model.
    supports: Mapping[str, Support]
    #: The most time to spend. What is not measured by then is estimated; only the largest part of
    #: each kind of device is run in any case.
    seconds: float


@dataclass(slots=True)
class Kind:
    """Devices that are alike, and what is known of them so far."""

    identity: DeviceIdentity
    devices: list[DeviceDescriptor]
    parts: list[Model] = field(default_factory=list)
    nodes: dict[str, Time] = field(default_factory=dict)
    fused: list[tuple[str, ...]] = field(default_factory=list)
    #: Seconds of the largest part alone, each time that it was measured.
    alone_s: list[float] = field(default_factory=list)
    #: Its requests, each time that they were looked at: one at a time; many; many, with all other
    #: devices at work.
    quiet: list[Look] = field(default_factory=list)
    alone: list[Round] = field(default_factory=list)
    company: list[Round] = field(default_factory=list)
    #: What other work spoiled.
    spoiled: set[str] = field(default_factory=set)
    error: str | None = None

    @property
    def name(self) -> str:
        """The device that stands for all."""
        return self.devices[0].name


def identify(device: DeviceDescriptor, config: Mapping[str, Any]) -> DeviceIdentity:
    """Return what makes measurements of one device hold for another."""
    threads = int(config.get("INFERENCE_NUM_THREADS", 0) or 0) or device.num_threads
    rest = {k: v for k, v in config.items() if k not in _TIMELESS}
    return DeviceIdentity(
        device.plugin,
        device.version,
        device.fingerprint,
        device.node,
        threads,
        tuple(sorted((k, str(v)) for k, v in rest.items())),
    )


def kinds_of(subject: Subject) -> list[Kind]:
    """Return the devices by what they are, how they are set and what they support.

    Alike devices have one figure: to the planner they are then interchangeable.
    """
    kinds: dict[tuple[DeviceIdentity, frozenset[str]], Kind] = {}
    for device in subject.devices:
        identity = identify(device, subject.configs.get(device.name, {}))
        supported = frozenset(subject.supports[device.name])
        kinds.setdefault((identity, supported), Kind(identity, [])).devices.append(device)
    return list(kinds.values())
