"""The devices of a Ray cluster: what its nodes offer now, and an actor for each that is used."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

import ray
from ray import exceptions

from devices.errors import ClusterError, DeviceLostError, HeteroError
from scheduler.device.probe import PluginSpec, usable
from scheduler.ray.actor import probe, remote_device
from scheduler.ray.address import check_reachable, is_of_this_process
from scheduler.ray.interpreters import interpreter_options
from scheduler.ray.nodes import ClusterNode, DeviceNumbers, alive_nodes, cluster_secret
from scheduler.ray.pool import Pool, end_devices
from scheduler.ray.start import LOOK_S, RaySession
from scheduler.vocabulary.names import resolve_name
from scheduler.vocabulary.rows import DeviceDescriptor

_log = logging.getLogger(__name__)
#: Seconds before a node that could not be asked is asked again.
_AGAIN_S: Final = 0.5
#: Seconds between two looks at the node of a device that is to answer.
_WAIT_S: Final = 1.0
#: Seconds for the answer of a host, which its kernel gives; and for which it is not asked again.
_HOST_S: Final = 1.0
_UNASKED_S: Final = 2.0
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


#: Takes a device whose actor has ended, and what Ray says of it.
OnEnd = Callable[[ActorDevice, BaseException], None]


def _nothing(device: ActorDevice, error: BaseException) -> None:
    """Leave it to those who use the device to find out."""


@dataclass(slots=True)
class _Probe:
    """A node's answer to what devices it has."""

    node: ClusterNode
    ref: Any
    until_s: float
    failure: str = ""

    def fail(self, cause: str) -> None:
        if cause != self.failure:
            _log.warning(
                "node=%s left out, its devices cannot be listed: %s", self.node.name, cause
            )
        self.failure = cause


@dataclass(frozen=True, slots=True)
class PoolTable:
    """What a pool's keeper says.

    `address`, `version`: where its beats come from, and what they say till there is another table.
    `nodes`: by their ids.
    `rows`: by the devices' names, with their nodes' ids.
    `started`: the devices that live, by name.
    """

    address: str
    version: float
    nodes: Mapping[str, ClusterNode]
    rows: Mapping[str, tuple[DeviceDescriptor, str]]
    started: Mapping[str, ActorDevice]


