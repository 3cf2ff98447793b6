"""What is profiled, and its devices by kind: alike ones are measured once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from devices.model.model import Model
from devices.plugin.program import Value
from devices.plugin.support import Support
from hetero.planning.cost.costs import DeviceIdentity, Time, Transfer
from hetero.planning.cost.transfers import ASSUMED
from scheduler.executor import Executor
from scheduler.vocabulary.rows import DeviceDescriptor

#: Properties that do not change times, or that an identity has elsewhere.
_TIMELESS: Final = frozenset(
    ("INFERENCE_NUM_THREADS", "PERF_COUNT", "LOG_LEVEL", "CACHE_DIR", "DEVICE_ID", "ENABLE_MMAP")
)  # fmt: skip


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
    #: Time to spend. What is not measured by then is estimated; only the largest part of each kind
    #: of device is run in any case.
    seconds: float


@dataclass(slots=True)
class Kind:
    """Devices that are alike, and what is known of them so far."""

    identity: DeviceIdentity
    devices: list[DeviceDescriptor]
    parts: list[Model] = field(default_factory=list)
    nodes: dict[str, Time] = field(default_factory=dict)
    fused: list[tuple[str, ...]] = field(default_factory=list)
    #: The sum of the largest part's nodes' seconds, and its own; None where a node has no time.
    whole: tuple[float, float] | None = None
    #: Seconds that each cut of it cost, each time that it was cut.
    cuts: list[float] = field(default_factory=list)
    #: Seconds of the largest part alone, each time that it was measured.
    alone_s: list[float] = field(default_factory=list)
    #: The ways from the client and back.
    ways: tuple[Transfer, Transfer] = (ASSUMED, ASSUMED)
    #: Seconds of a subgraph with next to no work.
    least_s: float = 0.0
    error: str | None = None

    @property
    def name(self) -> str:
        """The device that stands for all."""
        return self.devices[0].name

    @property
    def sway(self) -> Time:
        """The slowest of the largest part's times by the quickest."""
        if len(self.alone_s) < 2 or min(self.alone_s) <= 0:
            return Time(1.0, "estimated")
        return Time(max(self.alone_s) / min(self.alone_s), "calibrated")

    def settle(self) -> None:
        """Scale what was measured to the median of the times that the largest part was."""
        if any(self.alone_s):
            factor = float(np.median(self.alone_s)) / self.alone_s[0]
            self.nodes = {n: Time(t.seconds * factor, t.source) for n, t in self.nodes.items()}
            self.cuts = [seconds * factor for seconds in self.cuts]
            if self.whole is not None:
                self.whole = (self.whole[0] * factor, self.whole[1] * factor)


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
    """Return the devices by what they are, how they are set and what they support."""
    kinds: dict[tuple[DeviceIdentity, frozenset[str]], Kind] = {}
    for device in subject.devices:
        identity = identify(device, subject.configs.get(device.name, {}))
        supported = frozenset(subject.supports[device.name])
        kinds.setdefault((identity, supported), Kind(identity, [])).devices.append(device)
    return list(kinds.values())
