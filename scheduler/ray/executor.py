"""The Ray executor: finds the cluster's devices, and runs plans on one actor for each of them."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import ray
from ray import exceptions

from devices.errors import ClusterError, DeviceLostError, HeteroError
from devices.model.model import Constant, Model
from devices.plugin.program import Payload
from devices.plugin.support import Support
from scheduler.channels.direct import DirectChannel
from scheduler.channels.shared import SharedChannel
from scheduler.client.deployment import Deployments, check_sources, import_failed
from scheduler.client.machine import Limits
from scheduler.device.probe import PluginSpec
from scheduler.executor import DeviceDescriptor, StageSource
from scheduler.formats.model_parts import outline, split_model
from scheduler.formats.stored_payload import StoredPayload
from scheduler.home_process import HomeProcess
from scheduler.observer import Observer
from scheduler.plan import Plan, Stage
from scheduler.ray.deployment import RayDeployment
from scheduler.ray.devices import ActorDevice, RayDevices, why_lost
from scheduler.ray.start import connect
from scheduler.thread_shares import plan_shares

_log = logging.getLogger(__name__)

#: Weights over this size go to the object store one by one, once for all stages that have them.
_SHARED_NBYTES: Final = 100_000
#: Seconds after which a wait for messages is begun again.
_LOOK_S: Final = 0.5
#: Seconds between two tries to start a device that was lost.
_AGAIN_S: Final = 0.5


class RayExecutor:
    """Devices of a Ray cluster.

    Parameters
    ----------
    address : str, optional
        A running cluster's ``host:port``; without one a local Ray is started, and stopped by
        `close`. A Ray that this process is in already is used, and left running.
    devices : mapping of str to int
        Plugin -> how many logical devices each node offers; before that the node's own labels
        ``hetero/PLUGIN=COUNT``, and before those one for each of the plugin's ids.
    plugins : sequence of str or type
        Plugins besides the installed ones: ``module:attr`` that every node can import, or
        classes, which are sent along.
    ray_options : mapping
        More of `ray.init`'s arguments for a local Ray.
    observers : sequence of Observer
        Who is told of each request that ends; its owner may add and remove.
    probe_timeout_s, load_timeout_s : float
        Seconds that a node may take to list its devices, and a device to compile its stages.

    Raises
    ------
    ClusterError
        Ray could not start, or nothing answers at `address`.
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
    ) -> None:
        self._session = connect(address, options=ray_options)
        #: Work for the keeper's thread: what is to be done about actors that end.
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._devices = RayDevices(
            self._session, plugins, devices or {}, probe_timeout_s, self._actor_ended
        )
        self._load_timeout_s = load_timeout_s
        self._deployments: Deployments[RayDeployment] = Deployments(observers)
        #: References to weights in the object store, as long as somebody here has the weight.
        self._weights: weakref.WeakKeyDictionary[Constant, Any] = weakref.WeakKeyDictionary()
        #: What of a model goes to devices, as long as somebody here has the model.
        self._packed: weakref.WeakKeyDictionary[Model, tuple[list[Any], dict[str, Any]]] = (
            weakref.WeakKeyDictionary()
        )
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._home = HomeProcess()
        self._closed = False
        self._shared = SharedChannel()
        self._channel = DirectChannel(self._shared.receive, host=self._host())
        self._shared.channel = self._channel
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("receiver", self._receive), ("keeper", self._keep))
        ]
        for thread in self._threads:
            thread.start()
        self._session.when_gone.append(self._cluster_gone)

    def devices(self) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the cluster, and every plugin that is broken."""
        return self._devices.descriptors()

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Ask a device which nodes of `model` it runs."""
        found = self._devices.device(device)
        support: Support = self._ask(found, "query", *self._pack(model), dict(config or {}))
        return support

    def get_property(self, device: str, name: str) -> Any:
        """Return a property's value on a device."""
        return self._ask(self._devices.device(device), "get_property", name)

    def deploy(
        self,
        plan: Plan,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        limits: Limits | None = None,
        company: Collection[str] = (),
    ) -> RayDeployment:
        """Compile every stage on its device, all at once; see `Executor.deploy`."""
        check_sources(plan, sources)
        key = f"deployment-{ray.get_runtime_context().get_job_id()}-{next(self._keys)}"
        deployment = RayDeployment(
            key,
            plan,
            constants or {},
            limits or Limits(),
            self._deployments,
            devices=self._reached([self._devices.device(name) for name in plan.devices]),
            sources=sources,
            num_threads=plan_shares(plan, sources, self.devices(), company),
            connect=partial(self._shared.connect, key),
            clock_offset_s=self._channel.clock_offset_s,
            session=self._session,
            ask=self._ask,
        )
        try:
            deployment.open(self._load(deployment, plan.stages))
        except BaseException:
            deployment.close()
            raise
        return deployment

    def _reached(self, devices: Sequence[ActorDevice]) -> dict[str, ActorDevice]:
        """Return devices by name, once each has said where its channel is reached."""
        refs = [(d, d.actor.address.remote()) for d in devices if not d.address]
        for device, ref in refs:
            device.address = self._fetch(device, ref)
        return {device.descriptor.name: device for device in devices}

    def _load(self, deployment: RayDeployment, stages: Sequence[Stage]) -> dict[int, int]:
        """Start every stage's way onto its device, then see to those that must try another.

        Return how many requests each runs at once.
        """

        def start(stage: Stage, way: Payload | StoredPayload | None) -> Any:
            source = deployment.sources[stage.index]
            if way is None:
                parts, weights = self._pack(source.model)
            else:  # neither nodes nor weights: an imported model may not have been read here
                ports = (source.model.inputs, source.model.outputs)
                parts, weights = list(outline(source.model.name, stage.node_names, *ports)), {}
            return deployment.device_of(stage.index).actor.load_stage.remote(
                deployment.key,
                stage.index,
                parts,
                weights,
                way,
                dict(source.config),
                deployment.num_threads[stage.device],
            )

        num_streams: dict[int, int] = {}
        ways = [_ways(deployment.sources[stage.index]) for stage in stages]
        refs = [start(stage, mine[0]) for stage, mine in zip(stages, ways, strict=True)]
        for stage, mine, ref in zip(stages, ways, refs, strict=True):
            for way, after in zip(mine, [*mine[1:], None], strict=True):
                try:
                    streams = self._fetch(deployment.device_of(stage.index), ref)
                except HeteroError as error:
                    if way is None or isinstance(error, DeviceLostError | ClusterError):
                        raise
                    if not isinstance(way, StoredPayload):
                        import_failed(deployment.plan, stage.index, error)
                    ref = start(stage, after)
                else:
                    num_streams[stage.index] = streams
                    if way is not None:
                        deployment.imported.add(stage.index)
                    break
        return num_streams

    def close(self) -> None:
        """Close every deployment and stop what this executor started; again is harmless."""
        with self._lock:
            if self._closed or not self._home.is_here:  # the devices are the parent's still
                return
            self._closed = True
        for deployment in self._deployments:
            deployment.close()
        if self._session.is_ours:
            self._devices.close()
        self._orders.put(None)
        self._channel.wake()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=5.0)
        self._channel.close()
        self._packed.clear()
        self._weights.clear()
        self._session.when_gone.remove(self._cluster_gone)
        self._session.close()

    def _ask(self, device: ActorDevice, method: str, *arguments: Any) -> Any:
        self._home.require(f"device {device.descriptor.name}")
        if self._closed:  # a call to an actor would have Ray start another cluster by itself
            raise ClusterError("the executor is closed, and its devices with it; make a new one.")
        return self._fetch(device, getattr(device.actor, method).remote(*arguments))

    def _fetch(self, device: ActorDevice, ref: Any) -> Any:
        try:
            return self._devices.fetch(device, ref, self._load_timeout_s)
        except DeviceLostError as error:
            self._lose(device.actor_id, error.data.get("cause", error.message))
            raise

    def _pack(self, model: Model) -> tuple[list[Any], dict[str, Any]]:
        """Return a model's parts and its weights: small ones as they are, others as references."""
        if model not in self._packed:
            parts = split_model(model)
            weights = {name: self._weight(model.constants[name]) for name in parts.weights}
            self._packed[model] = list(parts._replace(weights={})), weights
        return self._packed[model]

    def _weight(self, constant: Constant) -> Any:
        if constant.array.nbytes <= _SHARED_NBYTES:
            return np.asarray(constant.array)
        if constant not in self._weights:
            self._weights[constant] = ray.put(np.asarray(constant.array))
        return self._weights[constant]

    def _host(self) -> str | None:
        """Return this node's address where other nodes reach it, or None where there are none."""
        if self._session.is_local:
            return None
        host: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's gap
        return host

    def _actor_ended(self, device: ActorDevice, error: BaseException) -> None:
        """Have the keeper find out what an actor's end means; called in a thread of Ray's."""
        if isinstance(error, exceptions.ActorUnavailableError):
            self._orders.put(partial(self._suspect, device))
        else:
            self._orders.put(partial(self._lose, device.actor_id, why_lost(error)))

    def _lose(self, actor_id: str, cause: str) -> None:
        """Take note that an actor is gone, and have its device start again."""
        name = self._devices.forget(actor_id)
        deployments = [d for d in self._deployments if d.is_on(actor_id)]
        if self._closed or self._session.is_left or not deployments:
            return  # actors end with the Ray that this process leaves
        _log.warning("actor=%s lost, with %s deployments: %s", actor_id, len(deployments), cause)
        for deployment in deployments:
            deployment.device_lost(actor_id, cause)
        if name is not None:
            threading.Thread(target=self._restore, args=(name,), name=f"{name}-return").start()

    def _restore(self, name: str) -> None:
        """Start a lost device again, wherever it is by then, and load its stages."""
        while deployments := [d for d in self._deployments if name in d.lost]:
            try:
                device = self._reached([self._devices.device(name)])[name]
                for deployment in deployments:
                    stages = [deployment.plan.stages[i] for i in deployment.stages_on(name)]
                    deployment.devices[name] = device
                    deployment.device_returned(name, device, self._load(deployment, stages))
            except HeteroError as error:
                if self._closed or self._session.is_left:
                    return
                _log.info("device=%s is not back: %s", name, error)
                time.sleep(_AGAIN_S)

    def _suspect(self, device: ActorDevice) -> None:
        """Find out whether an actor that could not be reached is gone, or only was cut off."""
        if self._devices.answers(device):
            self._devices.watch(device)  # it has ended, or it has not: that tells
            return
        try:
            self._session.check_head()
        except ClusterError as error:
            self._cluster_gone(error)
        else:
            self._lose(device.actor_id, "its node does not answer")

    def _cluster_gone(self, error: ClusterError) -> None:
        """Fail whatever is in flight, and what is to come."""
        for deployment in self._deployments:
            deployment.cluster_lost(error)

    def _receive(self) -> None:
        """Hand in what devices send, in a thread of its own."""
        while not self._closed:
            try:
                self._channel.pump(_LOOK_S)
            except Exception:  # one request's trouble must not end the others' answers
                _log.exception("a message could not be taken in")

    def _keep(self) -> None:
        while (order := self._orders.get()) is not None:
            try:
                order()
            except Exception:
                _log.exception("an actor's end could not be dealt with")


def _ways(source: StageSource) -> list[Payload | StoredPayload | None]:
    """Return what a stage may be loaded from, the cheapest first; None is compilation."""
    # Places in files are this node's.
    payload = None if source.payload is None else replace(source.payload, places={})
    given = (source.stored, payload)
    return [*(way for way in given if way is not None), None]
