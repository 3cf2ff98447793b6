"""The devices of a Ray cluster: what its nodes offer now, and an actor for each that is used."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import ray
from ray import exceptions

from devices.errors import ClusterError, DeviceLostError, HeteroError
from scheduler.device_names import resolve_name, split_name
from scheduler.device_probe import PluginSpec, merge_nodes, usable
from scheduler.executor import DeviceDescriptor
from scheduler.ray_actor import probe, remote_device
from scheduler.ray_nodes import ClusterNode, alive_nodes

_log = logging.getLogger(__name__)
#: How often a wait for an actor looks whether its node is still there.
_LOOK_S: Final = 2.0


@dataclass(slots=True)
class ActorDevice:
    """A device, its node's Ray id, and its actor."""

    descriptor: DeviceDescriptor
    node_id: str
    actor: Any

    @property
    def actor_id(self) -> str:
        """The actor's id, as Ray's errors give it."""
        found: str = self.actor._actor_id.hex()
        return found


class RayDevices:
    """The table of devices.

    A device keeps its name as long as its node lives; devices of nodes that join later are
    numbered after those that were there.

    Parameters
    ----------
    specs : sequence of str or type
        Plugins besides the installed ones.
    counts : mapping of str to int
        Plugin -> logical devices on each node.
    probe_timeout_s : float
        Seconds that a node may take to list its devices.
    """

    def __init__(
        self, specs: Sequence[PluginSpec], counts: Mapping[str, int], probe_timeout_s: float
    ) -> None:
        self._specs = tuple(specs)
        self._counts = dict(counts)
        self._probe_timeout_s = probe_timeout_s
        #: Nodes that were asked and are alive, by Ray's id.
        self._nodes: dict[str, ClusterNode] = {}
        #: Name -> descriptor and the node's id, in order.
        self._rows: dict[str, tuple[DeviceDescriptor, str]] = {}
        self._actors: dict[str, ActorDevice] = {}
        self._closed = False
        self._lock = threading.RLock()

    def descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the nodes that are alive, asking those that are new."""
        with self._lock:
            self._refresh()
            return tuple(descriptor for descriptor, _ in self._rows.values())

    def device(self, name: str) -> ActorDevice:
        """Return a device with its actor, which is started if there is none.

        Raises
        ------
        UnknownDeviceError
            No such device, or its node has left.
        DeviceError
            Its plugin is broken.
        """
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; make a new one.")
            known = self._actors.get(name)
            if known is not None:
                return known
            self._refresh()
            descriptor, node_id = self._rows[resolve_name(name, self._rows)]
            found = self._actors.get(usable(descriptor).name)
            if found is None:
                options = self._nodes[node_id].options
                actor = remote_device(**options).remote(descriptor, self._specs)
                found = self._actors[descriptor.name] = ActorDevice(descriptor, node_id, actor)
            return found

    def forget(self, actor_id: str) -> None:
        """Let go of an actor that is gone; who asks for its device next gets a new one."""
        with self._lock:
            for name in [n for n, d in self._actors.items() if d.actor_id == actor_id]:
                del self._actors[name]

    def fetch(self, device: ActorDevice, ref: Any, timeout_s: float) -> Any:
        """Return what a device's actor answered.

        Raises
        ------
        HeteroError
            What it raised; DeviceLostError if it or its node is gone, ClusterError if it says
            nothing.
        """
        descriptor = device.descriptor
        where = f"device {descriptor.name} on node {descriptor.node}"
        waited_s = 0.0
        while not ray.wait([ref], timeout=_LOOK_S)[0]:
            waited_s += _LOOK_S
            if waited_s >= timeout_s:
                raise ClusterError(
                    f"{where} did not answer within {timeout_s:.0f} s; `ray status` shows whether "
                    "its node can take it.",
                    device=descriptor.name,
                )
            if device.node_id not in {node.id for node in alive_nodes()}:
                raise _lost(descriptor, "its node has left the cluster")
        try:
            return ray.get(ref)
        except exceptions.RayActorError as error:
            raise _lost(descriptor, first_line(error)) from error
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, HeteroError):
                raise error.cause from None
            raise ClusterError(f"{where}: {error}", device=descriptor.name) from error

    def close(self) -> None:
        """Stop every actor."""
        with self._lock:
            self._closed = True
            actors, self._actors = list(self._actors.values()), {}
        for device in actors:
            ray.kill(device.actor)

    def _refresh(self) -> None:
        alive = alive_nodes()
        gone = self._nodes.keys() - {node.id for node in alive}
        new = [node for node in alive if node.id not in self._nodes]
        for node_id in gone:
            del self._nodes[node_id]
        for name in [n for n, (_, node_id) in self._rows.items() if node_id in gone]:
            del self._rows[name]
            self._actors.pop(name, None)
        if new:
            self._add(new)

    def _add(self, nodes: Sequence[ClusterNode]) -> None:
        """Ask nodes for their devices, all at once; one that does not answer is left out."""
        asked = []
        for node in nodes:
            counts = {**node.counts, **self._counts}
            # A probe that its node's death interrupts is of no use elsewhere: no retries.
            pinned = ray.remote(probe).options(**node.options, max_retries=0)
            ref = pinned.remote(node.name, self._specs, counts, node.num_cpus)
            asked.append((node, ref))
        rows, failures = [], []
        for node, ref in asked:
            self._nodes[node.id] = node
            try:
                rows.append(ray.get(ref, timeout=self._probe_timeout_s))
            except (exceptions.RayError, exceptions.GetTimeoutError) as error:
                _log.warning("node=%s left out, its devices cannot be listed: %s", node.name, error)
                failures.append(f"{node.name}: {error}")
        if not rows and not self._rows:
            raise ClusterError(
                "no node of the cluster could list its devices. hetero, and plugins given as "
                "module:attr, must be importable on every node.\n" + "\n".join(failures)
            )
        ids = {node.name: node.id for node in nodes}
        for descriptor in merge_nodes(rows):
            placed = replace(descriptor, name=self._free_name(descriptor))
            if placed.error is None or placed.name not in self._rows:
                self._rows[placed.name] = (placed, ids[descriptor.node])

    def _free_name(self, descriptor: DeviceDescriptor) -> str:
        """Return the device's name among the new ones, numbered on if others have it."""
        taken = [split_name(name)[1] for name, (row, _) in self._rows.items()
                 if row.plugin == descriptor.plugin and row.error is None]  # fmt: skip
        if not taken or descriptor.error is not None:
            return descriptor.name
        return f"{descriptor.plugin}.{1 + max(map(int, taken))}"


#: Takes the id of an actor that is gone, and the cause.
OnLost = Callable[[str, str], None]


def _lost(descriptor: DeviceDescriptor, cause: str) -> DeviceLostError:
    return DeviceLostError(
        f"device {descriptor.name} on node {descriptor.node} is gone: {cause}. Ask again to "
        "restart it, if its node is alive.",
        device=descriptor.name,
        node=descriptor.node,
        attempt=0,
        cause=cause,
    )


def first_line(error: BaseException) -> str:
    """Return an error's first line, or its type where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__
