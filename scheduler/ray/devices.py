"""Devices of a Ray cluster; each device in use has one actor."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import exceptions

from hetero.devices.errors import (
    ClusterError,
    DeviceLostError,
    DeviceMemoryError,
    HeteroError,
)
from hetero.scheduler.device.discovery import PluginSpec, usable
from hetero.scheduler.device.host import MEMORY_ADVICE
from hetero.scheduler.ray.actor import remote_device
from hetero.scheduler.ray.interpreters import interpreter_options
from hetero.scheduler.ray.node_discovery import NodeDiscovery, Rows, first_line
from hetero.scheduler.ray.nodes import ClusterNode, cluster_secret
from hetero.scheduler.ray.pool import Pool, end_devices
from hetero.scheduler.ray.session import RaySession
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import resolve_name

#: Seconds between two checks of a node while waiting for a result from its device.
_WAIT_S: Final = 1.0
#: Time limit for Ray to report why a process has ended, in seconds.
_REASON_S: Final = 1.0
#: Escape sequences for terminal colours.
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
#: An actor's exception for an allocation that fails, in the text of Ray's error.
_MEMORY_ERROR: Final = re.compile(r"MemoryError|std::bad_alloc|Cannot allocate memory")


@dataclass(slots=True)
class DeviceHandle:
    """Handle of a device: descriptor, Ray id of its node, and actor."""

    descriptor: DeviceDescriptor
    node_id: str
    actor: Any
    #: Address of its channel, once it has been queried.
    address: str = ""

    @property
    def actor_id(self) -> str:
        """The actor's id, as in Ray's error messages."""
        actor_id: str = self.actor._actor_id.hex()
        return actor_id


@dataclass(frozen=True, slots=True)
class PoolTable:
    """Device table of a pool, published by the pool supervisor.

    `address`: the supervisor's address, which sends its heartbeats.
    `version`: the version of this table; heartbeats contain it until the table changes.
    `rows`: device name -> descriptor and node id.
    `running_devices`: the running devices, by name.
    """

    address: str
    version: float
    nodes: Mapping[str, ClusterNode]
    rows: Rows
    running_devices: Mapping[str, DeviceHandle]


class RayDevices:
    """Device table of the cluster, and the actors of the devices in use.

    `on_actor_end`: called with a device whose actor has ended and with Ray's error. The call runs
        in a thread of Ray and must not block.
    `pool`: the cluster's pool; its devices are used instead of new ones.
    `supervisor`: for clients of a pool, the actor of the pool supervisor, which queries nodes and
        starts devices.
    """

    def __init__(
        self,
        session: RaySession,
        specs: Sequence[PluginSpec],
        counts: Mapping[str, int],
        on_actor_end: Callable[[DeviceHandle, BaseException], None],
        probe_timeout_s: float,
        load_timeout_s: float = 3600.0,
        pool: Pool | None = None,
        supervisor: Any = None,
    ) -> None:
        self._session = session
        self._supervisor = supervisor
        #: The last table from the pool supervisor.
        self.pool_table: PoolTable | None = None
        self._on_actor_end = on_actor_end
        self._load_timeout_s = load_timeout_s
        self._pool = pool
        if pool is not None:
            specs, counts = pool.plugins, pool.devices
        self.discovery = NodeDiscovery(session, specs, counts, probe_timeout_s)
        #: Shared secret of the network channels; not needed on one machine.
        self.secret = None if session.is_local else cluster_secret()
        #: Ids of actors that ended.
        self._ended_actor_ids: set[str] = set()
        #: Devices in use, by name.
        self._actors: dict[str, DeviceHandle] = {}
        self._closed = False
        #: Guards the table; never held during a blocking call.
        self._lock = threading.Lock()

    def descriptors(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the live nodes; query nodes that are new.

        `wait`: whether to wait for new nodes; otherwise their devices are omitted until the nodes
            have responded.
        """
        self._refresh(wait=wait)
        return tuple(descriptor for descriptor, _ in self.discovery.rows.values())

    def present_devices(self) -> set[str]:
        """Return the devices of live nodes; of a pool, the devices that its supervisor started.

        Does not wait for new nodes.
        """
        if self.pool_table is not None:
            return set(self.pool_table.running_devices)
        return {row.name for row in self.descriptors(wait=False)}

    def device(self, name: str, *, wait: bool = True) -> DeviceHandle:
        """Return a device; start its actor if it has none.

        `wait`: whether to wait for new nodes if no other node lists the device.
        Raises UnknownDeviceError: the device does not exist, or its node has left.
        Raises DeviceError: its plugin is broken.
        """
        self._session.check()
        with self._lock:
            device = self._actors.get(name)
        if device is not None:
            return device
        self._refresh(wait=False)
        if wait and name not in self.discovery.rows:
            self._refresh(wait=True)
        nodes, rows = self.discovery.nodes, self.discovery.rows
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; create a new one.")
            descriptor, node_id = rows[resolve_name(name, rows)]
            device = self._actors.get(usable(descriptor).name)
            if device is None and self._supervisor is None:
                node = nodes[node_id]
                host = None if self._session.is_local else node.address.rpartition(":")[0]
                shared = self._pool.options(descriptor.name) if self._pool else {}
                options = {**node.options, **shared, **interpreter_options(descriptor.source)}
                actor = remote_device(**options).remote(
                    descriptor, self.discovery.specs, host, self.secret, self._pool is not None
                )
                device = self._actors[descriptor.name] = DeviceHandle(descriptor, node_id, actor)
                self.watch(device)
        return device or self._of_pool(descriptor.name)

    def _of_pool(self, name: str) -> DeviceHandle:
        """Return a device of the pool; its supervisor starts the device if it is not running."""
        device = self.pool_table.running_devices.get(name) if self.pool_table else None
        if device is None or device.actor_id in self._ended_actor_ids:
            device = self.ask_supervisor("start", [name]).running_devices[name]
        with self._lock:
            if name not in self._actors:
                self._actors[name] = device
                self.watch(device)
            return self._actors[name]

    def ask_supervisor(self, method: str, *arguments: Any) -> PoolTable:
        """Call a method of the pool supervisor, and store the table that it returns.

        Raises HeteroError: the supervisor's own error; ClusterError: no response, or it has ended.
        """
        ref = getattr(self._supervisor, method).remote(*arguments)
        if not self._session.wait([ref], self._load_timeout_s):
            raise ClusterError(
                f"the pool supervisor did not respond within {self._load_timeout_s:.0f} s; `ray "
                "status` shows whether its node can take it."
            )
        try:
            table: PoolTable = answer(ref, "the pool supervisor")
        except exceptions.RayActorError as error:
            raise ClusterError(
                f"the pool supervisor is gone: {why_lost(error)}. Bring the pool up: hetero pool "
                "up.",
                cause=why_lost(error),
            ) from error
        self.pool_table = table
        self.discovery.nodes, self.discovery.rows = table.nodes, table.rows
        return table

    def watch(self, device: DeviceHandle) -> None:
        """Call `on_actor_end` when the actor of a device ends."""

        def end(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is not None:
                self._on_actor_end(device, error)

        device.actor.wait_for_end.remote().future().add_done_callback(end)

    def forget(self, actor_id: str) -> None:
        """Remove an actor that has ended; the next use of its device starts a new one."""
        with self._lock:
            self._ended_actor_ids.add(actor_id)
            for name in [n for n, d in self._actors.items() if d.actor_id == actor_id]:
                self.discovery.suspect(self._actors.pop(name).node_id)

    def with_addresses(self, names: Sequence[str], *, wait: bool = True) -> dict[str, DeviceHandle]:
        """Return devices by name, with the addresses of their channels.

        Raises the errors of `device` and `fetch`.
        """
        devices = {name: self.device(name, wait=wait) for name in names}
        refs = [(d, d.actor.address.remote()) for d in devices.values() if not d.address]
        for device, ref in refs:
            device.address = self.fetch(device, ref)
        return devices

    def fetch(self, device: DeviceHandle, ref: Any) -> Any:
        """Wait for the result of a call to a device's actor.

        Raises HeteroError: the actor's own error.
        Raises DeviceLostError: the actor or its node is gone.
        Raises ClusterError: the actor does not respond, or the cluster is gone.
        """
        descriptor = device.descriptor
        where = f"device {descriptor.name} on node {descriptor.node}"
        until_s = time.monotonic() + self._load_timeout_s
        while not self._session.wait([ref], _WAIT_S):
            if time.monotonic() >= until_s:
                raise ClusterError(
                    f"{where} did not answer within {self._load_timeout_s:.0f} s; `ray status` "
                    "shows whether its node can take it.",
                    device=descriptor.name,
                )
            if not self.discovery.is_there(device.node_id):
                self.forget(device.actor_id)
                raise _device_lost_error(descriptor, "its node has left the cluster")
        try:
            return answer(ref, where, device=descriptor.name)
        except exceptions.ActorUnavailableError as error:
            if cause := self.cause_of_end(device):
                self.forget(device.actor_id)
                raise _device_lost_error(descriptor, cause) from error
            raise ClusterError(
                f"{where} could not be reached: {why_lost(error)}. Try again.",
                device=descriptor.name,
                cause=why_lost(error),
            ) from error
        except exceptions.RayActorError as error:
            self.forget(device.actor_id)
            raise _device_lost_error(descriptor, why_lost(error)) from error

    def cause_of_end(self, device: DeviceHandle) -> str | None:
        """Return why a device's process has ended; None if it has not, or Ray does not know."""
        try:
            ray.get(device.actor.ping.remote(), timeout=_REASON_S)
        except exceptions.ActorDiedError as error:
            return why_lost(error)
        except exceptions.RayError:
            pass
        return None

    def close(self) -> None:
        """Stop every actor, except those of a pool."""
        with self._lock:
            self._closed = True
            actors, self._actors = list(self._actors.values()), {}
        if self._pool is None:
            end_devices([device.actor for device in actors])

    def is_reached(self, device: DeviceHandle) -> bool | None:
        """Whether a device's node accepts connections now; None if it has left the cluster."""
        return self.discovery.is_reached(device.node_id, requery_head=self._supervisor is None)

    def _refresh(self, *, wait: bool) -> None:
        """Update the table; `wait`: whether to wait for new nodes."""
        if self._supervisor is not None:
            if wait or not self.discovery.rows:
                self.ask_supervisor("table", wait)
            return
        self.discovery.update_nodes()
        with self._lock:
            present = self.discovery.possible_nodes
            for name in [n for n, d in self._actors.items() if d.node_id not in present]:
                del self._actors[name]
        self.discovery.query_nodes(wait=wait)


def answer(ref: Any, where: str, **data: Any) -> Any:
    """Return the result of an actor's method; raise HeteroError if the method failed."""
    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, HeteroError):
            raise error.cause from None
        # Memory may also run out before the actor's own code runs, or while it reports an error.
        if isinstance(error.cause, MemoryError) or _MEMORY_ERROR.search(str(error)):
            reason = str(error).strip().splitlines()[-1]
            raise DeviceMemoryError(
                f"{where}: out of memory: {reason}. {MEMORY_ADVICE}", **data
            ) from error
        raise ClusterError(f"{where}: {error}", **data) from error


