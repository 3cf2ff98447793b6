"""A device's stage as a caller's own thread runs it, while the device has a free stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache

from hetero.devices.errors import HeteroError
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.machine import DeviceMachine, DirectTask, OpenStage
from hetero.scheduler.vocabulary.events import DeviceInstruction, Send


class DirectStage:
    """A stage of a device of this process, for callers' threads.

    `lock`: guards the machine.
    `follow`: does what the machine asks for.
    `address`: the device's.
    """

    def __init__(
        self,
        deployment: str,
        stage: OpenStage,
        lock: threading.Lock,
        machine: DeviceMachine,
        host: DeviceHost,
        follow: Callable[[Sequence[DeviceInstruction]], None],
        address: str,
    ) -> None:
        self._deployment = deployment
        self._stage = stage
        self._number = stage.opened.stage
        self._lock = lock
        self._machine = machine
        self._host = host
        self._follow = follow
        self._address = address

    def left(self, route: int) -> frozenset[str]:
        """Return the outputs that a route leaves in the device's memory."""
        opened = self._stage.opened
        if not self._host.leaves_outputs:
            return frozenset()
        return left_outputs(self._address, opened.sends.get(route, ()), opened.outputs, ())

    def run(
        self, inputs: Sequence[Value], left: frozenset[str], task: DirectTask
    ) -> tuple[Sequence[Value], StageTiming] | None:
        """Run the stage in the calling thread; None: a task would have to wait for a stream.

        Raises what the stage raised; see `placed`.
        """
        try:
            with self._lock:
                if not self._machine.enter(self._stage, task):
                    return None
            _, outputs, run = self._host.execute(
                self._deployment, self._number, inputs, RunContext(), left=left
            )
        finally:
            if task.entered is not None:
                self.leave(task)
        self._stage.learn(run.ended_s - run.started_s)
        return outputs, run

    def leave(self, task: DirectTask) -> None:
        """Give a stream back, and have the tasks run that wait for it; again is harmless."""
        with self._lock:
            instructions = self._machine.leave(self._stage, task)
        if instructions:
            self._follow(instructions)

    def placed(self, error: Exception, request: Request) -> HeteroError:
        """Return the error of a request whose stage raised."""
        placed = self._host.placed(error, self._number, request)
        return placed.with_traceback(None)  # it leads to the inputs


@lru_cache  # a stage's are the same in each run
def left_outputs(
    address: str, sends: tuple[Send, ...], outputs: tuple[str, ...], keep: tuple[str, ...]
) -> frozenset[str]:
    """Return the outputs that are sent to `address` alone, or kept there."""
    inside = {name for s in sends if s.address == address for name in s.tensors}
    outside = {name for s in sends if s.address != address for name in s.tensors}
    return frozenset({*inside, *keep} - outside - ({*outputs} - {*keep}))
