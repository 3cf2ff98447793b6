"""Nodes of a Ray cluster, with the options that pin work to them and the numbers of devices.

The cluster stores the device numbers, so that every client uses the same device names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
from msgspec.msgpack import Decoder, encode

from hetero.scheduler.channels.sockets import new_secret
from hetero.scheduler.ray.private_api import ClusterStore

#: Node labels ``hetero/PLUGIN=COUNT`` set the number of logical devices of a node.
_LABEL_PREFIX: Final = "hetero/"
_HEAD: Final = "node:__internal_head__"
#: Store for the tables of device numbers, by kind and version, and for the channels' secret.
_STORE: Final = ClusterStore(b"hetero-devices")
_SECRET: Final = b"secret"
#: Key of a device: its index on its node, the node's id and host.
_Place = tuple[int, str, str]
_READ_TABLE: Final = Decoder(list[_Place])


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """Live node of the cluster."""

    id: str
    name: str
    #: Its name in Ray, which is stable across restarts of the node; by default its address.
    host: str
    address: str
    #: Plugin -> number of logical devices, from the node's labels.
    counts: Mapping[str, int]
    num_cpus: int
    #: Ray options that pin a task or an actor to the node.
    options: Mapping[str, Any]


def alive_nodes() -> tuple[ClusterNode, ...]:
    """Return the live nodes: the head first, then by host name, address and port."""
    rows = [row for row in ray.nodes() if row["Alive"]]  # type: ignore[no-untyped-call]  # Ray's gap
    rows.sort(
        key=lambda row: (
            _HEAD not in row["Resources"],
            row["NodeManagerHostname"],
            row["NodeManagerAddress"],
            row["NodeManagerPort"],
        )
    )
    totals = Counter(row["NodeName"] for row in rows)
    return tuple(_node(row, totals[row["NodeName"]] == 1) for row in rows)


def _node(row: Mapping[str, Any], unique: bool) -> ClusterNode:
    name = row["NodeName"] if unique else f"{row['NodeName']}-{row['NodeID'][:6]}"
    labels = row.get("Labels") or {}
    counts = {
        key.removeprefix(_LABEL_PREFIX): int(value)
        for key, value in labels.items()
        if key.startswith(_LABEL_PREFIX) and value.isdigit()
    }
    options: dict[str, Any] = {"num_cpus": 0, "label_selector": {"ray.io/node-id": row["NodeID"]}}
    cores = int(row["Resources"].get("CPU", 0))
    address = f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}"
    return ClusterNode(row["NodeID"], name, row["NodeName"], address, counts, cores, options)


class DeviceNumbers:
    """Cluster-wide numbers of devices, the same for every client.

    The cluster's store has one table for each kind of device. A client replaces the whole table
    under the next version number; only the first of several writers succeeds. The last version is
    authoritative.
    """

    def __init__(self) -> None:
        self._tables: dict[str, list[_Place]] = {}

    def assign(self, kind: str, node: ClusterNode, count: int, alive: Collection[str]) -> list[int]:
        """Return the numbers of a node's devices of a kind; assign the next ones to new devices.

        A node that returns gets its earlier numbers.

        `kind`: the group of devices that share one numbering: those of a plugin, for all clients
            that request the same device counts.
        """
        places = [(place, node.id, node.host) for place in range(count)]
        table = self._tables.get(kind, [])
        while missing := [place for place in places if place not in table]:
            version, table = _read_table(kind)
            self._tables[kind] = table
            changed = list(table)
            for place in missing:
                _enter(changed, place, alive)
            if changed != table:
                # Another client may have written first. The previous version stays for readers.
                key, encoded = _table_key(kind, version + 1), encode(changed)
                if not _STORE.put(key, encoded, overwrite=False):
                    _STORE.delete(_table_key(kind, version - 1))
                table = []  # read again
        return [table.index(place) for place in places]


def _enter(table: list[_Place], device: _Place, alive: Collection[str]) -> None:
    """Assign a number to a device: its earlier one if its node has returned, otherwise the next."""
    if device in table:
        return
    for number, (place, node, host) in enumerate(table):
        if (place, host) == (device[0], device[2]) and node not in alive:
            table[number] = device
            return
    table.append(device)


def _read_table(kind: str) -> tuple[int, list[_Place]]:
    """Return the last version of a kind's table."""
    while True:
        keys = _STORE.keys(f"{kind}/")
        version = max((int(key.rpartition(b"/")[2]) for key in keys), default=0)
        encoded = _STORE.get(_table_key(kind, version)) if version else b"\x90"
        if encoded:  # otherwise a later version exists by now
            return version, _READ_TABLE.decode(encoded)


def _table_key(kind: str, version: int) -> bytes:
    return f"{kind}/{version}".encode()


def cluster_secret() -> bytes:
    """Return the shared secret of the cluster's channels, which its store protects."""
    candidate = new_secret()
    _STORE.put(_SECRET, candidate, overwrite=False)
    secret = _STORE.get(_SECRET)
    assert secret is not None
    return secret
