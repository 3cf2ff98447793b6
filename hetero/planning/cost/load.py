"""Measuring devices with many requests in flight: one at work, and all of them as in a pipeline."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Final

from devices.errors import HeteroError
from devices.model.model import Model
from devices.plugin.program import Value
from hetero.planning.cost.calibration import Look, Round
from hetero.planning.cost.timing import Saturation, deployed, look, saturate
from scheduler.executor import Deployment, Executor

#: Requests in flight on each device.
JOBS: Final = 3
#: Runs of the slowest part that a look must have room for, and those that it needs.
LEAST_RUNS = 4
RUNS = 10
#: Seconds of a look at most, if these are enough runs.
MOST_S: Final = 0.5


class BusyDevices:
    """Parts of a model on all devices at once, deployed until `close`.

    `configs`: device name -> its properties.
    `devices`: all of them, as they share their nodes' cores.
    """

    def __init__(
        self,
        executor: Executor,
        configs: Mapping[str, Mapping[str, Any]],
        devices: Collection[str],
    ) -> None:
        self._executor = executor
        self._configs = configs
        self._devices = devices
        self._stack = ExitStack()
        self._running: list[tuple[Deployment, Mapping[str, Value]]] = []
        self._kinds: list[str] = []
        self._slowest_s = 0.0
        #: Kind of device -> how it went, each time: one request at a time, many, and many with all
        #: other devices at work.
        self.quiet: dict[str, list[Look]] = {}
        self.alone: dict[str, list[Round]] = {}
        self.company: dict[str, list[Round]] = {}

    def add(
        self, kind: str, device: str, part: Model, inputs: Mapping[str, Value], alone_s: float
    ) -> None:
        """Deploy a part on a device.

        `kind`: what its measurements are filed under.
        `alone_s`: seconds of a run without company.
        """
        affinity = dict.fromkeys(part.node_names, device)
        configs = {device: self._configs.get(device, {})}
        one = self._stack.enter_context(
            deployed(self._executor, part, affinity, configs, self._devices)
        )
        self._running.append((one, inputs))
        self._kinds.append(kind)
        self._slowest_s = max(self._slowest_s, alone_s)

    def measure(self, seconds: float) -> None:
        """Keep all of them busy, for so long at most; where that is too short, not at all.

        A device that fails ends measuring.
        """
        # Each kind one request at a time, then with many, and then all devices.
        each_s = seconds / (1 + 2 * len(set(self._kinds)))
        if not self._running or each_s < LEAST_RUNS * self._slowest_s:
            return
        each_s = min(each_s, max(MOST_S, RUNS * self._slowest_s))
        quiet: dict[str, float] = {}
        try:
            for kind, one in zip(self._kinds, self._running, strict=True):
                if kind not in quiet:
                    found = look(*one, time.monotonic() + each_s)
                    self.quiet.setdefault(kind, []).append(found)
                    quiet[kind] = found.run_s
                    (full,) = saturate([one], JOBS, each_s)
                    self._keep(self.alone, kind, found.run_s, full)
            every = saturate(self._running, JOBS, each_s)
            for kind, full in zip(self._kinds, every, strict=True):
                self._keep(self.company, kind, quiet[kind], full)
        except HeteroError:
            self.close()

    @staticmethod
    def _keep(to: dict[str, list[Round]], kind: str, quiet_s: float, full: Saturation) -> None:
        to.setdefault(kind, []).append(Round(quiet_s, sum(full.runs_s), full.period_s))

    def close(self) -> None:
        """Give the devices back."""
        self._running, self._kinds = [], []
        self._stack.close()
