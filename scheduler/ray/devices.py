"""The devices of a Ray cluster: an actor for each that is used."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import exceptions

from hetero.devices.errors import ClusterError, DeviceLostError, HeteroError
from hetero.scheduler.device.probe import PluginSpec, usable
from hetero.scheduler.ray.actor import remote_device
from hetero.scheduler.ray.interpreters import interpreter_options
from hetero.scheduler.ray.nodes import ClusterNode, cluster_secret
from hetero.scheduler.ray.pool import Pool, end_devices
from hetero.scheduler.ray.start import RaySession
from hetero.scheduler.ray.survey import NodeSurvey, Rows, first_line
from hetero.scheduler.vocabulary.names import resolve_name
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

#: Seconds between two looks at the node of a device that is to answer.
_WAIT_S: Final = 1.0
#: What a terminal takes for colours.
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(slots=True)
class ActorDevice:
    """A device, its node's Ray id, and its actor."""

    descriptor: DeviceDescriptor
    node_id: str
    actor: Any
    #: Where its channel is reached, once somebody has asked.
    address: str = ""

    @property
    def actor_id(self) -> str:
        """The actor's id, as Ray's errors give it."""
        found: str = self.actor._actor_id.hex()
        return found


@dataclass(frozen=True, slots=True)
class PoolTable:
    """What a pool's keeper says.

    `address`, `version`: where its beats come from, and what they say till there is another table.
    `rows`: by the devices' names, with their nodes' ids.
    `started`: the devices that live, by name.
    """

    address: str
    version: float
    nodes: Mapping[str, ClusterNode]
    rows: Rows
    started: Mapping[str, ActorDevice]