class RayDevices:
    """The table of devices.

    A device keeps its name as long as its node lives, gets it again when its node comes back, and
    is called the same by every client that wants the same devices.

    `counts`: plugin -> logical devices on each node.
    `probe_timeout_s`: seconds that a node may take to list its devices before the others are used
        without it.
    `load_timeout_s`: seconds that a device may take to answer.
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
        probe_timeout_s: float,
        load_timeout_s: float = 3600.0,
        ended: OnEnd = _nothing,
        pool: Pool | None = None,
        keeper: Any = None,
    ) -> None:
        self._session = session
        self._keeper = keeper
        #: What the pool's keeper has said last.
        self.pool_table: PoolTable | None = None
        self._ended = ended
        self._load_timeout_s = load_timeout_s
        self._specs = tuple(pool.plugins if pool else specs)
        self._counts = dict(pool.devices if pool else counts)
        self._pool = pool
        self._probe_timeout_s = probe_timeout_s
        #: What the network's channels have to know; of no use on one machine.
        self.secret = None if session.is_local else cluster_secret()
        self._numbers = DeviceNumbers()
        #: Nodes that are alive, by Ray's id; what they have listed, with the devices' numbers;
        #: and what is awaited of those that have not.
        self._nodes: dict[str, ClusterNode] = {}
        self._listed: dict[str, list[tuple[DeviceDescriptor, int]]] = {}
        self._probes: dict[str, _Probe] = {}
        #: Node's id, plugin and number -> name.
        self._names: dict[tuple[str, str, int], str] = {}
        #: Nodes of actors that were lost, and when they did not answer last: Ray finds a node dead
        #: only later.
        self._doubted: dict[str, float] = {}
        #: Actors that are gone, by id.
        self._forgotten: set[str] = set()
        #: Name -> descriptor and the node's id, in order.
        self._rows: dict[str, tuple[DeviceDescriptor, str]] = {}
        self._actors: dict[str, ActorDevice] = {}
        self._closed = False
        #: Guards the tables; never held while somebody is waited for.
        self._lock = threading.Lock()

    def descriptors(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device of the nodes that are alive, asking those that are new.

        `wait`: for their answers; without it, they are left out until they have come.
        """
        self._refresh(wait=wait)
        with self._lock:
            return tuple(descriptor for descriptor, _ in self._rows.values())

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
        with self._lock:
            is_listed = name in self._rows
        if wait and not is_listed:
            self._refresh()
        with self._lock:
            if self._closed:
                raise ClusterError("the executor is closed; make a new one.")
            descriptor, node_id = self._rows[resolve_name(name, self._rows)]
            found = self._actors.get(usable(descriptor).name)
            if found is None and self._keeper is None:
                node = self._nodes[node_id]
                host = None if self._session.is_local else node.address.rpartition(":")[0]
                shared = self._pool.options(descriptor.name) if self._pool else {}
                options = {**node.options, **shared, **interpreter_options(descriptor.source)}
                actor = remote_device(**options).remote(
                    descriptor, self._specs, host, self.secret, self._pool is not None
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
            table: PoolTable = ray.get(ref)
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, HeteroError):
                raise error.cause from None
            raise ClusterError(f"the pool's keeper: {error}") from error
        except exceptions.RayActorError as error:
            raise ClusterError(
                f"the pool's keeper is gone: {why_lost(error)}. Bring the pool up: hetero pool up.",
                cause=why_lost(error),
            ) from error
        with self._lock:
            self.pool_table = table
            self._nodes, self._rows = dict(table.nodes), dict(table.rows)
        return table

    def table(
        self, address: str, version: float, live: Sequence[ActorDevice], *, wait: bool
    ) -> PoolTable:
        """Return what a pool's keeper says: `live` are the devices that it keeps.

        `wait`: as of `descriptors`.
        """
        self._refresh(wait=wait)
        with self._lock:
            started = {device.descriptor.name: device for device in live}
            return PoolTable(address, version, dict(self._nodes), dict(self._rows), started)

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
                self._doubted.setdefault(self._actors.pop(name).node_id, -math.inf)

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
            if not self._is_there(device.node_id):
                self.forget(device.actor_id)
                raise _lost(descriptor, "its node has left the cluster")
        try:
            return ray.get(ref)
        except exceptions.ActorUnavailableError as error:
            raise ClusterError(
                f"{where} could not be reached: {why_lost(error)}. Try again.",
                device=descriptor.name,
                cause=why_lost(error),
            ) from error
        except exceptions.RayActorError as error:
            self.forget(device.actor_id)
            raise _lost(descriptor, why_lost(error)) from error
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, HeteroError):
                raise error.cause from None
            raise ClusterError(f"{where}: {error}", device=descriptor.name) from error

    def close(self) -> None:
        """Stop every actor, but for a pool's."""
        with self._lock:
            self._closed = True
            actors, self._actors = list(self._actors.values()), {}
        if self._pool is None:
            end_devices([device.actor for device in actors])

    def answers(self, device: ActorDevice) -> bool:
        """Whether a device's node answers; one that does not is not listed any more."""
        with self._lock:
            node = self._nodes.get(device.node_id)
        self._doubted.setdefault(device.node_id, -math.inf)
        return node is not None and self._answers(node)

    def is_reached(self, device: ActorDevice) -> bool | None:
        """Whether a device's node lets somebody in, asked anew; None if it has left the cluster."""
        nodes = alive_nodes() if self._keeper is None else list(self._nodes.values())
        node = next((node for node in nodes if node.id == device.node_id), None)
        if node is None:
            return None
        if is_cut := isinstance(_why_unreached(node), ConnectionError):
            self._doubted[node.id] = time.monotonic()
        return not is_cut

    def _answers(self, node: ClusterNode) -> bool:
        """Whether a node that is doubted answers."""
        if time.monotonic() - self._doubted.get(node.id, -math.inf) < _UNASKED_S:
            return False
        if _why_unreached(node) is not None:
            self._doubted[node.id] = time.monotonic()
            return False
        self._doubted.pop(node.id, None)
        return True

    def _is_there(self, node_id: str) -> bool:
        """Whether a node is alive, and its host lets somebody in: Ray takes long to miss it."""
        node = next((node for node in self._alive() if node.id == node_id), None)
        return node is not None and not isinstance(_why_unreached(node), ConnectionError)

    def _alive(self) -> tuple[ClusterNode, ...]:
        """Return the nodes that are alive; those that are doubted must answer."""
        self._session.check_head()
        nodes = alive_nodes()
        for node_id in self._doubted.keys() - {node.id for node in nodes}:
            self._doubted.pop(node_id, None)
        # Where two have one address, the new one is it that answers.
        shared = Counter(node.address for node in nodes)
        return tuple(
            node
            for node in nodes
            if node.id not in self._doubted or (shared[node.address] == 1 and self._answers(node))
        )

    def _refresh(self, *, wait: bool = True) -> None:
        """Bring the table up to date; `wait`: for what nodes that are new have to say.

        The first table is always waited for: it gives the names.
        """
        if self._keeper is not None:
            if wait or not self._rows:
                self.ask_keeper("table", wait)
            return
        alive = self._alive()
        until_s = time.monotonic() + self._probe_timeout_s
        with self._lock:
            wait = wait or not self._rows
            self._nodes = {node.id: node for node in alive}
            for table in (self._listed, self._probes):
                for node_id in table.keys() - self._nodes.keys():
                    del table[node_id]
            for key in [key for key in self._names if key[0] not in self._nodes]:
                del self._names[key]
            # Of a node that is only cut off they go on.
            there = self._nodes.keys() | self._doubted.keys()
            for name in [n for n, d in self._actors.items() if d.node_id not in there]:
                del self._actors[name]
        with self._lock:
            for node in alive:
                if node.id not in self._listed and node.id not in self._probes:
                    self._probes[node.id] = self._ask(node, until_s)
            probes = list(self._probes.values())
        for probe_ in probes:
            self._finish(probe_, wait=wait)
        with self._lock:
            self._lay_out()
            failures = [p.failure for p in probes if p.failure]
            if not self._rows and failures:
                raise ClusterError(
                    "no node of the cluster could list its devices. hetero, and plugins given as "
                    "module:attr, must be importable on every node.\n" + "\n".join(failures)
                )

    def _ask(self, node: ClusterNode, until_s: float) -> _Probe:
        """Have a node list its devices."""
        counts = {**node.counts, **self._counts}
        # A probe that its node's death interrupts is of no use elsewhere: no retries.
        pinned = ray.remote(probe).options(**node.options, max_retries=0)
        ref = pinned.remote(node.name, self._specs, counts, node.num_cpus)
        return _Probe(node, ref, until_s)

    def _finish(self, probe_: _Probe, *, wait: bool) -> None:
        """Take in what a node lists; one that is late is looked at again with each refresh."""
        node = probe_.node
        try:
            left_s = max(0.0, probe_.until_s - time.monotonic())
            if not self._session.wait([probe_.ref], left_s if wait else 0.0):
                if wait or not left_s:
                    probe_.fail(f"no answer within {self._probe_timeout_s:.0f} s")
                return
            rows: Sequence[DeviceDescriptor] = ray.get(probe_.ref)
        except exceptions.TaskUnschedulableError as error:
            probe_.fail(first_line(str(error)))
            # A node that has just joined is not yet known to all of Ray, nor one that has left.
            if left_s > 0 and wait:
                time.sleep(_AGAIN_S)
            if left_s > 0 and node.id in {other.id for other in self._alive()}:
                again = self._ask(node, probe_.until_s)
                with self._lock:
                    if self._probes.get(node.id) is probe_:
                        self._probes[node.id] = again
                if wait:
                    self._finish(again, wait=True)
        except exceptions.RayError as error:
            cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
            probe_.fail(str(cause))
            with self._lock:
                if self._probes.get(node.id) is probe_:
                    del self._probes[node.id]
        else:
            self._add(node, rows)

    def _add(self, node: ClusterNode, rows: Sequence[DeviceDescriptor]) -> None:
        """Take in a node's devices with the cluster's numbers for them."""
        works = Counter((row.family, row.plugin) for row in rows if row.error is None)
        numbers = {}
        for (family, plugin), count in works.items():
            kind = f"{family}*{self._counts.get(plugin, '')}"
            numbers[family] = iter(self._numbers.take(kind, node, count, self._nodes.keys()))
        numbered = [(row, next(numbers[row.family]) if row.error is None else 0) for row in rows]
        with self._lock:
            self._probes.pop(node.id, None)
            if node.id in self._nodes:
                self._listed[node.id] = numbered

    def _lay_out(self) -> None:
        """Make the table of what nodes have listed; a device that has a name keeps it.

        A plugin that is broken on every node is one row; one that works somewhere is not listed
        as broken.
        """
        every = [
            (row, number, node_id)
            for node_id in self._nodes
            for row, number in self._listed.get(node_id, ())
        ]
        works = {row.plugin for row, _, _ in every if row.error is None}
        listed = [e for e in every if e[0].error is None or e[0].plugin not in works]
        self._rows = {}
        for family in dict.fromkeys(row.family for row, _, _ in listed):
            mine = [entry for entry in listed if entry[0].family == family]
            working = sorted((e for e in mine if e[0].error is None), key=lambda e: e[1])
            for row, number, node_id in working or mine[:1]:
                alone = number == 0 and len(working) <= 1
                wanted = family if alone else f"{family}.{number}"
                name = self._names.setdefault((node_id, family, number), wanted)
                self._rows[name] = (replace(row, name=name), node_id)


def _why_unreached(node: ClusterNode) -> BaseException | None:
    """Return why a node does not answer: a ConnectionError where nobody was let in."""
    try:
        check_reachable(node.address, LOOK_S, host_timeout_s=_HOST_S)
    except ClusterError as error:
        return None if is_of_this_process(error) else error.__cause__
    return None


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
        memory = (
            ", killed for want of memory" if "OOM" in text.split("Some common causes")[0] else ""
        )
        return found[1] + memory + (f" (pid {process[1]})" if process else "")
    return first_line(text) or type(error).__name__


def first_line(text: str) -> str:
    """Return the first line that says something."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else ""
