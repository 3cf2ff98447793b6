"""In-process executor: device loops that share worker threads and pass tensors by reference."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from hetero.devices.errors import (
    ArgumentError,
    ClusterError,
    HeteroError,
    PropertyError,
)
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode, Payload, Value
from hetero.devices.plugin.registry import PluginEntry, close_plugins, find_plugin, load_plugins
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import DEFAULT_REQUEST, INLINE_REQUEST, QUICK_REQUEST, Request
from hetero.scheduler.channels.channel import Channel, Receiver
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.client.request_program import RequestProgram, Resumption
from hetero.scheduler.client.request_runner import Submission
from hetero.scheduler.clock import Clock
from hetero.scheduler.device.discovery import PluginSpec, probe_node, usable, with_cluster_names
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.device.workers import Workers
from hetero.scheduler.executor import Replan, ReplannedModel
from hetero.scheduler.formats.stage_source import StageSource, check_sources, warn_of_failed_import
from hetero.scheduler.observe.load import DeviceLoad, Load
from hetero.scheduler.observe.observer import ObservedRequest, Observer
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.processes.memory_use import MemoryUse
from hetero.scheduler.thread_budget import plan_shares
from hetero.scheduler.types import events
from hetero.scheduler.types.device_descriptor import THIS_PROCESS, DeviceDescriptor
from hetero.scheduler.types.device_names import resolve_name
from hetero.scheduler.types.isolation import RunBounds, RunResult
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.messages import Message, Outputs, Task, Values
from hetero.scheduler.types.placement import Placement, single_placement
from hetero.scheduler.types.plan import Plan, Stage


class InProcessDeployment(Deployment):
    """Deployment on devices of this process.

    `find_device`: returns a device by name.
    `count_threads`: returns the threads of each device of a replanned model.
    `replan`: see `hetero.scheduler.executor.Executor.deploy`.
    """

    def __init__(
        self,
        key: str,
        placement: Placement,
        constants: Mapping[str, np.ndarray],
        limits: Limits,
        deployments: Deployments[InProcessDeployment],
        *,
        devices: Mapping[str, DeviceLoop],
        find_device: Callable[[str], DeviceLoop],
        count_threads: Callable[[ReplannedModel], Mapping[str, int]],
        workers: Workers,
        count_streams: Callable[[], None],
        connect: Callable[[Receiver], Channel],
        replan: Replan | None = None,
    ) -> None:
        self._devices = devices
        self._find_device = find_device
        self._count_threads = count_threads
        self._replan = replan
        self._replan_lock = threading.Lock()
        self._excluded_devices: frozenset[str] = frozenset()
        #: Stage -> number of requests that it runs in parallel.
        self._num_streams: dict[int, int] = {}
        self._workers = workers
        self._count_streams = count_streams
        #: Request program, which runs routes in the caller's thread; None if not applicable.
        self._program: RequestProgram | None = None
        super().__init__(
            key,
            placement,
            constants,
            limits,
            deployments,
            connect=lambda receive: connect(workers.receiver(receive, self._completes_directly)),
            addresses={name: device.address for name, device in devices.items()},
            help_with=workers.help_with,
            restores=False,
        )

    @property
    def excluded_devices(self) -> frozenset[str]:
        """The devices that the deployment is planned without."""
        return self._excluded_devices

    @property
    def runs_in_caller(self) -> bool:
        """Whether the thread of a caller that waits runs the stages."""
        return self._program is not None and self._is_quick

    def load(self, sources: Sequence[StageSource], num_threads: Mapping[str, int]) -> None:
        """Compile the stages one after the other."""
        stages = self.placement.stages
        self._load_stages(dict(zip(stages, sources, strict=True)), num_threads)
        self._open(stages)

    def _load_stages(
        self, sources: Mapping[Stage, StageSource], num_threads: Mapping[str, int]
    ) -> None:
        """Compile stages of the placement."""
        for stage, source in sources.items():
            host, index = self._devices[stage.device].host, stage.index
            self._num_streams[index] = self._load_stage(
                host, index, source, num_threads[stage.device]
            )
            if self.constant_stages.includes(self.placement, index, source.model):
                self.constant_stages.make(index, partial(host.make, self.key, index))

    def _open(self, stages: Iterable[Stage]) -> None:
        """Make devices accept tasks of loaded stages, and compile the routes."""
        self.switch_to()
        for stage in stages:
            stage_message = self.stage_description(stage.index, self._num_streams[stage.index])
            self._devices[stage.device].open_stage(stage_message)
        self._count_streams()
        self._compile_program()

    def replan_without(self, device: str, cause: str) -> None:
        """Exclude a device, and replan the model; see `Deployment.replan_without`."""
        with self._replan_lock:
            if self.is_closed or device in self._excluded_devices:
                return
            excluded = self._excluded_devices | {device}
            if not self._has_route_without(device):
                if self._replan is None:
                    super().replan_without(device, cause)
                    return
                self._add(self._replan(excluded))
            self._excluded_devices = excluded
            now_s = self._runner.now_s()
            self._runner.handle(events.DeviceRemoved(now_s, device, THIS_PROCESS, cause))

    def _add(self, replanned: ReplannedModel) -> None:
        """Load another placement of the model, and send requests along its routes."""
        before = self.placement
        names = replanned.placement.devices
        self._devices = {**self._devices, **{name: self._find_device(name) for name in names}}
        self._program, self._sends_directly = None, False
        addresses = {name: self._devices[name].address for name in names}
        whole = self.extend(replanned.placement, replanned.constants, addresses)
        sources = {
            replace(stage, index=0): source
            for stage, source in zip(replanned.placement.stages, replanned.sources, strict=True)
        }
        try:
            new = {s: sources[replace(s, index=0)] for s in whole.stages[len(before.stages) :]}
            self._load_stages(new, self._count_threads(replanned))
            used = {number for r in whole.routes[len(before.routes) :] for number in r.stages}
            self._open(whole.stages[number] for number in sorted(used))
        except BaseException:
            self.switch_to(before)
            self._compile_program()
            raise
        routes = whole.routes[len(before.routes) :]
        self._runner.handle(events.RoutesAdded(self._runner.now_s(), routes))

    def _compile_program(self) -> None:
        """Compile the routes to a request program, unless requests need records."""
        placement = self.placement
        plans = [route.plan for route in placement.routes]
        if self._is_ordered or self.constant_stages.outputs or not self._help_with:
            return
        if any(p.passthrough or p.constant_outputs or not p.stages for p in plans):
            return
        stages = [
            self._devices[stage.device].direct_stage(self.key, stage.index)
            for stage in placement.stages
        ]
        self._program = RequestProgram(
            placement,
            stages,
            self._runner,
            self._deployments.memory,
            resume=self._resume,
            learn=self._learn,
        )
        self._sends_directly = True

    def submit(
        self, inputs: Mapping[str, Value], request: Request = DEFAULT_REQUEST
    ) -> Submission | CompletedSubmission:
        """Run a request in the calling thread, or admit it; see `Deployment.submit`."""
        program = self._program
        if program is not None:
            max_nbytes = self._max_direct_nbytes(request)
            if max_nbytes >= 0:
                submission = program.run(inputs, request, max_nbytes)
                if submission is not None:
                    return submission
        return super().submit(inputs, request)

    def _max_direct_nbytes(self, request: Request) -> float:
        """Return the maximum input bytes with which the calling thread may run a request.

        Returns -1 if it must not run it, or the request program does not support it.
        """
        if not self._runner.home_process.is_current:
            return -1
        if request is INLINE_REQUEST:
            return inf if self._is_quick else -1
        if request is not QUICK_REQUEST:
            if (
                request.timeout_s is not None
                or request.profile
                or request.priority
                or request.resident_copies
            ):
                return -1
            if request.inline is not None:
                return inf if request.inline and self._is_quick else -1
        # A caller that never blocks would keep the interpreter lock from busy workers.
        return self._max_tiny_nbytes if self._workers.are_idle else -1

    def _completes_directly(self, message: Message) -> bool:
        """Return whether a message contains the result of a request without a record."""
        return type(message) is Outputs and self._runner.machine.is_direct(message.task.request.id)

    def _resume(self, resumption: Resumption) -> None:
        """Send the inputs of a request's remaining stages to their devices."""
        request = resumption.attempt

        def send() -> None:
            for stage, tensors in resumption.inputs.items():
                address = self._addresses[self.placement.stages[stage].device]
                self._channel.send(address, Values(Task(request, stage), tensors))

        if self._help_with and self._may_help(request):
            self._help_with(request.id, send)
        else:
            send()

    def _load_stage(
        self, host: DeviceHost, stage: int, source: StageSource, num_threads: int
    ) -> int:
        """Import or compile a stage; return the number of requests that it runs in parallel."""
        constant_inputs = {
            name: constant.array
            for name, constant in self.constant_stages.inputs_of(self.placement, stage).items()
        }
        load = partial(
            host.load_stage, self.key, stage, num_threads=num_threads, given=constant_inputs
        )
        if source.payload is not None:
            try:
                num_streams = load(source=source)
                self.imported.add(stage)
                return num_streams
            except HeteroError as error:
                warn_of_failed_import(self.placement, stage, error)
        return load(source=replace(source, payload=None))

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return the runtime model of a stage."""
        return self._host(stage).executed_nodes(self.key, stage)

    def export(self, stage: int) -> Payload:
        """Return a compiled stage as a payload of its device."""
        return self._host(stage).export(self.key, stage)

    def _host(self, stage: int) -> DeviceHost:
        return self._devices[self.placement.stages[stage].device].host

    def _unload(self) -> None:
        for device in self._devices.values():
            device.close_deployment(self.key)
        self._count_streams()


class InProcessExecutor:
    """Executor on devices of this process.

    `devices`: plugin -> number of logical devices; defaults to one for each id of the plugin.
    `plugins`: plugins in addition to the installed ones: ``module:attr`` or classes.
    `observers`: notified of each request that ends; the caller may add and remove observers.
    """

    def __init__(
        self,
        *,
        devices: Mapping[str, int] | None = None,
        plugins: Sequence[PluginSpec] = (),
        observers: Sequence[Observer] = (),
    ) -> None:
        self._counts = dict(devices or {})
        self._plugins = tuple(plugins)
        self._loaded: dict[str, PluginEntry] | None = None
        self._probed: dict[str, DeviceDescriptor] | None = None
        self._loops: dict[str, DeviceLoop] = {}
        #: Unloaded plugins with their devices, which still run the stages that they have.
        self._unloaded: list[tuple[PluginEntry, list[DeviceLoop]]] = []
        self._switchboard = Switchboard()
        self._clock = Clock("clock")
        self._workers = Workers("stages", self._clock)
        memory = RemoteMemory("remote-memory", self._switchboard.connect, self._clock)
        self._deployments: Deployments[InProcessDeployment] = Deployments(
            observers, memory, self._clock
        )
        self._keys = itertools.count(1)
        self._lock = threading.RLock()
        self._home_process = HomeProcess()
        self._closed = False

    @property
    def _entries(self) -> dict[str, PluginEntry]:
        """The plugins, loaded on first use."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load_plugins(self._plugins)
            return self._loaded

    @property
    def _descriptors(self) -> dict[str, DeviceDescriptor]:
        """The devices, queried on first use."""
        with self._lock:
            if self._probed is None:
                rows = with_cluster_names(
                    probe_node(THIS_PROCESS, (), self._counts, entries=self._entries)
                )
                self._probed = {row.name: row for row in rows}
            return self._probed

    def devices(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device, and every broken plugin with its error; `wait` has no effect."""
        return tuple(self._descriptors.values())

    def add_plugin(self, spec: PluginSpec) -> None:
        """Add a plugin and its devices; a plugin that fails to load is listed with its error.

        Raises ArgumentError: another plugin has its name.
        """
        with self._lock:
            entries = load_plugins([spec], entry_points=False)
            if clashes := entries.keys() & self._entries.keys():
                close_plugins(entries.values())
                raise ArgumentError(
                    f"plugin {spec!r} has the name of another plugin: {', '.join(clashes)}; "
                    "register it under a different name."
                )
            self._entries.update(entries)
            self._probed = None

    def unload_plugin(self, name: str) -> None:
        """Replace a plugin with a new instance; compiled models keep the old one.

        Raises UnknownDeviceError: no such plugin exists.
        Raises PluginLoadError: the plugin is broken.
        """
        with self._lock:
            plugin = find_plugin(self._entries, name)
            of_plugin = [n for n, row in self._descriptors.items() if row.plugin == plugin.name]
            entry = self._entries[plugin.name]
            self._entries[plugin.name] = replace(entry, plugin=type(plugin)())
            loops = [self._loops.pop(n) for n in of_plugin if n in self._loops]
            self._unloaded.append((entry, loops))

    def start(self, devices: Collection[str]) -> None:
        """Do nothing: devices of this process start on first use."""

    def add_nodes(self, count: int, is_enough: Callable[[], bool]) -> bool:
        """Return False: this process is the only node."""
        return False

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Query a device for the nodes of `model` that it supports."""
        return self._device(device).host.query(model, config or {})

    def run_isolated(
        self,
        device: str,
        model: Model,
        config: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Value]],
        bounds: RunBounds,
    ) -> list[RunResult]:
        """Run a model on a device in a process of its own; see `Executor.run_isolated`."""
        return self._device(device).host.run_isolated(model, config, inputs, bounds)

    def get_property(self, device: str, name: str) -> Any:
        """Return the value of a device's property."""
        return self._device(device).host.get_property(name)

    def memory_use(self, device: str) -> MemoryUse | None:
        """Return None: all devices share this process."""
        return None

    def create_context(self, device: str) -> RemoteContext:
        """Create a remote context; see `hetero.scheduler.executor.Executor.create_context`."""
        loop = self._device(device)
        return self._deployments.memory.context(loop.host.descriptor.name, lambda: loop.address)

    def deploy(
        self,
        plan: Plan | Placement,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        limits: Limits | None = None,
        other_devices: Collection[str] = (),
        replan: Replan | None = None,
        stateful: bool = False,
    ) -> InProcessDeployment:
        """Compile every stage on its device; see `hetero.scheduler.executor.Executor.deploy`.

        `stateful` has no effect: devices of this process are never lost.
        """
        placement = single_placement(plan)
        check_sources(placement, sources)
        limits = limits or Limits()
        if limits.stage_timeout_s:
            raise PropertyError(
                f"STAGE_TIMEOUT_S={limits.stage_timeout_s:g}: a stage in this process cannot be "
                "ended. Use the Ray executor, or REQUEST_TIMEOUT_S.",
                property="STAGE_TIMEOUT_S",
            )
        key = f"deployment-{next(self._keys)}"
        deployment = InProcessDeployment(
            key,
            placement,
            constants or {},
            limits,
            self._deployments,
            devices={name: self._device(name) for name in placement.devices},
            find_device=self._device,
            count_threads=lambda replanned: plan_shares(
                replanned.placement,
                replanned.sources,
                self.devices(),
                requests_overlap=limits.requests_overlap,
            ),
            replan=replan,
            workers=self._workers,
            count_streams=self._count_streams,
            connect=partial(self._switchboard.connect, key),
        )
        num_threads = plan_shares(
            placement,
            sources,
            self.devices(),
            other_devices,
            requests_overlap=limits.requests_overlap,
        )
        try:
            deployment.load(sources, num_threads)
        except BaseException:
            deployment.close()
            raise
        return deployment

    def requests_in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended, with their progress."""
        return self._deployments.requests_in_flight()

    def load(self) -> Load:
        """Return the present load."""
        loops = dict(self._loops)
        devices = {name: DeviceLoad(THIS_PROCESS, loop.status()) for name, loop in loops.items()}
        return self._deployments.load(devices)

    def close(self) -> None:
        """Close every deployment, stop the threads and close the plugins; idempotent."""
        with self._lock:
            self._closed = True
            plugins, self._loaded = list((self._loaded or {}).values()), {}
            loops, self._loops = list(self._loops.values()), {}
            for plugin, of_plugin in self._unloaded:
                plugins.append(plugin)
                loops += of_plugin
        for deployment in self._deployments:
            deployment.close()
        self._deployments.memory.close()
        self._clock.close()
        self._workers.stop()
        for loop in loops:
            loop.close()
        close_plugins(plugins)

    def _device(self, name: str) -> DeviceLoop:
        self._home_process.require(f"device {name}")
        descriptor = usable(self._descriptors[resolve_name(name, self._descriptors)])
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; create a new one.")
            if descriptor.name not in self._loops:
                # The address differs from those of unloaded devices of the same name.
                address = f"{descriptor.name}/{len(self._unloaded)}"
                self._loops[descriptor.name] = DeviceLoop(
                    DeviceHost(descriptor, find_plugin(self._entries, descriptor.plugin)),
                    partial(self._switchboard.connect, address),
                    self._workers.start,
                    is_shared=False,
                )
            return self._loops[descriptor.name]

    def _count_streams(self) -> None:
        """Set the number of worker threads to the number of stage runs allowed in parallel."""
        with self._lock:
            unloaded = (loop for _, loops in self._unloaded for loop in loops)
            loops = (*self._loops.values(), *unloaded)
            self._workers.keep(sum(loop.num_streams for loop in loops))