class RayDevices:
    """The devices that the nodes list, and the actors of those that are used.

    `ended`: is given a device whose actor has ended, and Ray's reason, in a thread of Ray's that
        must not be kept.
    `pool`: the cluster's, whose devices are used rather than devices of our own.
    `keeper`: the actor of the pool's keeper, for its clients: it asks nodes, and starts devices.
    """

    def __init__(
        self,
        session: RaySession,
        specs: Sequence[PluginSpec],
        counts: Mapping[str, int],
        ended: Callable[[ActorDevice, BaseException], None],
        probe_timeout_s: float,
        load_timeout_s: float = 3600.0,
        pool: Pool | None = None,
        keeper: Any = None,
    ) -> None:
        self._session = session
        self._keeper = keeper
        #: What the pool's keeper has said last.
        self.pool_table: PoolTable | None = None
        self._ended = ended
        self._load_timeout_s = load_timeout_s
        self._pool = pool
        if pool is not None:
            specs, counts = pool.plugins, pool.devices
        self.survey = NodeSurvey(session, specs, counts, probe_timeout_s)
        #: What the network's channels have to know; of no use on one machine.
        self.secret = None if session.is_local else cluster_secret()
        #: Actors that are gone, by id.
        self._forgotten: set[str] = set()
        #: By name.
        self._actors: dict[str, ActorDevice] = {}
        self._closed = False
        #: Guards the table; never held while somebody is waited for.
        self._lock = threading.Lock()

    def descriptors(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the nodes that are alive, asking those that are new.

        `wait`: for their answers; without it, they are left out until they have come.
        """
        self._refresh(wait=wait)
        return tuple(descriptor for descriptor, _ in self.survey.rows.values())

    def there(self) -> set[str]:
        """Return the devices whose nodes are alive; of a pool, those that its keeper has started.

        Does not wait for nodes that are new.
        """
        if self.pool_table is not None:
            return set(self.pool_table.started)
        return {row.name for row in self.descriptors(wait=False)}

    def device(self, name: str, *, wait: bool = True) -> ActorDevice:
        """Return a device with its actor, which is started if there is none.

        `wait`: where no node that has answered has it, for those that are new.
        Raises UnknownDeviceError: no such device, or its node has left.
        Raises DeviceError: its plugin is broken.
        """
        self._session.check()
        with self._lock:
            known = self._actors.get(name)
        if known is not None:
            return known
        self._refresh(wait=False)
        if wait and name not in self.survey.rows:
            self._refresh(wait=True)
        nodes, rows = self.survey.nodes, self.survey.rows
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; make a new one.")
            descriptor, node_id = rows[resolve_name(name, rows)]
            found = self._actors.get(usable(descriptor).name)
            if found is None and self._keeper is None:
                node = nodes[node_id]
                host = None if self._session.is_local else node.address.rpartition(":")[0]
                shared = self._pool.options(descriptor.name) if self._pool else {}
                options = {**node.options, **shared, **interpreter_options(descriptor.source)}
                actor = remote_device(**options).remote(
                    descriptor, self.survey.specs, host, self.secret, self._pool is not None
                )
                found = self._actors[descriptor.name] = ActorDevice(descriptor, node_id, actor)
                self.watch(found)
        return found or self._of_pool(descriptor.name)

    def _of_pool(self, name: str) -> ActorDevice:
        """Return a device of the pool, which its keeper starts if it does not live."""
        found = self.pool_table.started.get(name) if self.pool_table else None
        if found is None or found.actor_id in self._forgotten:
            found = self.ask_keeper("start", [name]).started[name]
        with self._lock:
            if name not in self._actors:
                self._actors[name] = found
                self.watch(found)
            return self._actors[name]

    def ask_keeper(self, method: str, *arguments: Any) -> PoolTable:
        """Take in what the pool's keeper says now.

        Raises HeteroError: what it raised; ClusterError: it says nothing, or is gone.
        """
        ref = getattr(self._keeper, method).remote(*arguments)
        if not self._session.wait([ref], self._load_timeout_s):
            raise ClusterError(
                f"the pool's keeper did not answer within {self._load_timeout_s:.0f} s; `ray "
                "status` shows whether its node can take it."
            )
        try:
            table: PoolTable = answer(ref, "the pool's keeper")
        except exceptions.RayActorError as error:
            raise ClusterError(
                f"the pool's keeper is gone: {why_lost(error)}. Bring the pool up: hetero pool up.",
                cause=why_lost(error),
            ) from error
        self.pool_table = table
        self.survey.nodes, self.survey.rows = table.nodes, table.rows
        return table

    def watch(self, device: ActorDevice) -> None:
        """Have `ended` hear of the end of a device's actor."""

        def end(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is not None:
                self._ended(device, error)

        device.actor.stay.remote().future().add_done_callback(end)

    def forget(self, actor_id: str) -> None:
        """Let go of an actor that is gone; who asks for its device next gets a new one."""
        with self._lock:
            self._forgotten.add(actor_id)
            for name in [n for n, d in self._actors.items() if d.actor_id == actor_id]:
                self.survey.doubt(self._actors.pop(name).node_id)

    def reached(self, names: Sequence[str], *, wait: bool = True) -> dict[str, ActorDevice]:
        """Return devices by name, once each has said where its channel is reached.

        Raises as `device` and `fetch` do.
        """
        devices = {name: self.device(name, wait=wait) for name in names}
        refs = [(d, d.actor.address.remote()) for d in devices.values() if not d.address]
        for device, ref in refs:
            device.address = self.fetch(device, ref)
        return devices

    def fetch(self, device: ActorDevice, ref: Any) -> Any:
        """Return what a device's actor answered.

        Raises HeteroError: what it raised; DeviceLostError if it or its node is gone, ClusterError
            if it says nothing, or the cluster is gone.
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
            if not self.survey.is_there(device.node_id):
                self.forget(device.actor_id)
                raise _lost(descriptor, "its node has left the cluster")
        try:
            return answer(ref, where, device=descriptor.name)
        except exceptions.ActorUnavailableError as error:
            raise ClusterError(
                f"{where} could not be reached: {why_lost(error)}. Try again.",
                device=descriptor.name,
                cause=why_lost(error),
            ) from error
        except exceptions.RayActorError as error:
            self.forget(device.actor_id)
            raise _lost(descriptor, why_lost(error)) from error

    def close(self) -> None:
        """Stop every actor, but for a pool's."""
        with self._lock:
            self._closed = True
            actors, self._actors = list(self._actors.values()), {}
        if self._pool is None:
            end_devices([device.actor for device in actors])

    def is_reached(self, device: ActorDevice) -> bool | None:
        """Whether a device's node lets somebody in, asked anew; None if it has left the cluster."""
        return self.survey.is_reached(device.node_id, anew=self._keeper is None)

    def _refresh(self, *, wait: bool) -> None:
        """Bring the table up to date; `wait`: for what nodes that are new have to say."""
        if self._keeper is not None:
            if wait or not self.survey.rows:
                self.ask_keeper("table", wait)
            return
        self.survey.look()
        with self._lock:
            there = self.survey.there
            for name in [n for n, d in self._actors.items() if d.node_id not in there]:
                del self._actors[name]
        self.survey.ask(wait=wait)


def answer(ref: Any, where: str, **data: Any) -> Any:
    """Return what an actor answered; HeteroError if it raised."""
    try:
        return ray.get(ref)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, HeteroError):
            raise error.cause from None
        raise ClusterError(f"{where}: {error}", **data) from error


def _lost(descriptor: DeviceDescriptor, cause: str) -> DeviceLostError:
    return DeviceLostError(
        f"device {descriptor.name} on node {descriptor.node} is gone: {cause}. Compile the model "
        "again; a device whose node is alive is restarted.",
        device=descriptor.name,
        node=descriptor.node,
        attempt=0,
        cause=cause,
    )


def why_lost(error: BaseException) -> str:
    """Return in a few words what Ray tells of an actor that is gone or out of reach."""
    text = _COLOURS.sub("", str(error))
    if isinstance(error, exceptions.ActorUnavailableError):
        return "the connection to it was lost"
    if found := re.search(r"The actor is dead because (.+?)\.?(?: Worker exit|\n|$)", text):
        process = re.search(r"pid: (\d+)", text)
        is_oom = "OOM" in text.split("Some common causes")[0]
        memory = ", killed for want of memory" if is_oom else ""
        return found[1] + memory + (f" (pid {process[1]})" if process else "")
    return first_line(text) or type(error).__name__
