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
#: Measurements in a row, each time.
ROUNDS: Final = 2
#: Runs of one request at a time in each, at most.
QUIET_RUNS: Final = 30
#: Runs of the slowest part that each of a round's looks should have room for, and must.
RUNS, LEAST_RUNS = 8, 4


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

    def measure(self, seconds: float, most_s: float) -> None:
        """Keep all of them busy for about so long, or longer where their runs need it.

        A device that fails ends measuring. Where the time is too short for a few runs of the
        slowest, nothing is measured.

        `seconds`, `most_s`: time to spend, and to spend at most.
        """
        # A round looks at each kind one request at a time, then with many, and then at all devices.
        looks = 1 + 2 * len(set(self._kinds))
        if not self._running or most_s < LEAST_RUNS * looks * self._slowest_s:
            return
        full_s = RUNS * looks * self._slowest_s
        seconds = max(seconds, min(most_s, full_s))
        rounds = ROUNDS if seconds >= full_s else 1
        for _ in range(rounds):
            try:
                self._round(seconds / rounds / looks)
            except HeteroError:
                self.close()
                return

    def _round(self, seconds: float) -> None:
        """Look at everything once, for so long each."""
        quiet: dict[str, float] = {}
        for kind, one in zip(self._kinds, self._running, strict=True):
            if kind not in quiet:
                found = look(*one, QUIET_RUNS, time.monotonic() + seconds)
                self.quiet.setdefault(kind, []).append(found)
                quiet[kind] = found.run_s
                (full,) = saturate([one], JOBS, seconds)
                self._keep(self.alone, kind, found.run_s, full)
        for kind, full in zip(self._kinds, saturate(self._running, JOBS, seconds), strict=True):
            self._keep(self.company, kind, quiet[kind], full)

    @staticmethod
    def _keep(to: dict[str, list[Round]], kind: str, quiet_s: float, full: Saturation) -> None:
        to.setdefault(kind, []).append(Round(quiet_s, sum(full.runs_s), full.period_s))

    def close(self) -> None:
        """Give the devices back."""
        self._running, self._kinds = [], []
        self._stack.close()
