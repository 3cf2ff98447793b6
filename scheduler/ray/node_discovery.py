"""Node discovery: the live nodes of a Ray cluster and the devices that each of them lists.

Each node is queried once. A device keeps its name while its node lives and after its node returns.
All clients that request the same devices use the same names.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_futures
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any, Final

import ray
from ray import exceptions

from hetero.devices.errors import ClusterError, HeteroError, PluginLoadError
from hetero.scheduler.device.discovery import PluginSpec
from hetero.scheduler.ray.actor import probe
from hetero.scheduler.ray.address import is_of_this_process, reach
from hetero.scheduler.ray.nodes import ClusterNode, DeviceNumbers, alive_nodes
from hetero.scheduler.ray.session import LOOK_S, RaySession
from hetero.scheduler.types.device_descriptor import DeviceDescriptor

_log = logging.getLogger(__name__)
#: Seconds before a failed query of a node is repeated.
_AGAIN_S: Final = 0.5
#: Time limit for a host's kernel to accept a connection, and the pause after a failed attempt, in
#: seconds.
_HOST_S: Final = 1.0
_UNASKED_S: Final = 2.0
#: Devices by name, each with its node's id.
Rows = Mapping[str, tuple[DeviceDescriptor, str]]


@dataclass(slots=True)
class _Probe:
    """Pending query of a node's devices.

    `ref`: its result; a future if this process runs the query.
    """

    node: ClusterNode
    ref: Any
    until_s: float
    failure: str = ""

    def answer(self) -> Sequence[DeviceDescriptor]:
        """Return the devices that the node lists, or raise the error of the query."""
        rows: Sequence[DeviceDescriptor] = (
            self.ref.result() if isinstance(self.ref, Future) else ray.get(self.ref)
        )
        return rows

    def fail(self, cause: str) -> None:
        if cause != self.failure:
            _log.warning(
                "node=%s left out, its devices cannot be listed: %s", self.node.name, cause
            )
        self.failure = cause


class NodeDiscovery:
    """Live nodes and the devices that they list.

    `probe_timeout_s`: time limit for a node to list its devices, in seconds; the other nodes are
        used without it afterwards.
    """

    def __init__(
        self,
        session: RaySession,
        specs: Sequence[PluginSpec],
        counts: Mapping[str, int],
        probe_timeout_s: float,
    ) -> None:
        self._session = session
        self.specs = tuple(specs)
        self._counts = dict(counts)
        self._probe_timeout_s = probe_timeout_s
        self._numbers = DeviceNumbers()
        #: Live nodes by Ray's id; devices in order.
        self.nodes: Mapping[str, ClusterNode] = {}
        self.rows: Rows = {}
        #: Devices that nodes have listed, with their numbers; pending queries of other nodes.
        self._listed: dict[str, list[tuple[DeviceDescriptor, int]]] = {}
        self._probes: dict[str, _Probe] = {}
        #: Node id, plugin and number -> device name.
        self._names: dict[tuple[str, str, int], str] = {}
        #: Nodes of lost actors, with the time of the last failed connection; Ray reports a dead
        #: node only later.
        self._suspected: dict[str, float] = {}
        #: Guards the tables; never held during a blocking call.
        self._lock = threading.Lock()

    @property
    def possible_nodes(self) -> set[str]:
        """The nodes whose actors may still run, including nodes that are only cut off."""
        return {*self.nodes, *self._suspected.copy()}

    def suspect(self, node_id: str) -> None:
        """Suspect a node: list it only while it responds, whatever Ray reports."""
        self._suspected.setdefault(node_id, -math.inf)

    def responds(self, node_id: str) -> bool:
        """Whether a node responds; a node that does not is no longer listed."""
        node = self.nodes.get(node_id)
        self.suspect(node_id)
        return node is not None and self._responds(node)

    def is_reached(self, node_id: str, *, requery_head: bool) -> bool | None:
        """Whether a node accepts connections; None if it has left the cluster.

        `requery_head`: whether to query the cluster's head for its nodes now.
        """
        nodes = alive_nodes() if requery_head else self.nodes.values()
        node = next((node for node in nodes if node.id == node_id), None)
        if node is None:
            return None
        if is_cut := isinstance(_why_unreached(node), ConnectionError):
            self._suspected[node.id] = time.monotonic()
        return not is_cut

    def _responds(self, node: ClusterNode) -> bool:
        """Whether a suspected node responds."""
        if time.monotonic() - self._suspected.get(node.id, -math.inf) < _UNASKED_S:
            return False
        if _why_unreached(node) is not None:
            self._suspected[node.id] = time.monotonic()
            return False
        self._suspected.pop(node.id, None)
        return True

    def is_there(self, node_id: str) -> bool:
        """Whether a node is alive and its host accepts connections, which Ray checks too late."""
        node = next((node for node in self._live_nodes() if node.id == node_id), None)
        return node is not None and not isinstance(_why_unreached(node), ConnectionError)

    def _live_nodes(self) -> tuple[ClusterNode, ...]:
        """Return the live nodes; suspected ones only if they respond."""
        self._session.check_head()
        nodes = alive_nodes()
        for node_id in self._suspected.keys() - {node.id for node in nodes}:
            self._suspected.pop(node_id, None)
        # If two nodes have one address, the new one responds there, not the suspected one.
        shared = Counter(node.address for node in nodes)
        return tuple(
            node
            for node in nodes
            if node.id not in self._suspected
            or (shared[node.address] == 1 and self._responds(node))
        )

    def update_nodes(self) -> None:
        """Update the set of live nodes."""
        alive = self._live_nodes()
        with self._lock:
            self.nodes = {node.id: node for node in alive}
            for table in (self._listed, self._probes):
                for node_id in table.keys() - self.nodes.keys():
                    del table[node_id]
            for key in [key for key in self._names if key[0] not in self.nodes]:
                del self._names[key]

    def query_nodes(self, *, wait: bool) -> None:
        """Query new nodes for their devices; `wait`: whether to wait for the results.

        The first call always waits, because the first table determines the names.
        """
        until_s = time.monotonic() + self._probe_timeout_s
        with self._lock:
            wait = wait or not self.rows
            for node in self.nodes.values():
                if node.id not in self._listed and node.id not in self._probes:
                    self._probes[node.id] = self._query_node(node, until_s)
            probes = list(self._probes.values())
        for probe_ in probes:
            self._store_answer(probe_, wait=wait)
        with self._lock:
            self.rows = self._build_table()
        failures = [p.failure for p in probes if p.failure]
        if not self.rows and failures:
            raise ClusterError(
                "no node of the cluster could list its devices. hetero, and plugins given as "
                "module:attr, must be importable on every node.\n" + "\n".join(failures)
            )

    def _query_node(self, node: ClusterNode, until_s: float) -> _Probe:
        counts = {**node.counts, **self._counts}
        if self._session.is_local:
            # Ray would start another worker, which no device can use later.
            future: Future[Sequence[DeviceDescriptor]] = Future()
            arguments = (future, node.name, self.specs, counts, node.num_cpus)
            Thread(target=_probe_here, args=arguments, name="discovery", daemon=True).start()
            return _Probe(node, future, until_s)
        # No retries: if the node dies, the query must not run on another node.
        pinned = ray.remote(probe).options(**node.options, max_retries=0)
        ref = pinned.remote(node.name, self.specs, counts, node.num_cpus)
        return _Probe(node, ref, until_s)

    def _store_answer(self, probe_: _Probe, *, wait: bool) -> None:
        """Store the devices that a node lists; a late result is checked at each refresh."""
        node = probe_.node
        try:
            left_s = max(0.0, probe_.until_s - time.monotonic())
            if not self._is_answered(probe_, left_s if wait else 0.0):
                if wait or not left_s:
                    probe_.fail(f"no answer within {self._probe_timeout_s:.0f} s")
                return
            rows = probe_.answer()
        except exceptions.TaskUnschedulableError as error:
            probe_.fail(first_line(str(error)))
            # Not all parts of Ray know at once that a node has joined or left.
            if left_s > 0 and wait:
                time.sleep(_AGAIN_S)
            if left_s > 0 and node.id in {other.id for other in self._live_nodes()}:
                again = self._query_node(node, probe_.until_s)
                with self._lock:
                    if self._probes.get(node.id) is probe_:
                        self._probes[node.id] = again
                if wait:
                    self._store_answer(again, wait=True)
        except (exceptions.RayError, HeteroError) as error:
            cause = error.cause if isinstance(error, exceptions.RayTaskError) else error
            probe_.fail(str(cause))
            with self._lock:
                if self._probes.get(node.id) is probe_:
                    del self._probes[node.id]
        else:
            self._add(node, rows)

    def _is_answered(self, probe_: _Probe, timeout_s: float) -> bool:
        """Wait for the result of a query; return False after a timeout."""
        if isinstance(probe_.ref, Future):
            return bool(wait_for_futures([probe_.ref], timeout_s).done)
        return self._session.wait([probe_.ref], timeout_s)

    def _add(self, node: ClusterNode, rows: Sequence[DeviceDescriptor]) -> None:
        """Store a node's devices with their cluster-wide numbers."""
        works = Counter((row.family, row.plugin) for row in rows if row.error is None)
        numbers = {}
        for (family, plugin), count in works.items():
            kind = f"{family}*{self._counts.get(plugin, '')}"
            numbers[family] = iter(self._numbers.assign(kind, node, count, self.nodes.keys()))
        numbered = [(row, next(numbers[row.family]) if row.error is None else 0) for row in rows]
        with self._lock:
            self._probes.pop(node.id, None)
            if node.id in self.nodes:
                self._listed[node.id] = numbered

    def _build_table(self) -> Rows:
        """Return the device table; devices keep the names that they already have.

        A plugin that is broken on every node has one row. A plugin that works on some node is not
        listed as broken.
        """
        every = [
            (row, number, node_id)
            for node_id in self.nodes
            for row, number in self._listed.get(node_id, ())
        ]
        works = {row.plugin for row, _, _ in every if row.error is None}
        listed = [e for e in every if e[0].error is None or e[0].plugin not in works]
        rows = {}
        for family in dict.fromkeys(row.family for row, _, _ in listed):
            mine = [entry for entry in listed if entry[0].family == family]
            working = sorted((e for e in mine if e[0].error is None), key=lambda e: e[1])
            for row, number, node_id in working or mine[:1]:
                alone = number == 0 and len(working) <= 1
                default_name = family if alone else f"{family}.{number}"
                name = self._names.setdefault((node_id, family, number), default_name)
                rows[name] = (replace(row, name=name), node_id)
        return rows


def _probe_here(future: Future[Sequence[DeviceDescriptor]], *arguments: Any) -> None:
    """List the devices of this machine in this process."""
    try:
        future.set_result(probe(*arguments))
    except HeteroError as error:
        future.set_exception(error)
    except BaseException as error:  # SystemExit, for example: it must not end the caller's process
        future.set_exception(
            PluginLoadError(
                f"a plugin ended the listing of devices: {type(error).__name__}: {error}"
            )
        )


def _why_unreached(node: ClusterNode) -> OSError | None:
    """Return why a node does not respond: a ConnectionError if it accepted no connection."""
    try:
        reach(node.address, LOOK_S, _HOST_S)
    except OSError as error:
        return None if is_of_this_process(error) else error
    return None


def first_line(text: str) -> str:
    """Return the first line that is not blank."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else ""
