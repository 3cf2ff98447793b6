"""Device actor, a device loop inside a Ray actor, and the task that lists a node's devices.

Requests arrive through the channel, never through Ray. Compilation and queries use the concurrency
group `load`. Calls that must return while a compilation runs use the group `control`.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import ray

from hetero.devices.errors import HeteroError, PluginLoadError
from hetero.devices.model.model import Model
from hetero.devices.plugin.program import ExecutedNode, Payload, Value
from hetero.devices.plugin.registry import find_plugin, load_plugins
from hetero.devices.plugin.support import Support
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.device.discovery import PluginSpec, probe_node
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.device.workers import PumpingWorkers
from hetero.scheduler.formats.model_parts import ModelParts, join_model
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.formats.stored_payload import StoredPayload, fetch_payload
from hetero.scheduler.processes.memory_use import MemoryUse, resident_memory
from hetero.scheduler.ray.interpreters import probe_elsewhere, split_specs
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.events import StageOpened
from hetero.scheduler.types.isolation import RunBounds, RunResult

_log = logging.getLogger(__name__)

#: Seconds that a device keeps the stages of a silent client: a broken link may recover.
_LEASE_S: Final = 60.0
#: Seconds of silence after which the device stops sending to a peer. Clients detect lost devices
#: sooner; this limit is longer because a client that is only busy must not miss results.
_SILENT_S: Final = 10.0
CONCURRENCY_GROUPS: Final = {"control": 2, "load": 1, "life": 1}


class DeviceActor:
    """Ray actor that runs one device.

    `specs`: plugins in addition to the installed ones; ignored if the device's own plugin runs in
        another interpreter.
    `host`: the node's address for other nodes; None if the cluster has one node.
    `secret`: the shared secret of the cluster's channels, if there are other nodes.
    `outlives`: whether the actor outlives the client that started it.
    """

    def __init__(
        self,
        descriptor: DeviceDescriptor,
        specs: Sequence[PluginSpec],
        host: str | None,
        secret: bytes | None,
        outlives: bool,
    ) -> None:
        # Ray's handler waits for the end of all tasks, and `wait_for_end` never ends.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        own = descriptor.source
        entries = (
            load_plugins([str(own.without_interpreter)], False)
            if own
            else load_plugins(specs, only=descriptor.plugin)
        )
        self._host = DeviceHost(descriptor, find_plugin(entries, descriptor.plugin))
        self._workers = PumpingWorkers(descriptor.name)
        self._outlives = outlives
        self._num_leases_ended = 0

        def connect(receive: Receiver) -> DirectChannel:
            self._channel = DirectChannel(
                receive,
                host=host,
                secret=secret,
                timeout_s=_SILENT_S,
                counts_waits=True,
                status=self._status,
                on_suspected=lambda client, silent_s: self._end_lease_after(client, _LEASE_S),
                on_ended=lambda client: self._end_lease_after(client, 0.0),
            )
            return self._channel

        self._loop = DeviceLoop(self._host, connect, self._workers.start)
        self._workers.serve(self._channel)
        #: Resident memory without a model.
        self._base_nbytes = (resident_memory() or (0, 0))[0]

    def _end_lease_after(self, client: str, lease_s: float) -> None:
        """Unload a client's stages after `lease_s`, unless the client returns before."""
        timer = threading.Timer(lease_s, self._end_lease, (client, lease_s))
        timer.daemon = True
        timer.start()

    def _end_lease(self, client: str, lease_s: float) -> None:
        if not lease_s and not self._outlives:
            # Ray would also end the process, but leave files behind.
            self._channel.close()
            os._exit(0)
        silent_s = self._channel.silent_s(client)
        if silent_s is None or silent_s >= lease_s:  # otherwise it recovered
            self._num_leases_ended += 1
            _log.warning("client %s is gone; its stages and tensors were removed", client)
            self._loop.client_gone(client)
            self._channel.unwatch(client)  # also closes its descriptors
            self._workers.run_at_once(self._loop.num_streams)

    def _status(self) -> dict[str, float]:
        """Return the device's status; empty before the device loop exists."""
        if not hasattr(self, "_loop"):
            return {}
        return {**self._loop.status(), "leases_ended": self._num_leases_ended}

    @ray.method(concurrency_group="life")
    def wait_for_end(self) -> None:
        """Never return; a caller that waits for the result is notified when the process ends."""
        threading.Event().wait()

    @ray.method(concurrency_group="control")
    def release_resources(self) -> None:
        """Close sockets and shared memory, which would remain if Ray killed the process.

        The device cannot be used afterwards.
        """
        self._workers.keep(0)  # workers would spin: a closed channel does not block
        self._channel.close()

    @ray.method(concurrency_group="control")
    def address(self) -> str:
        """Return the address of the device's channel."""
        return self._loop.address

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Return the process id."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def memory_use(self) -> MemoryUse | None:
        """Return the memory of this process; None if the system does not report it."""
        memory = resident_memory()
        return memory and MemoryUse(self._base_nbytes, *memory)

    @ray.method(concurrency_group="load")
    def query(self, parts: ModelParts, config: Mapping[str, Any]) -> Support:
        """Query the plugin for the nodes of a model that it supports."""
        return self._host.query(_model(parts), config)

    @ray.method(concurrency_group="load")
    def run_isolated(
        self,
        parts: ModelParts,
        config: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Value]],
        bounds: RunBounds,
    ) -> list[RunResult]:
        """Run a model on the device in a process of its own; see `DeviceHost.run_isolated`."""
        return self._host.run_isolated(_model(parts), config, inputs, bounds)

    @ray.method(concurrency_group="control")
    def get_property(self, name: str) -> Any:
        """Return the value of a property."""
        return self._host.get_property(name)

    @ray.method(concurrency_group="load")
    def load_stage(
        self,
        deployment: str,
        stage: int,
        parts: ModelParts,
        payload: Payload | StoredPayload | None,
        config: Mapping[str, Any],
        num_threads: int,
        constant_inputs: Mapping[str, Any],
    ) -> int:
        """Compile or import a stage, from a file of this node if there is one.

        See `DeviceHost.load_stage`.
        """
        if isinstance(payload, StoredPayload):
            payload = fetch_payload(payload)
        source = StageSource(_model(parts), payload, config)
        return self._host.load_stage(
            deployment, stage, source, num_threads, _fetch_weights(constant_inputs)
        )

    @ray.method(concurrency_group="load")
    def make(self, deployment: str, stage: int) -> dict[str, Value]:
        """Run a constant stage and return its outputs."""
        return self._host.make(deployment, stage)

    @ray.method(concurrency_group="control")
    def status(self) -> dict[str, Any]:
        """Return the process id, the number of clients, and the load of the device."""
        return {"pid": os.getpid(), "clients": self._loop.num_clients, **self._loop.status()}

    @ray.method(concurrency_group="control")
    def has_all(self, deployments: Sequence[str]) -> bool:
        """Return whether the device has stages of every listed deployment."""
        return self._host.has_all(deployments)

    @ray.method(concurrency_group="control")
    def serve(self, client: str) -> None:
        """Accept resident tensors of a client until the client is gone."""
        self._channel.watch(client, polls=False)

    @ray.method(concurrency_group="control")
    def open_stages(self, stages: Sequence[StageOpened]) -> None:
        """Accept tasks for loaded stages; see `DeviceLoop.open_stage`."""
        for stage_message in stages:
            self._loop.open_stage(stage_message)
            self._channel.watch(stage_message.client, polls=False)
        self._workers.run_at_once(self._loop.num_streams)

    @ray.method(concurrency_group="control")
    def executed_nodes(self, deployment: str, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        return self._host.executed_nodes(deployment, stage)

    @ray.method(concurrency_group="load")
    def export(self, deployment: str, stage: int) -> Payload:
        """Return a compiled stage as a payload."""
        return self._host.export(deployment, stage)

    @ray.method(concurrency_group="load")
    def unload(self, deployment: str) -> None:
        """Unload the stages of a deployment."""
        self._loop.close_deployment(deployment)
        self._workers.run_at_once(self._loop.num_streams)


def _model(parts: ModelParts) -> Model:
    return join_model(parts._replace(weights=_fetch_weights(parts.weights)))


def _fetch_weights(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return weights as arrays; those in the object store are mapped, not copied."""
    names = [name for name, weight in weights.items() if isinstance(weight, ray.ObjectRef)]
    mapped = zip(names, ray.get([weights[name] for name in names]), strict=True)
    return {**weights, **dict(mapped)}


def remote_device(**options: Any) -> Any:
    """Return `DeviceActor` as a Ray actor class with placement `options`."""
    # Ray's type stubs lack concurrency groups.
    remote: Any = ray.remote
    return remote(concurrency_groups=CONCURRENCY_GROUPS)(DeviceActor).options(
        max_restarts=0,
        max_task_retries=0,
        # Clients record each call; a second record in the cluster would cost time and memory.
        enable_task_events=False,
        **options,
    )


def probe(
    node: str, specs: Sequence[PluginSpec], counts: Mapping[str, int], num_cores: int | None
) -> tuple[DeviceDescriptor, ...]:
    """Return the devices of this node; plugins of other interpreters override equal names."""
    own_specs, other_specs = split_specs(specs)
    try:
        rows = probe_node(node, own_specs, counts, num_cores)
        others = probe_elsewhere(node, other_specs, counts, num_cores) if other_specs else []
        overrides = {row.plugin for row in others}
        return (*(row for row in rows if row.plugin not in overrides), *others)
    except HeteroError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"node {node}: its devices cannot be listed: {type(error).__name__}: {error}",
            device=node,
        ) from error
