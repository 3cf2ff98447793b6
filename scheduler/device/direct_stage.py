"""Direct stages: stages that a caller's own thread runs while the device has a free stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache

from hetero.devices.errors import HeteroError
from hetero.devices.plugin.program import RunContext, Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.resident_tensors import ResidentTensors
from hetero.scheduler.device.task_queue import DeviceMachine, DirectTask, OpenStage
from hetero.scheduler.types.events import DeviceInstruction, Send


class DirectStage:
    """Stage on a device of this process, for callers' threads.

    `lock`: guards the machine.
    `follow`: executes the machine's instructions.
    `address`: the address of the device.
    `resident`: the tensors that the device stores between requests.
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
        resident: ResidentTensors,
    ) -> None:
        self._deployment = deployment
        self._stage = stage
        self._number = stage.description.stage
        self._lock = lock
        self._machine = machine
        self._host = host
        self._follow = follow
        self.address = address
        self._resident = resident

    def outputs_left(self, route: int, resident: tuple[str, ...] = ()) -> frozenset[str]:
        """Return the outputs that stay in the device's memory on a route.

        `resident`: outputs that a request declares resident.
        """
        description = self._stage.description
        if not self._host.leaves_outputs:
            return frozenset()
        return left_outputs(
            self.address, description.sends.get(route, ()), description.outputs, resident
        )

    def find_resident(self, key: str) -> Mapping[str, Value] | None:
        """Return a bundle of resident tensors; None if the device does not have it."""
        return self._resident.find(self._stage.description.client, key)

    def keep(self, key: str, tensors: Mapping[str, Value]) -> None:
        """Store resident tensors under a key.

        Raises DeviceMemoryError: the device is out of memory.
        """
        self._resident.keep(self._stage.description.client, key, tensors)

    def free(self, keys: Iterable[str]) -> None:
        """Free resident tensors by their keys; ignore unknown keys."""
        self._resident.free(keys)

    def run(
        self, inputs: Sequence[Value], left: frozenset[str], task: DirectTask
    ) -> tuple[Sequence[Value], StageTiming] | None:
        """Run the stage in the calling thread; return None if no stream is free.

        Raises the exception of the stage unchanged; see `convert_error`. The caller then has to
        release the stream.
        """
        stage, lock, machine = self._stage, self._lock, self._machine
        with lock:
            if not machine.enter(stage, task):
                return None
        _, outputs, timing = self._host.execute(
            self._deployment, self._number, inputs, RunContext(), left=left
        )
        with lock:
            instructions = machine.release_stream(stage, task)
        if instructions:
            self._follow(instructions)
        return outputs, timing

    def release(self, task: DirectTask) -> None:
        """Release a stream and start the tasks that wait for it; idempotent."""
        with self._lock:
            instructions = self._machine.release_stream(self._stage, task)
        if instructions:
            self._follow(instructions)

    def recover(self) -> None:
        """Start the waiting tasks whose start Ctrl-C prevented."""
        with self._lock:
            instructions = self._machine.recover()
        self._follow(instructions)

    def convert_error(self, error: Exception, request: Request) -> HeteroError:
        """Convert an exception of the stage into the error of a request."""
        typed_error = self._host.convert_error(error, self._number, request)
        return typed_error.with_traceback(None)  # its traceback refers to the inputs


@lru_cache  # the outputs of a stage are the same in each run
def left_outputs(
    address: str, sends: tuple[Send, ...], outputs: tuple[str, ...], keep: tuple[str, ...]
) -> frozenset[str]:
    """Return the tensors that may stay in the memory of the device at `address`.

    These are sent to no other address. They are resident outputs (`keep`), or are sent to
    `address` without being outputs of the model (`outputs`).
    """
    inside = {name for s in sends if s.address == address for name in s.tensors}
    outside = {name for s in sends if s.address != address for name in s.tensors}
    return frozenset({*inside, *keep} - outside - ({*outputs} - {*keep}))
