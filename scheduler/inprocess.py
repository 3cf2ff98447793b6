"""The in-process executor: one thread for each device, and the same codec as between machines."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from devices.errors import ClusterError, HeteroError, InferenceError, RequestCancelledError
from devices.model.model import Model
from devices.plugin.program import ExecutedNode, Payload, Value
from devices.plugin.registry import close_plugins, load_plugins
from devices.plugin.support import Support
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler import events
from scheduler.client.deployment import BaseDeployment, Deployments, check_sources, import_failed
from scheduler.client.machine import Limits
from scheduler.device.host import DeviceHost
from scheduler.device.machine import DeviceMachine
from scheduler.device.probe import PluginSpec, named, probe_node, usable
from scheduler.device_names import resolve_name
from scheduler.events import DeviceEvent, DeviceInstruction, Task
from scheduler.executor import THIS_PROCESS, DeviceDescriptor, StageSource
from scheduler.formats.codec import decode, encode
from scheduler.home_process import HomeProcess
from scheduler.plan import Plan
from scheduler.thread_shares import plan_shares

#: Seconds that a thread may take to end; one that is stuck in a program ends with the process.
_JOIN_S: Final = 5.0


class _DeviceThreads:
    """A device's machine with threads that run what it says."""

    def __init__(self, host: DeviceHost) -> None:
        self.host = host
        self._machine = DeviceMachine()
        self._lock = threading.Lock()
        self._runs: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        #: Inputs that have come, as messages, with the time of the last.
        self._values: dict[Task, dict[str, bytes]] = {}
        self._ready_s: dict[Task, float] = {}
        self._deployments: dict[str, InProcessDeployment] = {}
        #: Threads that live, those included that end with what they run now.
        self._threads: set[threading.Thread] = set()
        self._num_threads = 0

    def open_stage(self, deployment: InProcessDeployment, stage: events.StageOpened) -> None:
        with self._lock:
            self._deployments[deployment.key] = deployment
            self._machine.handle(stage)
            self._keep_threads(self._machine.num_streams)

    def close_deployment(self, key: str) -> None:
        self.post(events.DeploymentClosed(key))
        self.host.unload(key)
        with self._lock:
            self._deployments.pop(key, None)
            self._keep_threads(self._machine.num_streams)

    def _keep_threads(self, count: int) -> None:
        while self._num_threads < count:
            name = f"{self.host.descriptor.name}-{self._num_threads}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.add(thread)
            self._num_threads += 1
            thread.start()
        while self._num_threads > count:
            self._num_threads -= 1
            self._runs.put(None)

    def post(self, event: DeviceEvent, values: Mapping[str, bytes] | None = None) -> None:
        """Take in an event that carries no outputs."""
        with self._lock:
            if isinstance(event, events.ValuesArrived):
                self._values.setdefault(event.task, {}).update(values or {})
                self._ready_s[event.task] = time.monotonic()
            instructions = self._machine.handle(event)
        self._follow(instructions, None)

    def _end(self, event: DeviceEvent, ended: _Ended | None) -> None:
        with self._lock:
            instructions = self._machine.handle(event)
        self._follow(instructions, ended)

    def _follow(self, instructions: Sequence[DeviceInstruction], ended: _Ended | None) -> None:
        for instruction in instructions:
            task = instruction.task
            # None once it is closed; then nobody waits for what its tasks give.
            deployment = self._deployments.get(task.request.deployment)
            try:
                match instruction:
                    case events.Run():
                        self._runs.put(task)
                    case events.SendOn(_, send) if ended and deployment:
                        deployment.send(task, send, ended.outputs[send.tensor])
                    case events.Report() if ended and deployment:
                        deployment.stage_ended(task, ended)
                    case events.ReportFailure(_, failure) if deployment:
                        deployment.stage_failed(task, failure)
                    case events.Stop():
                        self.host.cancel(task.request)
                    case events.Forget():
                        with self._lock:
                            self._values.pop(task, None)
                            self._ready_s.pop(task, None)
            except Exception as error:  # whatever it is: the request hears of it, threads live on
                if deployment:
                    deployment.stage_failed(task, self._failure(task, error))

    def _work(self) -> None:
        while (task := self._runs.get()) is not None:
            try:
                ended = self._run(task)
            except Exception as error:
                self._end(events.RunFailed(task, self._failure(task, error)), None)
            else:
                self._end(events.RunEnded(task), ended)
        with self._lock:
            self._threads.discard(threading.current_thread())

    def _failure(self, task: Task, error: Exception) -> HeteroError:
        """Return what a request is told; an untyped error is a fault of a plugin's, or ours."""
        if isinstance(error, HeteroError):
            return error
        name = self.host.descriptor.name
        return InferenceError(
            f"stage {task.stage} on device {name}, request {task.request.id}, attempt "
            f"{task.request.attempt}: {type(error).__name__}: {error}",
            stage=task.stage,
            device=name,
            cause=repr(error),
        )

    def _run(self, task: Task) -> _Ended:
        with self._lock:
            values = self._values.pop(task)
            ready_s = self._ready_s.pop(task)
            deployment = self._deployments.get(task.request.deployment)
        if deployment is None:
            raise RequestCancelledError(f"{task}: the deployment was closed")
        stage = deployment.plan.stages[task.stage]
        outputs, run = self.host.run_stage(
            task.request, task.stage, [values[name] for name in stage.inputs], ready_s=ready_s
        )
        return _Ended(dict(zip(deployment.plan.taken[task.stage], outputs, strict=True)), run)

    def stop(self) -> None:
        with self._lock:
            self._keep_threads(0)
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(timeout=_JOIN_S)
        self.host.close()


