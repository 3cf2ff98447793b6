"""Ray executor: lists the devices of a cluster, and runs plans on one actor per device."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import ray

from hetero.devices.errors import ClusterError, DeviceLostError, HeteroError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.scheduler.channels.channel import SharedChannel
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.device.discovery import PluginSpec
from hetero.scheduler.executor import Replan, ReplannedModel
from hetero.scheduler.formats.stage_source import StageSource, check_sources
from hetero.scheduler.observe.load import DeviceLoad, Load
from hetero.scheduler.observe.observer import ObservedRequest, Observer
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.processes.memory_use import MemoryUse
from hetero.scheduler.ray.deployment import RayDeployment
from hetero.scheduler.ray.devices import DeviceHandle, PoolTable, RayDevices
from hetero.scheduler.ray.loading import StageLoader
from hetero.scheduler.ray.node_requests import NODE_START_S, NodeRequests
from hetero.scheduler.ray.pool import Pool, find_pool, pool_supervisor
from hetero.scheduler.ray.receiver import MessageReceiver
from hetero.scheduler.ray.session import connect
from hetero.scheduler.ray.supervisor import DeviceSupervisor
from hetero.scheduler.thread_budget import plan_shares
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.events import DeviceLost, DeviceRemoved, RoutesAdded
from hetero.scheduler.types.isolation import RunBounds, RunResult
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Placement, single_placement
from hetero.scheduler.types.plan import Plan

_log = logging.getLogger(__name__)

#: Seconds between two attempts to replan a deployment.
_LOOK_S: Final = 0.5
#: Seconds that requests wait for a device whose node has left, if there is no other route.
AWAITED_S: Final = 60.0
#: Numbers deployments across the executors of this process, which may share devices.
_keys: Final = itertools.count(1)


def _key(what: str) -> str:
    """Return a unique key that other clients cannot guess."""
    job = ray.get_runtime_context().get_job_id()
    return f"{what}-{job}-{next(_keys)}-{secrets.token_hex(8)}"


class RayExecutor:
    """Executor on the devices of a Ray cluster.

    `address`: a running cluster's ``host:port``; without one a local Ray is started, and stopped by
        `close`. A Ray that this process is in already is used, and left running.
    `devices`: plugin -> number of logical devices per node. Defaults to the node's labels
        ``hetero/PLUGIN=COUNT``, and without labels to one device for each id of the plugin.
    `plugins`: plugins in addition to the installed ones: ``module:attr`` that every node can
        import, classes, which are sent to the nodes, or ``PLUGIN@PYTHON`` for plugins that run in
        their own interpreter.
    `ray_options`: additional arguments of `ray.init` for a local Ray.
    `observers`: notified of each request that ends; the caller may add and remove observers.
    `probe_timeout_s`, `load_timeout_s`: time limits for a node to list its devices, and for a
        device to compile its stages, in seconds.
    `device_timeout_s`: seconds of silence after which a device is lost. The client then resends
        its requests to another device, or to the same device if that responds again. After twice
        this time the supervisor restarts the device's process.
    `keeps_pool`: whether a pool supervisor owns this executor; see
        `hetero.scheduler.ray.pool_supervisor`.
    Raises ClusterError: Ray could not start, or no Ray responds at `address`.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        devices: Mapping[str, int] | None = None,
        plugins: Sequence[PluginSpec] = (),
        ray_options: Mapping[str, Any] | None = None,
        observers: Sequence[Observer] = (),
        probe_timeout_s: float = 120.0,
        load_timeout_s: float = 3600.0,
        device_timeout_s: float = 2.0,
        keeps_pool: bool = False,
    ) -> None:
        self._session = connect(address, options=ray_options)
        with contextlib.ExitStack() as undo:
            undo.callback(self._session.close)
            pool = self._find_pool(devices or {}, plugins)
            is_client = pool is not None and not keeps_pool
            self._devices = RayDevices(
                self._session,
                plugins,
                devices or {},
                lambda device, error: self._supervisor.handle_end(device, error),
                probe_timeout_s,
                load_timeout_s,
                pool,
                pool_supervisor() if is_client else None,
            )
            self._shared = SharedChannel()
            self._clock = Clock("clock")
            memory = RemoteMemory(
                _key("memory"),
                self._shared.connect,
                self._clock,
                lambda address: self._supervisor.is_lost(address),
                lambda: self._receiver.expect(),
            )
            self._deployments: Deployments[RayDeployment] = Deployments(
                observers, memory, self._clock
            )
            self._loader = StageLoader(self._devices)
            self._supervisor = DeviceSupervisor(
                self._session,
                self._devices,
                self._deployments,
                self._loader,
                self._clock.spawn,
                self._replan_without,
                self._cluster_gone,
                device_timeout_s=device_timeout_s,
                of_pool=pool is not None,
                keeps=not is_client,
            )
            self._node_requests = NodeRequests()
            self._lock = threading.Lock()
            #: Serializes replanning.
            self._replan_lock = threading.Lock()
            self._home_process = HomeProcess()
            self._closed = False
            host: str | None = None  # a local Ray has no other nodes
            if not self._session.is_local:
                host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's gap
            self._channel = DirectChannel(
                self._shared.receive,
                host=host,
                secret=self._devices.secret,
                timeout_s=device_timeout_s,
                status=lambda: {"version": self._supervisor.num_changes},
                on_suspected=self._supervisor.handle_silence,
                on_ended=self._supervisor.channel_ended,
                on_live=self._supervisor.live_again,
                on_messages_lost=self._supervisor.messages_lost,
            )
            self._shared.channel = self._channel
            self._channel.receive_lane = self._shared.receive_lane
            if is_client:
                self._channel.watch(self._devices.ask_supervisor("table", False).address)
            self._supervisor.serve(self._channel)
            self._receiver = MessageReceiver(
                self._channel,
                lambda: (
                    len(memory.pending)
                    + len(memory.recomputations)
                    + self._deployments.in_flight.num_running
                ),
            )
            self._session.loss_callbacks.append(self._cluster_gone)
            atexit.register(self._end_devices)  # runs before the session's own
            undo.pop_all()

    def devices(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the cluster, and every broken plugin with its error."""
        return self._devices.descriptors(wait=wait)

    def start(self, devices: Collection[str]) -> None:
        """Start devices in parallel; see `hetero.scheduler.executor.Executor.start`."""
        for name in devices:
            self._devices.device(name)

    def add_nodes(self, count: int, is_enough: Callable[[], bool]) -> bool:
        """Request nodes from Ray's autoscaler; see `Executor.add_nodes`."""
        if self._session.is_local:
            return False
        return self._node_requests.add(count, is_enough, NODE_START_S)

    def keep(self, devices: Collection[str]) -> None:
        """Start devices of a pool, wait for them, and supervise them."""
        for device in self._devices.with_addresses(list(devices)).values():
            self._supervisor.watch(device)

    def pool_table(self, *, wait: bool) -> PoolTable:
        """Return the device table of the pool; `wait`: whether to wait for new nodes."""
        # The version is read first: a later change is then published under a new version.
        version, live = self._supervisor.num_changes, self._supervisor.live_devices
        self.devices(wait=wait)
        discovery, running = self._devices.discovery, {it.descriptor.name: it for it in live}
        return PoolTable(self._channel.address, version, discovery.nodes, discovery.rows, running)

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Query a device for the nodes of `model` that it supports."""
        handle = self._devices.device(device)
        support: Support = self._ask(handle, "query", self._loader.pack(model), dict(config or {}))
        return support

    def run_isolated(
        self,
        device: str,
        model: Model,
        config: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Value]],
        bounds: RunBounds,
    ) -> list[RunResult]:
        """Run a model on a device in a process of its own; see `Executor.run_isolated`."""
        results: list[RunResult] = self._ask(
            self._devices.device(device),
            "run_isolated",
            self._loader.pack(model),
            dict(config),
            [dict(values) for values in inputs],
            bounds,
        )
        return results

    def get_property(self, device: str, name: str) -> Any:
        """Return the value of a device's property."""
        return self._ask(self._devices.device(device), "get_property", name)

    def memory_use(self, device: str) -> MemoryUse | None:
        """Return the memory of a device's process; see `Executor.memory_use`."""
        memory: MemoryUse | None = self._ask(self._devices.device(device), "memory_use")
        return memory

    def create_context(self, device: str) -> RemoteContext:
        """Create a remote context; see `hetero.scheduler.executor.Executor.create_context`."""
        name = self._devices.device(device).descriptor.name

        def address(again: bool = True) -> str:
            try:
                handle = self._devices.with_addresses([name])[name]
                self._ask(handle, "serve", self._channel.address)
            except DeviceLostError:  # the process had ended; retry with its successor
                if not again:
                    raise
                return address(again=False)
            self._supervisor.watch(handle)
            return handle.address

        address()
        return self._deployments.memory.context(name, address)

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
    ) -> RayDeployment:
        """Compile all stages on their devices in parallel; see `Executor.deploy`."""
        placement = single_placement(plan)
        check_sources(placement, sources)
        limits = limits or Limits()
        key = _key("deployment")
        deployment = RayDeployment(
            key,
            placement,
            constants or {},
            limits,
            self._deployments,
            devices=self._devices.with_addresses(placement.devices),
            sources=sources,
            num_threads=plan_shares(
                placement,
                sources,
                self.devices(wait=False),
                other_devices,
                requests_overlap=limits.requests_overlap,
            ),
            connect=partial(self._shared.connect, key),
            clock_offset_s=None if self._session.is_local else self._channel.clock_offset_s,
            receiver=self._receiver,
            session=self._session,
            ask=self._ask,
            replan=replan,
            exclude=self._replan_without,
            stateful=stateful,
        )
        try:
            streams = self._loader.load(deployment, placement.stages)
            deployment.open(streams, placement.devices)
            deployment.use_lanes(self._shared)
        except BaseException:
            deployment.close()
            raise
        for device in deployment.devices.values():
            self._supervisor.watch(device)
        return deployment

    def _replan_without(self, deployment: RayDeployment, removal: DeviceRemoved) -> None:
        """Exclude a device from a deployment; replan in the background if no route remains."""
        if removal.device in deployment.device_states.excluded:
            return
        deployment.exclude(removal.device)
        if deployment.has_route or deployment.replan is None:
            deployment.notify(removal)
            return
        deployment.notify(DeviceLost(removal.now_s, removal.device, removal.node, removal.cause))
        self._clock.spawn(
            partial(self._replan_in_background, deployment, removal), f"{deployment.key}-replan"
        )

    def _replan_in_background(self, deployment: RayDeployment, removal: DeviceRemoved) -> None:
        """Replan a deployment; retry for `AWAITED_S` in case a device returns or joins."""
        until_s = time.monotonic() + AWAITED_S
        attempted_devices: set[str] | None = None
        reported = removal
        while removal.device in deployment.device_states.excluded and not (
            self._closed or self._session.is_left
        ):
            try:
                listed = {row.name for row in self.devices(wait=False)}
                with self._replan_lock:
                    if (
                        not deployment.has_route
                        and deployment.replan
                        and listed != attempted_devices
                    ):
                        attempted_devices = listed
                        self._add(deployment, deployment.replan(deployment.device_states.excluded))
            except Exception as error:  # any failure is retried until the deadline
                cause = f"{removal.cause.rstrip('.')}; without it: {error}"
                if cause != reported.cause:
                    _log.warning(
                        "%s cannot be replanned without %s: %s",
                        deployment.key,
                        removal.device,
                        error,
                        exc_info=not isinstance(error, HeteroError),
                    )
                if isinstance(error, DeviceLostError):  # it may return: retry with the same devices
                    attempted_devices = None
                reported = replace(removal, cause=cause)
            if deployment.has_route or time.monotonic() >= until_s:
                deployment.give_up(reported)
                return
            time.sleep(_LOOK_S)

    def _add(self, deployment: RayDeployment, replanned: ReplannedModel) -> None:
        """Load another placement of a deployment's model, and send requests along its routes."""
        placement = replanned.placement
        devices = self._devices.with_addresses(placement.devices, wait=False)
        for name, device in devices.items():
            if not deployment.is_loaded_on(device):
                raise DeviceLostError(
                    f"device {name} is restarting and has not loaded its stages yet; this is "
                    "retried soon.",
                    device=name,
                    node=device.descriptor.node,
                    attempt=0,
                )
        num_threads = plan_shares(
            placement,
            replanned.sources,
            self.devices(wait=False),
            requests_overlap=deployment.limits.requests_overlap,
        )
        before = (deployment.placement, deployment.sources)
        stages, routes = deployment.add(replanned, devices, num_threads)
        try:
            deployment.open(self._loader.load(deployment, stages), placement.devices)
        except BaseException:
            deployment.take_back(*before)
            raise
        for device in devices.values():
            self._supervisor.watch(device)
        deployment.notify(RoutesAdded(time.monotonic(), routes))

    def requests_in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended, with their progress."""
        return self._deployments.requests_in_flight()

    def load(self) -> Load:
        """Return the present load, as last reported by the devices."""
        devices = {}
        for deployment in self._deployments:
            for name, device in dict(deployment.devices).items():
                status = self._channel.status_of(device.address)
                silent_s = self._channel.silent_s(device.address)
                devices[name] = DeviceLoad(device.descriptor.node, status, silent_s)
        return self._deployments.load(devices)

    def close(self) -> None:
        """Close every deployment and stop everything that this executor started; idempotent."""
        with self._lock:
            if self._closed or not self._home_process.is_current:  # a forked child owns no devices
                return
            self._closed = True
        for deployment in self._deployments:
            deployment.close()
        self._deployments.memory.close()
        self._clock.close()
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._node_requests.close()
        self._end_devices()
        self._receiver.close()
        self._channel.close()
        self._loader.close()
        self._session.loss_callbacks.remove(self._cluster_gone)
        self._session.close()

    def _end_devices(self) -> None:
        atexit.unregister(self._end_devices)
        if self._home_process.is_current:
            self._supervisor.close()
            if self._session.is_ours:
                self._devices.close()

    def _ask(self, device: DeviceHandle, method: str, *arguments: Any) -> Any:
        self._home_process.require(f"device {device.descriptor.name}")
        if self._closed:  # otherwise Ray would start another cluster
            raise ClusterError("the executor and its devices are closed; create a new one.")
        ref = getattr(device.actor, method).remote(*arguments)
        return self._devices.fetch(device, ref)

    def _find_pool(self, devices: Mapping[str, int], plugins: Sequence[PluginSpec]) -> Pool | None:
        """Return the cluster's pool, if it offers the requested devices and plugins."""
        pool = find_pool()
        if pool is not None and not pool.offers(devices, plugins):
            _log.warning(
                "the cluster's pool has devices=%s plugins=%s, not devices=%s plugins=%s: this "
                "client starts devices of its own",
                dict(pool.devices),
                list(pool.plugins),
                dict(devices),
                list(plugins),
            )
            return None
        return pool

    def _cluster_gone(self, error: ClusterError) -> None:
        """Fail all present and future requests."""
        for deployment in self._deployments:
            deployment.cluster_lost(error)
