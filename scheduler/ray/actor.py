"""The device actor: a device host inside a Ray actor, and the probe of a node.

Work comes by the default group of threads, compilation and queries by `load`, and everything
that must be answered while the device is busy by `control`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray

from devices.errors import HeteroError, PluginLoadError, PropertyError
from devices.model.model import Model
from devices.plugin.program import ExecutedNode, Payload, Value
from devices.plugin.registry import find_plugin, load_plugins
from devices.plugin.support import Support
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler.device.host import DeviceHost
from scheduler.device.probe import PluginSpec, probe_node
from scheduler.executor import DeviceDescriptor, StageSource
from scheduler.formats.memory_order import packed, unpacked
from scheduler.formats.model_parts import ModelParts, join_model
from scheduler.formats.stored_payload import StoredPayload, fetch_payload

#: Threads of an actor; how many of them compute at once is the stages' affair.
MAX_STREAMS: Final = 8
CONCURRENCY_GROUPS: Final = {"control": 2, "load": 1}


#: What a report lists, in order.
REPORT: Final = tuple(field.name for field in dataclasses.fields(StageRun))


class DeviceActor:
    """One device."""

    def __init__(self, descriptor: DeviceDescriptor, specs: Sequence[PluginSpec]) -> None:
        plugin = find_plugin(load_plugins(specs), descriptor.plugin)
        self._host = DeviceHost(descriptor, plugin)
        #: Names of each stage's outputs that somebody takes.
        self._taken: dict[tuple[str, int], tuple[str, ...]] = {}
        self._streams = threading.Condition()
        #: Stage -> how many requests it may run at once, and how many run.
        self._num_streams: dict[tuple[str, int], int] = {}
        self._num_running: Counter[tuple[str, int]] = Counter()

    @ray.method(concurrency_group="control")
    def ping(self) -> int:
        """Return the process's id."""
        return self._host.ping()

    @ray.method(concurrency_group="load")
    def query(
        self, parts: Sequence[Any], weights: Mapping[str, Any], config: Mapping[str, Any]
    ) -> Support:
        """Ask the plugin which nodes of a model it runs."""
        model = _model(parts, weights)
        return self._host.query(model, config)

    @ray.method(concurrency_group="control")
    def get_property(self, name: str) -> Any:
        """Return a property's value."""
        return self._host.get_property(name)

    @ray.method(concurrency_group="load")
    def load_stage(
        self,
        deployment: str,
        stage: int,
        parts: Sequence[Any],
        weights: Mapping[str, Any],
        payload: Payload | StoredPayload | None,
        config: Mapping[str, Any],
        num_threads: int,
        taken: tuple[str, ...],
    ) -> None:
        """Compile or import a stage, from this node's file if it has one.

        See `DeviceHost.load_stage`.

        Raises PropertyError: more streams than the actor has threads.
        """
        if config.get("NUM_STREAMS", 1) > MAX_STREAMS:
            raise PropertyError(
                f"NUM_STREAMS={config['NUM_STREAMS']}: a device on Ray runs at most {MAX_STREAMS} "
                "requests at once; use more devices.",
                property="NUM_STREAMS",
            )
        if isinstance(payload, StoredPayload):
            payload = fetch_payload(payload)
        model = _model(parts, weights)
        num_streams = self._host.load_stage(
            deployment, stage, StageSource(model, payload, config), num_threads
        )
        self._taken[deployment, stage] = taken
        with self._streams:
            self._num_streams[deployment, stage] = num_streams

    def run_stage(self, call: list[Any], *inputs: Value) -> Any:
        """Run a stage; return the outputs that somebody takes, then the report.

        `call`: the stage, and the request's fields. One list of plain values, as the report is:
            Ray sends those without pickling, and each argument by itself.
        `*inputs`: in port order.
        """
        stage, *fields = call
        request = Request(*fields)
        key = (request.deployment, stage)
        with self._streams:
            # One that nobody waits for any more ends at the host, and frees its thread.
            self._streams.wait_for(
                lambda: (
                    self._has_stream(key)
                    or key not in self._num_streams
                    or self._host.is_cancelled(request)
                )
            )
            self._num_running[key] += 1
        try:
            outputs, run = self._host.run_stage(request, stage, [unpacked(v) for v in inputs])
        finally:
            with self._streams:
                self._num_running[key] -= 1
                if not self._num_running[key]:
                    del self._num_running[key]
                self._streams.notify_all()
        report = [getattr(run, name) for name in REPORT]
        taken = self._taken.get(key, ())
        return (*(packed(outputs[name]) for name in taken), report) if taken else report

    def _has_stream(self, key: tuple[str, int]) -> bool:
        """Whether a stage may run one more: the device runs as many as its widest stage."""
        if self._num_running[key] >= self._num_streams.get(key, 1):
            return False
        widest = max(self._num_streams.values(), default=1)
        return self._num_running.total() < widest

    @ray.method(concurrency_group="control")
    def cancel(self, request: Request) -> None:
        """Stop an attempt where it runs, and keep it from running where it waits."""
        self._host.cancel(request)
        with self._streams:
            self._streams.notify_all()

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
        with self._streams:
            for key in [key for key in self._num_streams if key[0] == deployment]:
                del self._num_streams[key], self._taken[key]
            self._streams.notify_all()
        self._host.unload(deployment)


def _model(parts: Sequence[Any], weights: Mapping[str, Any]) -> Model:
    """Put a model together; weights in the object store are mapped, not copied."""
    names = [name for name, weight in weights.items() if isinstance(weight, ray.ObjectRef)]
    mapped = zip(names, ray.get([weights[name] for name in names]), strict=True)
    return join_model(ModelParts(*parts)._replace(weights={**weights, **dict(mapped)}))


def remote_device(**options: Any) -> Any:
    """Return `DeviceActor` as a Ray actor class that `options` place."""
    # Ray's stubs do not know of concurrency groups.
    remote: Any = ray.remote
    return remote(concurrency_groups=CONCURRENCY_GROUPS)(DeviceActor).options(
        max_concurrency=MAX_STREAMS,
        allow_out_of_order_execution=True,
        max_restarts=0,
        max_task_retries=0,
        # Each call has its story here; to have the cluster keep one as well costs time and memory.
        enable_task_events=False,
        **options,
    )


def probe(
    node: str, specs: Sequence[PluginSpec], counts: Mapping[str, int], num_cores: int | None
) -> tuple[DeviceDescriptor, ...]:
    """Return the devices of the node that this runs on."""
    try:
        return probe_node(node, specs, counts, num_cores)
    except HeteroError:
        raise
    except Exception as error:
        raise PluginLoadError(
            f"node {node}: its devices cannot be listed: {type(error).__name__}: {error}",
            device=node,
        ) from error