@dataclass(frozen=True, slots=True)
class _Ended:
    """What a task made: its outputs as messages, and how it went."""

    outputs: dict[str, bytes]
    run: StageRun


@dataclass(slots=True)
class _Attempt:
    """What has come of an attempt so far."""

    inputs: Mapping[str, Value]
    num_stages_left: int
    outputs: dict[str, bytes] = field(default_factory=dict)
    runs: list[StageRun] = field(default_factory=list)


class InProcessDeployment(BaseDeployment):
    """A plan on threads of this process."""

    def __init__(
        self,
        key: str,
        plan: Plan,
        constants: Mapping[str, np.ndarray],
        limits: Limits,
        deployments: Deployments[InProcessDeployment],
        devices: Mapping[str, _DeviceThreads],
    ) -> None:
        super().__init__(key, plan, constants, limits, deployments)
        self._devices = devices
        self._attempts: dict[Request, _Attempt] = {}
        self._lock = threading.Lock()

    def load(self, sources: Sequence[StageSource], num_threads: Mapping[str, int]) -> None:
        """Compile the stages, each in its device's turn."""
        plan = self.plan
        for stage, source in zip(plan.stages, sources, strict=True):
            device = self._devices[stage.device]
            threads = num_threads[stage.device]
            num_streams = self._load_stage(device.host, stage.index, source, threads)
            sends = tuple(
                events.Send(wire.tensor, plan.stages[wire.consumer].device, wire.consumer)
                for wire in plan.wires
                if wire.producer == stage.index
            )
            opened = events.StageOpened(
                self.key, stage.index, stage.inputs, plan.levels[stage.index], sends, num_streams
            )
            device.open_stage(self, opened)

    def _load_stage(
        self, host: DeviceHost, stage: int, source: StageSource, num_threads: int
    ) -> int:
        """Import a stage, or compile it; return how many requests it runs at once."""
        taken = self.plan.taken_positions(stage)
        if source.payload is not None:
            try:
                num_streams = host.load_stage(self.key, stage, source, num_threads, taken)
                self.imported.add(stage)
                return num_streams
            except HeteroError as error:
                import_failed(self.plan, stage, error)
        compiled = replace(source, payload=None)
        return host.load_stage(self.key, stage, compiled, num_threads, taken)

    def start(self, request: Request, inputs: Mapping[str, Value]) -> None:
        """Send the inputs to the stages that take them."""
        plan = self.plan
        if not plan.stages:
            self._answered(request, inputs, {}, ())
            return
        messages = {name: encode(inputs[name]) for name in inputs if name in plan.consumers}
        with self._lock:
            self._attempts[request] = _Attempt(inputs, len(plan.stages))
        for stage in plan.stages:
            mine = {name: messages[name] for name in stage.inputs if name in messages}
            if mine or not stage.inputs:
                task = Task(request, stage.index)
                arrived = events.ValuesArrived(task, request.id, tuple(mine))
                self._devices[stage.device].post(arrived, mine)

    def drop(self, request: Request) -> None:
        """Tell every device that nobody waits for the attempt."""
        with self._lock:
            self._attempts.pop(request, None)
        for device in self.plan.devices:
            self._devices[device].post(events.AttemptDropped(request))

    def send(self, task: Task, send: events.Send, message: bytes) -> None:
        """Pass a stage's output to one that takes it."""
        target = task._replace(stage=send.stage)
        arrived = events.ValuesArrived(target, task.request.id, (send.tensor,))
        self._devices[send.device].post(arrived, {send.tensor: message})

    def stage_ended(self, task: Task, ended: _Ended) -> None:
        """Collect a stage's part of the answer."""
        wanted = set(self.plan.output_names)
        with self._lock:
            attempt = self._attempts.get(task.request)
            if attempt is None:
                return
            attempt.outputs |= {n: m for n, m in ended.outputs.items() if n in wanted}
            attempt.runs.append(ended.run)
            attempt.num_stages_left -= 1
            if attempt.num_stages_left:
                return
            del self._attempts[task.request]
        made = {name: decode(message) for name, message in attempt.outputs.items()}
        self._answered(task.request, attempt.inputs, made, attempt.runs)

    def stage_failed(self, task: Task, error: BaseException) -> None:
        """Hand in a stage's failure."""
        self._failed(task.request, error)

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        return self._host(stage).executed_nodes(self.key, stage)

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it."""
        return self._host(stage).export(self.key, stage)

    def _host(self, stage: int) -> DeviceHost:
        return self._devices[self.plan.stages[stage].device].host

    def _unload(self) -> None:
        for device in self.plan.devices:
            self._devices[device].close_deployment(self.key)


class InProcessExecutor:
    """Devices of this process.

    Parameters
    ----------
    devices : mapping of str to int
        Plugin -> how many logical devices; one for each of the plugin's ids by default.
    plugins : sequence of str or type
        Plugins besides the installed ones: ``module:attr`` or classes.
    """

    def __init__(
        self, *, devices: Mapping[str, int] | None = None, plugins: Sequence[PluginSpec] = ()
    ) -> None:
        self._counts = dict(devices or {})
        self._plugins = tuple(plugins)
        self._loaded: dict[str, Any] | None = None
        self._probed: dict[str, DeviceDescriptor] | None = None
        self._threads: dict[str, _DeviceThreads] = {}
        self._deployments: Deployments[InProcessDeployment] = Deployments()
        self._keys = itertools.count(1)
        self._lock = threading.RLock()
        self._home = HomeProcess()
        self._closed = False

    @property
    def _entries(self) -> dict[str, Any]:
        """The plugins, loaded on first use."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load_plugins(self._plugins)
            return self._loaded

    @property
    def _descriptors(self) -> dict[str, DeviceDescriptor]:
        """The devices, asked for on first use."""
        with self._lock:
            if self._probed is None:
                rows = named(probe_node(THIS_PROCESS, (), self._counts, entries=self._entries))
                self._probed = {row.name: row for row in rows}
            return self._probed

    def devices(self) -> tuple[DeviceDescriptor, ...]:
        """Return every device, and every plugin that is broken."""
        return tuple(self._descriptors.values())

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Ask a device which nodes of `model` it runs."""
        return self._device(device).host.query(model, config or {})

    def get_property(self, device: str, name: str) -> Any:
        """Return a property's value on a device."""
        return self._device(device).host.get_property(name)

    def deploy(
        self,
        plan: Plan,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        limits: Limits | None = None,
        company: Collection[str] = (),
    ) -> InProcessDeployment:
        """Compile every stage on its device; see `scheduler.executor.Executor.deploy`."""
        check_sources(plan, sources)
        limits = limits or Limits()
        threads = {name: self._device(name) for name in plan.devices}
        key = f"deployment-{next(self._keys)}"
        deployment = InProcessDeployment(
            key, plan, constants or {}, limits, self._deployments, threads
        )
        try:
            deployment.load(sources, plan_shares(plan, sources, self.devices(), company))
        except BaseException:
            deployment.close()
            raise
        return deployment

    def close(self) -> None:
        """Close every deployment, stop the threads, close the plugins; again is harmless."""
        with self._lock:
            self._closed = True
            plugins, self._loaded = self._loaded or {}, {}
            threads, self._threads = list(self._threads.values()), {}
        for deployment in self._deployments:
            deployment.close()
        for device in threads:
            device.stop()
        close_plugins(plugins)

    def _device(self, name: str) -> _DeviceThreads:
        self._home.require(f"device {name}")
        descriptor = usable(self._descriptors[resolve_name(name, self._descriptors)])
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; make a new one.")
            if descriptor.name not in self._threads:
                plugin = self._entries[descriptor.plugin].plugin
                host = DeviceHost(descriptor, plugin, decode, encode)
                self._threads[descriptor.name] = _DeviceThreads(host)
            return self._threads[descriptor.name]
