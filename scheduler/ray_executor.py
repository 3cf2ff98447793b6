"""The Ray executor: finds the cluster's devices, and runs plans on one actor for each of them."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import ray
from ray import exceptions

from devices.errors import ClusterError, DeviceLostError, HeteroError
from devices.model import Model
from devices.program import Payload
from devices.support import Support
from scheduler.deployment import check_sources, import_failed
from scheduler.device_names import resolve_name
from scheduler.device_probe import PluginSpec, merge_nodes, usable
from scheduler.executor import DeviceDescriptor, StageSource
from scheduler.model_parts import split_model
from scheduler.plan import Plan
from scheduler.ray_actor import probe, remote_device
from scheduler.ray_deployment import Arrival, RayDeployment, actor_id, fetch
from scheduler.ray_nodes import ClusterNode, alive_nodes
from scheduler.ray_start import connect
from scheduler.request_runner import deployment_limits
from scheduler.stored_payload import StoredPayload

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Device:
    """A device and its actor, which is started when it is first needed."""

    descriptor: DeviceDescriptor
    actor: Any


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
        probe_timeout_s: float = 120.0,
        load_timeout_s: float = 3600.0,
    ) -> None:
        self._session = connect(address, options=ray_options)
        self._counts = dict(devices or {})
        self._specs = tuple(plugins)
        self._probe_timeout_s = probe_timeout_s
        self._load_timeout_s = load_timeout_s
        self._nodes: dict[str, ClusterNode] = {}
        self._devices: dict[str, _Device] = {}
        self._deployments: list[RayDeployment] = []
        #: Models sent before: their parts, and the reference to their weights.
        self._sent: weakref.WeakKeyDictionary[Model, tuple[list[Any], Any]] = (
            weakref.WeakKeyDictionary()
        )
        self._keys = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self._arrivals: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()
        self._collector = threading.Thread(target=self._collect, name="collector", daemon=True)
        self._collector.start()

    def devices(self) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the cluster, and every plugin that is broken."""
        return tuple(self._descriptors.values())

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Ask a device which nodes of `model` it runs."""
        parts, weights = self._send(model)
        support: Support = self._ask(device, "query", parts, weights, dict(config or {}))
        return support

    def get_property(self, device: str, name: str) -> Any:
        """Return a property's value on a device."""
        return self._ask(device, "get_property", name)

    def deploy(
        self,
        plan: Plan,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        config: Mapping[str, Any] | None = None,
    ) -> RayDeployment:
        """Compile every stage on its device, all at once; see `Executor.deploy`."""
        check_sources(plan, sources)
        limits = deployment_limits(config)
        deployment = RayDeployment(
            f"deployment-{ray.get_runtime_context().get_job_id()}-{next(self._keys)}",
            plan,
            constants or {},
            limits,
            devices={name: self._device(name) for name in plan.devices},
            arrived=self._arrivals.put,
            lost=self._lose,
            timeout_s=self._load_timeout_s,
        )
        try:
            self._load(deployment, sources)
        except BaseException:
            deployment.close()
            raise
        with self._lock:
            self._deployments.append(deployment)
        return deployment

    def _load(self, deployment: RayDeployment, sources: Sequence[StageSource]) -> None:
        """Start every stage's way onto its device, then see to those that must try another."""
        loading = []
        for stage, source in enumerate(sources):
            ways = _ways(source)
            loading.append((stage, source, ways, self._start_load(deployment, stage, source, ways)))
        for stage, source, ways, ref in loading:
            device = self._device(deployment.plan.stages[stage].device)
            while True:
                way = ways.pop(0)
                try:
                    self._fetch(device, ref)
                except HeteroError as error:
                    if way is None or isinstance(error, DeviceLostError | ClusterError):
                        raise
                    if not isinstance(way, StoredPayload):
                        import_failed(deployment.plan, stage, error)
                    ref = self._start_load(deployment, stage, source, ways)
                else:
                    if way is not None:
                        deployment.imported.add(stage)
                    break

    def _start_load(
        self,
        deployment: RayDeployment,
        index: int,
        source: StageSource,
        ways: Sequence[Payload | StoredPayload | None],
    ) -> Any:
        """Have a device load a stage in the first of `ways`; only compiling takes the weights."""
        stage = deployment.plan.stages[index]
        if ways[0] is None:
            parts, weights = self._send(source.model)
        else:
            parts, weights = list(split_model(source.model)._replace(weights={})), {}
        return self._device(stage.device).actor.load_stage.remote(
            deployment.key,
            index,
            parts,
            weights,
            ways[0],
            dict(source.config),
            tuple(stage.outputs.index(t) for t in deployment.wanted[index]),
        )

    def close(self) -> None:
        """Close every deployment and stop what this executor started; again is harmless."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            deployments, self._deployments = self._deployments, []
            devices, self._devices = list(self._devices.values()), {}
        if ray.is_initialized():
            for deployment in deployments:
                deployment.close()
            for device in devices:
                ray.kill(device.actor)
        self._arrivals.put(None)
        if threading.current_thread() is not self._collector:
            self._collector.join(timeout=5.0)
        self._sent.clear()
        self._session.close()

    @cached_property
    def _descriptors(self) -> dict[str, DeviceDescriptor]:
        """Ask every node, all at once; one that does not answer is left out."""
        nodes = alive_nodes()
        remote = ray.remote(probe)
        asked = []
        for node in nodes:
            counts = {**node.counts, **self._counts}
            # A probe that its node's death interrupts is of no use elsewhere: no retries.
            pinned = remote.options(**node.options, max_retries=0)
            asked.append((node, pinned.remote(node.name, self._specs, counts, node.num_cpus)))
        rows = []
        failures = []
        for node, ref in asked:
            try:
                rows.append(ray.get(ref, timeout=self._probe_timeout_s))
                self._nodes[node.name] = node
            except (exceptions.RayError, exceptions.GetTimeoutError) as error:
                _log.warning("node=%s left out, its devices cannot be listed: %s", node.name, error)
                failures.append(f"{node.name}: {error}")
        if not rows:
            raise ClusterError(
                "no node of the cluster could list its devices. Plugins given as classes or as "
                "module:attr must be importable on every node, as must hetero itself.\n"
                + "\n".join(failures)
            )
        return {row.name: row for row in merge_nodes(rows)}

    def _device(self, name: str) -> _Device:
        descriptor = usable(self._descriptors[resolve_name(name, self._descriptors)])
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; make a new one.")
            device = self._devices.get(descriptor.name)
            if device is None:
                options = self._nodes[descriptor.node].options
                actor = remote_device(**options).remote(descriptor, self._specs)
                device = self._devices[descriptor.name] = _Device(descriptor, actor)
            return device

    def _ask(self, name: str, method: str, *arguments: Any) -> Any:
        device = self._device(name)
        return self._fetch(device, getattr(device.actor, method).remote(*arguments))

    def _fetch(self, device: _Device, ref: Any) -> Any:
        try:
            return fetch([ref], device.descriptor, timeout_s=self._load_timeout_s)[0]
        except DeviceLostError as error:
            self._lose(actor_id(device.actor), str(error.__cause__))
            raise

    def _send(self, model: Model) -> tuple[list[Any], Any]:
        """Return a model's parts; the weights are in the object store, once for all devices."""
        if model not in self._sent:
            parts = split_model(model)
            weights = ray.put({n: np.asarray(array) for n, array in parts.weights.items()})
            self._sent[model] = (list(parts._replace(weights={})), weights)
        return self._sent[model]

    def _lose(self, actor: str, cause: str) -> None:
        """Take note that an actor is gone; the next to ask for its device gets a new one."""
        with self._lock:
            gone = [n for n, d in self._devices.items() if actor_id(d.actor) == actor]
            for name in gone:
                del self._devices[name]
            deployments = [d for d in self._deployments if actor in d.actors]
        _log.warning("device=%s actor=%s lost: %s", *gone or ["?"], actor, cause)
        for deployment in deployments:
            deployment.device_lost(actor, cause)

    def _collect(self) -> None:
        while (arrival := self._arrivals.get()) is not None:
            try:
                arrival.deployment.collect(arrival)
            except Exception:  # one request's trouble must not end the others' answers
                _log.exception("request=%s attempt=%s", arrival.request_id, arrival.attempt)


def _ways(source: StageSource) -> list[Payload | StoredPayload | None]:
    """Return what a stage may be loaded from, the cheapest first; None is compilation."""
    given = (source.stored, source.payload)
    return [*(way for way in given if way is not None), None]
