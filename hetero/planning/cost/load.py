"""Measuring devices with many requests in flight: one at work, and all of them as in a pipeline."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Final

from devices.errors import HeteroError
from devices.plugin.program import Value
from hetero.planning.cost.calibration import Round
from hetero.planning.cost.kinds import Kind
from hetero.planning.cost.timing import deployed, look, saturate
from scheduler.executor import Deployment, Executor

#: Requests in flight on each device.
JOBS: Final = 3
#: Runs of the slowest part that a look must have room for, and those that it needs.
LEAST_RUNS: Final = 4
RUNS: Final = 10
#: Seconds of a look at most, if these are enough runs.
MOST_S: Final = 0.5


class BusyDevices:
    """The largest part of each device on it, all at once, deployed until `close`.

    `devices`: all of them, as they share their nodes' cores.
    """

    def __init__(
        self, executor: Executor, configs: Mapping[str, Mapping[str, Any]], devices: Collection[str]
    ) -> None:
        self._executor = executor
        self._configs = configs
        self._devices = devices
        self._stack = ExitStack()
        self._running: list[tuple[Kind, tuple[Deployment, Mapping[str, Value]]]] = []

    def add(self, kind: Kind, inputs: Mapping[str, Value]) -> None:
        """Deploy a kind's largest part on each of its devices."""
        part = kind.parts[0]
        for device in kind.devices:
            affinity = dict.fromkeys(part.node_names, device.name)
            configs = {device.name: self._configs.get(device.name, {})}
            one = deployed(self._executor, part, affinity, configs, self._devices)
            self._running.append((kind, (self._stack.enter_context(one), inputs)))

    def measure(self, seconds: float) -> None:
        """Keep all of them busy, for so long at most; where that is too short, not at all.

        Each kind works one request at a time, then with many, and then all devices do. A device
        that fails ends measuring.
        """
        slowest_s = max((kind.alone_s[0] for kind, _ in self._running), default=0.0)
        first = {kind.name: one for kind, one in reversed(self._running)}
        each_s = seconds / (1 + 2 * len(first))
        if not self._running or each_s < LEAST_RUNS * slowest_s:
            return
        each_s = min(each_s, max(MOST_S, RUNS * slowest_s))
        quiet_s: dict[str, float] = {}
        try:
            for kind, one in self._running:
                if one is first[kind.name]:
                    found = look(*one, time.monotonic() + each_s)
                    kind.quiet.append(found)
                    quiet_s[kind.name] = found.run_s
                    (full,) = saturate([one], JOBS, each_s)
                    kind.alone.append(Round(found.run_s, sum(full.runs_s), full.period_s))
            every = saturate([one for _, one in self._running], JOBS, each_s)
            for (kind, _), full in zip(self._running, every, strict=True):
                kind.company.append(Round(quiet_s[kind.name], sum(full.runs_s), full.period_s))
        except HeteroError:
            self.close()

    def close(self) -> None:
        """Give the devices back."""
        self._running = []
        self._stack.close()
