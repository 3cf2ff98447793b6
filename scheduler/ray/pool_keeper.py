"""The keeper of a pool: the one actor that starts its devices, ends them, and starts them anew.

It has an executor as clients have, without deployments, and beats as any party: they say which
version of its table is the last. Ray starts it again if it ends; devices go on meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import ray

from hetero.scheduler.ray.devices import PoolTable
from hetero.scheduler.ray.executor import RayExecutor
from hetero.scheduler.ray.pool import KEEPER, KEEPERS, Pool, announce, pool_actors

#: What pins it to the cluster's head, without which nothing goes on.
_AT_THE_HEAD = {"node:__internal_head__": 0.001}
_THREADS = 16


class PoolKeeper:
    """Keeps the devices of the cluster's pool."""

    def __init__(self) -> None:
        # Ray would end the process once its tasks have.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._executor = RayExecutor(keeps_pool=True)
        self._executor.keep(list(pool_actors()))  # of one before

    def table(self, wait: bool) -> PoolTable:
        """Return the devices of the nodes that are alive; `wait`: for what new ones have to say."""
        return self._executor.pool_table(wait=wait)

    def start(self, names: Sequence[str]) -> PoolTable:
        """Start devices, if they are not, and keep them; return all.

        Raises what `RayDevices.reached` does.
        """
        self._executor.keep(names)
        return self.table(wait=False)

    def start_all(self) -> None:
        """Start every device that works and that a bare ``HETERO`` means."""
        self._executor.keep(
            [d.name for d in self._executor.devices() if d.automatic and not d.error]
        )


def open_pool(pool: Pool) -> Any:
    """Tell the cluster of a pool and start its keeper, if there is none; return its actor.

    Raises ClusterError: the cluster has another pool.
    """
    announce(pool)
    remote: Any = ray.remote
    return (
        remote(PoolKeeper)
        .options(
            name=KEEPER,
            namespace=KEEPERS,
            lifetime="detached",
            get_if_exists=True,
            max_concurrency=_THREADS,
            max_restarts=-1,
            max_task_retries=-1,
            num_cpus=0,
            resources=_AT_THE_HEAD,
        )
        .remote()
    )
