"""The address ``auto``: the Ray cluster on this machine that others may join.

Ray's own look-up also returns the clusters that other programs started for themselves alone.
"""

from __future__ import annotations

import os
from typing import Final

from hetero.devices.errors import ClusterError
from hetero.scheduler.ray.local_cluster import find_head
from hetero.scheduler.ray.private_api import shared_clusters

#: Values of RAY_ADDRESS that name no cluster.
_NO_CLUSTERS: Final = ("", "auto", "local")


def find_cluster() -> str:
    """Return the address of the cluster on this machine, or RAY_ADDRESS if it names one.

    If the cluster is the user's pool, set its access token.
    Raises ClusterError: no cluster or several clusters run here.
    """
    if (address := os.environ.get("RAY_ADDRESS", "")) not in _NO_CLUSTERS:
        return address
    pool = find_head()
    clusters = {*shared_clusters(), *([pool] if pool else [])}
    if len(clusters) > 1:
        names = ", ".join(f"{a} (pool)" if a == pool else a for a in sorted(clusters))
        raise ClusterError(
            f"address 'auto': expected one Ray cluster on this machine, got {names}. Name one of "
            "them (--address HOST:PORT, RAY_ADDRESS), or stop the others (`ray stop`, `hetero pool "
            "down`).",
            address="auto",
        )
    if not clusters:
        raise ClusterError(
            "address 'auto': no cluster that `ray start` or `hetero pool up` started runs on this "
            "machine. Start one (`ray start --head`), give its host:port, or leave the address out "
            "to start a Ray for this process.",
            address="auto",
        )
    (address,) = clusters
    return address
