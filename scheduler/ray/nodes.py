"""The nodes of a Ray cluster: which there are, how work is pinned to one, what devices are called.

Devices' numbers are kept in the cluster, so that every client calls a device the same.
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

#: Node labels ``hetero/PLUGIN=COUNT`` say how many logical devices a node offers.
_LABEL_PREFIX: Final = "hetero/"
_HEAD: Final = "node:__internal_head__"
#: Where the cluster keeps tables of device numbers, by kind and version, and the channels' secret.
_STORE: Final = ClusterStore(b"hetero-devices")
_SECRET: Final = b"secret"
#: A device: its place among those of its node, the node's id and host.
_Place = tuple[int, str, str]
_READ_TABLE: Final = Decoder(list[_Place])


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that is alive."""

    id: str
    name: str
    #: Its name for Ray, which it has again when it comes back: its address by default.
    host: str
    address: str
    #: Plugin -> logical devices, as far as its start options say.
    counts: Mapping[str, int]
    num_cpus: int
    #: What pins a task or an actor to it.
    options: Mapping[str, Any]


def alive_nodes() -> tuple[ClusterNode, ...]:
    """Return the nodes that are alive, the head first, then by host name, address and port."""
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
    """The numbers that devices have in the whole cluster, the same for every client.

    For each kind of devices the cluster's store has one table, which is replaced as a whole, under
    its next version: one client alone can write that. What counts is what is in the last version.
    """

    def __init__(self) -> None:
        self._known: dict[str, list[_Place]] = {}

    def take(self, kind: str, node: ClusterNode, count: int, alive: Collection[str]) -> list[int]:
        """Return the numbers of a node's devices of a kind; the first free ones if they are new.

        A node that comes back gets the numbers that it had.

        `kind`: what is counted: the devices of a plugin, for clients that want the same of them.
        """
        wanted = [(place, node.id, node.host) for place in range(count)]
        table = self._known.get(kind, [])
        while missing := [place for place in wanted if place not in table]:
            version, table = _read_table(kind)
            self._known[kind] = table
            changed = list(table)
            for place in missing:
                _enter(changed, place, alive)
            if changed != table:
                # Another client may have been first; the version before stays for who reads it.
                key, held = _table_key(kind, version + 1), encode(changed)
                if not _STORE.put(key, held, overwrite=False):
                    _STORE.delete(_table_key(kind, version - 1))
                table = []  # read again
        return [table.index(place) for place in wanted]


def _enter(table: list[_Place], mine: _Place, alive: Collection[str]) -> None:
    """Give a device a number: the one that it had before its node came back, or the next."""
    if mine in table:
        return
    for number, (place, node, host) in enumerate(table):
        if (place, host) == (mine[0], mine[2]) and node not in alive:
            table[number] = mine
            return
    table.append(mine)


def _read_table(kind: str) -> tuple[int, list[_Place]]:
    """Return the last version of a kind's table."""
    while True:
        keys = _STORE.keys(f"{kind}/")
        version = max((int(key.rpartition(b"/")[2]) for key in keys), default=0)
        held = _STORE.get(_table_key(kind, version)) if version else b"\x90"
        if held:  # else there is a later one by now
            return version, _READ_TABLE.decode(held)


def _table_key(kind: str, version: int) -> bytes:
    return f"{kind}/{version}".encode()


def cluster_secret() -> bytes:
    """Return what the channels of a cluster know: who reads its store may send to its devices."""
    made = new_secret()
    _STORE.put(_SECRET, made, overwrite=False)
    secret = _STORE.get(_SECRET)
    assert secret is not None
    return secret