def _device_lost_error(descriptor: DeviceDescriptor, cause: str) -> DeviceLostError:
    return DeviceLostError(
        f"device {descriptor.name} on node {descriptor.node} is gone: {cause}. Compile the model "
        "again; a device whose node is alive is restarted.",
        device=descriptor.name,
        node=descriptor.node,
        attempt=0,
        cause=cause,
    )


def why_lost(error: BaseException) -> str:
    """Summarize Ray's error for an actor that ended or cannot be reached."""
    text = _COLOURS.sub("", str(error))
    if isinstance(error, exceptions.ActorUnavailableError):
        return "the connection to it was lost"
    if "never ran" in text and "references" in text and os.environ.get("RAY_AUTH_MODE") == "token":
        # The head cannot ask this process, which requires the token, whether it needs the actor.
        return (
            "Ray cancelled its start, as it does if the cluster runs without the access token that "
            "this process uses. Set RAY_AUTH_MODE=disabled here, or restart the cluster with the "
            "token"
        )
    if match := re.search(r"The actor is dead because (.+?)\.?(?: Worker exit|\n|$)", text):
        process = re.search(r"pid: (\d+)", text)
        is_oom = "OOM" in text.split("Some common causes")[0]
        memory = ", killed because memory ran out" if is_oom else ""
        return match[1] + memory + (f" (pid {process[1]})" if process else "")
    return first_line(text) or type(error).__name__
