"""The nodes of a Ray cluster: which there are, how work is pinned to one, what devices are called.

Devices' numbers are kept in the cluster, so that every client calls a device the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray.experimental.internal_kv import _internal_kv_get, _internal_kv_put

#: Node labels ``hetero/PLUGIN=COUNT`` say how many logical devices a node offers.
_LABEL_PREFIX: Final = "hetero/"
_HEAD: Final = "node:__internal_head__"
#: The cluster's table of device numbers: kind/number -> place, node's id and name.
_TABLE: Final = b"hetero-devices"


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
    store_nbytes: int
    #: What pins a task or an actor to it.
    options: Mapping[str, Any]


def alive_nodes() -> tuple[ClusterNode, ...]:
    """Return the nodes that are alive, the head first, then by host name, address and port."""
    rows = [row for row in _rows() if row["Alive"]]
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
    options: dict[str, Any] = {
        "num_cpus": 0,
        "label_selector": {"ray.io/node-id": row["NodeID"]},
    }
    resources = row["Resources"]
    cores, store = resources.get("CPU", 0), resources.get("object_store_memory", 0)
    address = f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}"
    return ClusterNode(
        row["NodeID"], name, row["NodeName"], address, counts, int(cores), int(store), options
    )


def device_number(kind: str, node: ClusterNode, place: int, alive: Collection[str]) -> int:
    """Return the number that a device has in the whole cluster.

    The first free one is written into the cluster's own table, where every client finds it; a node
    that comes back gets the numbers that it had.

    `kind`: what is counted: the devices of a plugin, for clients that want the same of them.
    `alive`: ids of the nodes that are alive.
    """
    mine = f"{place} {node.id} {node.host}"
    number = 0
    while True:
        key = f"{kind}/{number}".encode()
        if not _internal_kv_put(key, mine.encode(), overwrite=False, namespace=_TABLE):
            return number
        held = _internal_kv_get(key, namespace=_TABLE)
        whose, holder, host = held.decode().split(" ", 2)
        if int(whose) == place and holder == node.id:
            return number
        if int(whose) == place and host == node.host and holder not in alive:
            _internal_kv_put(key, mine.encode(), overwrite=True, namespace=_TABLE)
            return number
        number += 1


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
    return rows
