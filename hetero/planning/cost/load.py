"""Measuring devices while all of them are busy, as they will be in a pipeline."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Any, Final

from devices.errors import HeteroError
from devices.model.model import Model
from devices.plugin.program import Value
from hetero.planning.cost.timing import deployed, saturate
from scheduler.executor import Deployment, Executor

#: Requests in flight on each device.
JOBS: Final = 3
#: Measurements in a row, each time.
ROUNDS: Final = 2
#: Runs of the slowest part that a measurement should have room for, and must.
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
        #: Kind of device -> mean seconds of a run, and seconds between answers, each time.
        self.rounds: dict[str, list[tuple[float, float]]] = {}

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
        if not self._running or most_s < LEAST_RUNS * self._slowest_s:
            return
        seconds = max(seconds, min(most_s, RUNS * self._slowest_s))
        rounds = ROUNDS if seconds >= RUNS * self._slowest_s else 1
        for _ in range(rounds):
            try:
                found = saturate(self._running, JOBS, seconds / rounds)
            except HeteroError:
                self.close()
                return
            for kind, full in zip(self._kinds, found, strict=True):
                self.rounds.setdefault(kind, []).append((sum(full.runs_s), full.period_s))

    def close(self) -> None:
        """Give the devices back."""
        self._running, self._kinds = [], []
        self._stack.close()
