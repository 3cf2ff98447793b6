"""The nodes of a Ray cluster: which there are, in a stable order, and how work is pinned to one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import ray

from scheduler.ray_start import RESOURCE, RESOURCE_SHARE

#: Node labels ``hetero/PLUGIN=COUNT`` say how many logical devices a node offers.
_LABEL_PREFIX: Final = "hetero/"
_HEAD: Final = "node:__internal_head__"


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node that is alive.

    Attributes
    ----------
    id : str
        Ray's id of it.
    name : str
        For people, unique in the cluster.
    counts : mapping of str to int
        Plugin -> logical devices, as far as its start options say.
    num_cpus : int
        Cores that it offers to Ray.
    store_nbytes : int
        Size of its object store.
    options : mapping
        What pins a task or an actor to it.
    """

    id: str
    name: str
    counts: Mapping[str, int]
    num_cpus: int
    store_nbytes: int
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
    if row["Resources"].get(RESOURCE):
        options["resources"] = {RESOURCE: RESOURCE_SHARE}
    resources = row["Resources"]
    cores, store = resources.get("CPU", 0), resources.get("object_store_memory", 0)
    return ClusterNode(row["NodeID"], name, counts, int(cores), int(store), options)


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
    return rows
