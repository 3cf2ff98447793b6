"""The device actor: a device loop inside a Ray actor, and the probe of a node.

Requests come by the channel, and never through Ray. Compilation and queries come by its group of
threads `load`, and what must be answered while those take their time by `control`.
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
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.device.probe import PluginSpec, probe_node
from hetero.scheduler.device.workers import PumpingWorkers
from hetero.scheduler.formats.model_parts import ModelParts, join_model
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.formats.stored_payload import StoredPayload, fetch_payload
from hetero.scheduler.ray.interpreters import probe_elsewhere, split_specs
from hetero.scheduler.vocabulary.events import StageOpened
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)

#: Seconds that the stages of a client that is not heard are kept: a link may heal.
_LEASE_S: Final = 60.0
#: Seconds after which nothing more is sent to who is not heard. Which device is lost is for clients
#: to say, sooner; a client that is only busy must not miss answers.
_SILENT_S: Final = 10.0
CONCURRENCY_GROUPS: Final = {"control": 2, "load": 1, "life": 1}


class DeviceActor:
    """One device.

    `specs`: plugins besides the installed ones, where its own is not of another interpreter.
    `host`: the node's address where other nodes reach it, or None where there are none.
    `secret`: what only the cluster's channels know, there.
    `outlives`: whether it goes on without the client that started it.
    """

    def __init__(
        self,
        descriptor: DeviceDescriptor,
        specs: Sequence[PluginSpec],
        host: str | None,
        secret: bytes | None,
        outlives: bool,
    ) -> None:
        # Ray would end the process once its tasks have: `stay` never does.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        own = descriptor.source
        entries = (
            load_plugins([str(own.without_interpreter)], False) if own else load_plugins(specs)
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
                status=self._status,
                on_suspected=lambda client, silent_s: self._end_lease_after(client, _LEASE_S),
                on_ended=lambda client: self._end_lease_after(client, 0.0),
            )
            return self._channel

        self._loop = DeviceLoop(self._host, connect, self._workers.start)
        self._workers.serve(self._channel)

    def _end_lease_after(self, client: str, lease_s: float) -> None:
        """Wait whether a client comes back; one that has ended does not."""
        timer = threading.Timer(lease_s, self._end_lease, (client, lease_s))
        timer.daemon = True
        timer.start()

    def _end_lease(self, client: str, lease_s: float) -> None:
        if not lease_s and not self._outlives:
            # Ray would do it, and leave files behind.
            self._channel.close()
            os._exit(0)
        silent_s = self._channel.silent_s(client)
        if silent_s is None or silent_s >= lease_s:  # else it was live, and is suspected once more
            self._num_leases_ended += 1
            _log.warning("client %s is gone, and what it had here", client)
            self._loop.client_gone(client)
            self._channel.unwatch(client)  # which has it forgotten, and its descriptors closed
            self._workers.run_at_once(self._loop.num_streams)

    def _status(self) -> dict[str, float]:
        """Return the channel's status, which may be asked for early."""
        if not hasattr(self, "_loop"):
            return {}
        return {**self._loop.status(), "leases_ended": self._num_leases_ended}

    @ray.method(concurrency_group="life")
    def stay(self) -> None:
        """Never return: whoever waits for it hears when the process ends."""
        threading.Event().wait()

    @ray.method(concurrency_group="control")
    def leave(self) -> None:
        """Let go of sockets and shared memory: nothing removes those of a process that is killed.

        The device is of no use afterwards.
        """
        self._workers.keep(0)  # a closed channel is not waited for: they would spin
        self._channel.close()

    @ray.method(concurrency_group="control")
    def address(self) -> str:
        """Return where the device's channel is reached."""
        return self._loop.address

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Return the process's id."""
        return os.getpid()

    @ray.method(concurrency_group="load")
    def query(self, parts: ModelParts, config: Mapping[str, Any]) -> Support:
        """Ask the plugin which nodes of a model it runs."""
        return self._host.query(_model(parts), config)

    @ray.method(concurrency_group="control")
    def get_property(self, name: str) -> Any:
        """Return a property's value."""
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
        given: Mapping[str, Any],
    ) -> int:
        """Compile or import a stage, from this node's file if it has one.

        See `DeviceHost.load_stage`.
        """
        if isinstance(payload, StoredPayload):
            payload = fetch_payload(payload)
        source = StageSource(_model(parts), payload, config)
        return self._host.load_stage(deployment, stage, source, num_threads, _fetched(given))

    @ray.method(concurrency_group="load")
    def make(self, deployment: str, stage: int) -> dict[str, Value]:
        """Return what a stage makes for every request."""
        return self._host.make(deployment, stage)

    @ray.method(concurrency_group="control")
    def status(self) -> dict[str, Any]:
        """Return the process's id, what it has in hand, and for how many clients."""
        return {"pid": os.getpid(), "clients": self._loop.num_clients, **self._loop.status()}

    @ray.method(concurrency_group="control")
    def has_all(self, deployments: Sequence[str]) -> bool:
        """Return whether deployments have stages here."""
        return self._host.has_all(deployments)

    @ray.method(concurrency_group="control")
    def serve(self, client: str) -> None:
        """Keep tensors of a client until it is gone."""
        self._channel.watch(client, polls=False)

    @ray.method(concurrency_group="control")
    def open_stages(self, stages: Sequence[StageOpened]) -> None:
        """Take tasks of loaded stages; see `DeviceLoop.open_stage`."""
        for opened in stages:
            self._loop.open_stage(opened)
            self._channel.watch(opened.client, polls=False)
        self._workers.run_at_once(self._loop.num_streams)

    @ray.method(concurrency_group="control")
    def executed_nodes(self, deployment: str, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model."""
        return self._host.executed_nodes(deployment, stage)

    @ray.method(concurrency_group="load")
    def export(self, deployment: str, stage: int) -> Payload:
        """Return the device's own form of a stage."""
        return self._host.export(deployment, stage)

    @ray.method(concurrency_group="load")
    def unload(self, deployment: str) -> None:
        """Let go of a deployment's stages."""
        self._loop.close_deployment(deployment)
        self._workers.run_at_once(self._loop.num_streams)


def _model(parts: ModelParts) -> Model:
    return join_model(parts._replace(weights=_fetched(parts.weights)))


def _fetched(weights: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return arrays; those in the object store are mapped, not copied."""
    names = [name for name, weight in weights.items() if isinstance(weight, ray.ObjectRef)]
    mapped = zip(names, ray.get([weights[name] for name in names]), strict=True)
    return {**weights, **dict(mapped)}


def remote_device(**options: Any) -> Any:
    """Return `DeviceActor` as a Ray actor class that `options` place."""
    # Ray's stubs do not know of concurrency groups.
    remote: Any = ray.remote
    return remote(concurrency_groups=CONCURRENCY_GROUPS)(DeviceActor).options(
        max_restarts=0,
        max_task_retries=0,
        # Each call has its story here; to have the cluster keep one as well costs time and memory.
        enable_task_events=False,
        **options,
    )


def probe(
    node: str, specs: Sequence[PluginSpec], counts: Mapping[str, int], num_cores: int | None
) -> tuple[DeviceDescriptor, ...]:
    """Return the devices of the node that this runs on; another interpreter's win a name."""
    here, elsewhere = split_specs(specs)
    try:
        rows = probe_node(node, here, counts, num_cores)
        others = probe_elsewhere(node, elsewhere, counts, num_cores)
        taken = {row.plugin for row in others}
        return (*(row for row in rows if row.plugin not in taken), *others)
    except HeteroError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"node {node}: its devices cannot be listed: {type(error).__name__}: {error}",
            device=node,
        ) from error
