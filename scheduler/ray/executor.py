"""The Ray executor: finds the cluster's devices, and runs plans on one actor for each of them."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import ray

from hetero.devices.errors import ClusterError, DeviceLostError, HeteroError
from hetero.devices.model.model import Model
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.scheduler.channels.channel import SharedChannel
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_memory import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.device.probe import PluginSpec
from hetero.scheduler.executor import Remade, Remake
from hetero.scheduler.formats.stage_source import StageSource, check_sources
from hetero.scheduler.observe.load import DeviceLoad, Load
from hetero.scheduler.observe.observer import ObservedRequest, Observer
from hetero.scheduler.processes.home_process import HomeProcess
from hetero.scheduler.ray.deployment import RayDeployment
from hetero.scheduler.ray.devices import ActorDevice, PoolTable, RayDevices
from hetero.scheduler.ray.keeper import DeviceKeeper
from hetero.scheduler.ray.loading import StageLoader
from hetero.scheduler.ray.pool import Pool, find_pool, pool_keeper
from hetero.scheduler.ray.reception import Reception
from hetero.scheduler.ray.start import connect
from hetero.scheduler.thread_shares import plan_shares
from hetero.scheduler.vocabulary.events import DeviceLost, DeviceRemoved, RoutesAdded
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.placement import Placement, alone
from hetero.scheduler.vocabulary.plan import Plan
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)

#: Seconds after which it is looked again for what is waited for.
_LOOK_S: Final = 0.5
#: Seconds that requests wait for a device whose node has left where there is no other way.
AWAITED_S: Final = 60.0
#: Numbers of this process's deployments: its executors may share devices.
_keys: Final = itertools.count(1)


def _key(what: str) -> str:
    """Return a key that no other client knows, and so cannot use."""
    job = ray.get_runtime_context().get_job_id()
    return f"{what}-{job}-{next(_keys)}-{secrets.token_hex(8)}"


class RayExecutor:
    """Devices of a Ray cluster.

    `address`: a running cluster's ``host:port``; without one a local Ray is started, and stopped by
        `close`. A Ray that this process is in already is used, and left running.
    `devices`: plugin -> how many logical devices each node offers; before that the node's own
        labels ``hetero/PLUGIN=COUNT``, and before those one for each of the plugin's ids.
    `plugins`: plugins besides the installed ones: ``module:attr`` that every node can import, or
        classes, which are sent along; ``PLUGIN@PYTHON`` where an interpreter of its own runs them.
    `ray_options`: more of `ray.init`'s arguments for a local Ray.
    `observers`: who is told of each request that ends; its owner may add and remove.
    `probe_timeout_s`, `load_timeout_s`: seconds that a node may take to list its devices, and a
        device to compile its stages.
    `device_timeout_s`: seconds of silence after which a device is lost: what it had is sent again
        elsewhere, or to itself once it is heard; after as many more its process is started anew.
    `keeps_pool`: whether it is that of a pool's keeper: see `hetero.scheduler.ray.pool_keeper`.
    Raises ClusterError: Ray could not start, or nothing answers at `address`.
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
                lambda device, error: self._keeper.ended(device, error),
                probe_timeout_s,
                load_timeout_s,
                pool,
                pool_keeper() if is_client else None,
            )
            self._shared = SharedChannel()
            self._clock = Clock("clock")
            memory = RemoteMemory(
                _key("memory"),
                self._shared.connect,
                self._clock,
                lambda address: self._keeper.is_lost(address),
                lambda: self._reception.expect(),
            )
            self._deployments: Deployments[RayDeployment] = Deployments(
                observers, memory, self._clock
            )
            self._loader = StageLoader(self._devices)
            self._keeper = DeviceKeeper(
                self._session,
                self._devices,
                self._deployments,
                self._loader,
                self._clock.spawn,
                self._do_without,
                self._cluster_gone,
                device_timeout_s=device_timeout_s,
                of_pool=pool is not None,
                keeps=not is_client,
            )
            self._lock = threading.Lock()
            #: One deployment is placed anew at a time.
            self._remaking = threading.Lock()
            self._home = HomeProcess()
            self._closed = False
            host: str | None = None  # no other nodes reach it
            if not self._session.is_local:
                host = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's gap
            self._channel = DirectChannel(
                self._shared.receive,
                host=host,
                secret=self._devices.secret,
                timeout_s=device_timeout_s,
                status=lambda: {"version": self._keeper.num_changes},
                on_suspected=self._keeper.suspected,
                on_ended=self._keeper.channel_ended,
                on_live=self._keeper.live_again,
                on_messages_lost=self._keeper.messages_lost,
            )
            self._shared.channel = self._channel
            if is_client:
                self._channel.watch(self._devices.ask_keeper("table", False).address)
            self._keeper.serve(self._channel)
            self._reception = Reception(
                self._channel,
                lambda: (
                    len(memory.awaited)
                    + len(memory.again)
                    + self._deployments.in_flight.num_running
                ),
            )
            self._session.when_gone.append(self._cluster_gone)
            atexit.register(self._end_devices)  # runs before the session's own
            undo.pop_all()

    def devices(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the cluster, and every plugin that is broken."""
        return self._devices.descriptors(wait=wait)

    def start(self, devices: Collection[str]) -> None:
        """Start devices side by side; see `hetero.scheduler.executor.Executor.start`."""
        for name in devices:
            self._devices.device(name)

    def keep(self, devices: Collection[str]) -> None:
        """Start a pool's devices, wait for them, and keep them."""
        for device in self._devices.reached(list(devices)).values():
            self._keeper.watch(device)

    def pool_table(self, *, wait: bool) -> PoolTable:
        """Return what a pool's keeper says; `wait`: for what nodes that are new have to say."""
        version, live = self._keeper.num_changes, self._keeper.live  # in that order
        self.devices(wait=wait)
        survey, started = self._devices.survey, {it.descriptor.name: it for it in live}
        return PoolTable(self._channel.address, version, survey.nodes, survey.rows, started)

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Ask a device which nodes of `model` it runs."""
        found = self._devices.device(device)
        support: Support = self._ask(found, "query", self._loader.pack(model), dict(config or {}))
        return support

    def get_property(self, device: str, name: str) -> Any:
        """Return a property's value on a device."""
        return self._ask(self._devices.device(device), "get_property", name)

    def create_context(self, device: str) -> RemoteContext:
        """Return a device's memory; see `hetero.scheduler.executor.Executor.create_context`."""
        name = self._devices.device(device).descriptor.name

        def address(again: bool = True) -> str:
            try:
                found = self._devices.reached([name])[name]
                self._ask(found, "serve", self._channel.address)
            except DeviceLostError:  # its process had ended: now it has another
                if not again:
                    raise
                return address(again=False)
            self._keeper.watch(found)
            return found.address

        address()
        return self._deployments.memory.context(name, address)

    def deploy(
        self,
        plan: Plan | Placement,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        limits: Limits | None = None,
        company: Collection[str] = (),
        remake: Remake | None = None,
        stateful: bool = False,
    ) -> RayDeployment:
        """Compile every stage on its device, all at once; see `Executor.deploy`."""
        placement = alone(plan)
        check_sources(placement, sources)
        key = _key("deployment")
        deployment = RayDeployment(
            key,
            placement,
            constants or {},
            limits or Limits(),
            self._deployments,
            devices=self._devices.reached(placement.devices),
            sources=sources,
            num_threads=plan_shares(placement, sources, self.devices(wait=False), company),
            connect=partial(self._shared.connect, key),
            clock_offset_s=None if self._session.is_local else self._channel.clock_offset_s,
            reception=self._reception,
            session=self._session,
            ask=self._ask,
            remake=remake,
            stateful=stateful,
        )
        try:
            streams = self._loader.load(deployment, placement.stages)
            deployment.open(streams, placement.devices)
        except BaseException:
            deployment.close()
            raise
        for device in deployment.devices.values():
            self._keeper.watch(device)
        return deployment

    def _do_without(self, deployment: RayDeployment, gone: DeviceRemoved) -> None:
        """Have a deployment do without a device, placed anew if that takes it; returns at once."""
        if gone.device in deployment.gone:
            return
        deployment.gone.add(gone.device)
        if deployment.has_route or deployment.remake is None:
            deployment.tell(gone)
            return
        deployment.tell(DeviceLost(gone.now_s, gone.device, gone.node, gone.cause))
        self._clock.spawn(partial(self._remake, deployment, gone), f"{deployment.key}-remake")

    def _remake(self, deployment: RayDeployment, gone: DeviceRemoved) -> None:
        """Place a deployment anew, or wait for a while till the device, or another, is there."""
        until_s = time.monotonic() + AWAITED_S
        tried: set[str] | None = None
        told = gone
        while gone.device in deployment.gone and not (self._closed or self._session.is_left):
            try:
                listed = {row.name for row in self.devices(wait=False)}
                with self._remaking:
                    if not deployment.has_route and deployment.remake and listed != tried:
                        tried = listed
                        self._add(deployment, deployment.remake(frozenset(deployment.gone)))
            except Exception as error:  # whatever it is, the deployment is looked after
                cause = f"{gone.cause.rstrip('.')}; without it: {error}"
                if cause != told.cause:
                    _log.warning(
                        "%s cannot do without %s: %s",
                        deployment.key,
                        gone.device,
                        error,
                        exc_info=not isinstance(error, HeteroError),
                    )
                if isinstance(error, DeviceLostError):  # it may be back the next time
                    tried = None
                told = replace(gone, cause=cause)
            if deployment.has_route or time.monotonic() >= until_s:
                deployment.give_up(told)
                return
            time.sleep(_LOOK_S)

    def _add(self, deployment: RayDeployment, made: Remade) -> None:
        """Load another placement of a deployment's model, and have requests take its routes."""
        placement = made.placement
        devices = self._devices.reached(placement.devices, wait=False)
        for name, device in devices.items():
            if not deployment.is_loaded_on(device):
                raise DeviceLostError(
                    f"device {name} is being started again and does not have its stages yet; it "
                    "is tried again soon.",
                    device=name,
                    node=device.descriptor.node,
                    attempt=0,
                )
        num_threads = plan_shares(placement, made.sources, self.devices(wait=False), ())
        before = (deployment.placement, deployment.sources)
        stages, routes = deployment.add(made, devices, num_threads)
        try:
            deployment.open(self._loader.load(deployment, stages), placement.devices)
        except BaseException:
            deployment.take_back(*before)
            raise
        for device in devices.values():
            self._keeper.watch(device)
        deployment.tell(RoutesAdded(time.monotonic(), routes))

    def requests_in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended, as far as they have come."""
        return self._deployments.requests_in_flight()

    def load(self) -> Load:
        """Return what waits and runs now, as far as devices have reported it."""
        devices = {}
        for deployment in self._deployments:
            for name, device in dict(deployment.devices).items():
                status = self._channel.status_of(device.address)
                silent_s = self._channel.silent_s(device.address)
                devices[name] = DeviceLoad(device.descriptor.node, status, silent_s)
        return self._deployments.load(devices)

    def close(self) -> None:
        """Close every deployment and stop what this executor started; again is harmless."""
        with self._lock:
            if self._closed or not self._home.is_current:  # the devices are the parent's still
                return
            self._closed = True
        for deployment in self._deployments:
            deployment.close()
        self._deployments.memory.close()
        self._clock.close()
        self._end_devices()
        self._reception.close()
        self._channel.close()
        self._loader.close()
        self._session.when_gone.remove(self._cluster_gone)
        self._session.close()

    def _end_devices(self) -> None:
        atexit.unregister(self._end_devices)
        if self._home.is_current:
            self._keeper.close()
            if self._session.is_ours:
                self._devices.close()

    def _ask(self, device: ActorDevice, method: str, *arguments: Any) -> Any:
        self._home.require(f"device {device.descriptor.name}")
        if self._closed:  # a call to an actor would have Ray start another cluster by itself
            raise ClusterError("the executor is closed, and its devices with it; make a new one.")
        ref = getattr(device.actor, method).remote(*arguments)
        return self._devices.fetch(device, ref)

    def _find_pool(self, devices: Mapping[str, int], plugins: Sequence[PluginSpec]) -> Pool | None:
        """Return the cluster's pool, if it has what is wanted."""
        pool = find_pool()
        if pool is not None and not pool.serves(devices, plugins):
            _log.warning(
                "the cluster's pool has devices=%s plugins=%s, not devices=%s plugins=%s: devices "
                "of this client's own are started",
                dict(pool.devices),
                list(pool.plugins),
                dict(devices),
                list(plugins),
            )
            return None
        return pool

    def _cluster_gone(self, error: ClusterError) -> None:
        """Fail whatever is in flight, and what is to come."""
        for deployment in self._deployments:
            deployment.cluster_lost(error)
