"""Supervisor of a pool: the only actor that starts, stops and restarts the pool's devices.

It owns an executor without deployments. Its heartbeats contain the version of its device table.
Ray restarts the supervisor if it ends; the devices keep running meanwhile.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any

import ray

from hetero.scheduler.ray.devices import PoolTable
from hetero.scheduler.ray.executor import RayExecutor
from hetero.scheduler.ray.pool import SUPERVISOR, SUPERVISORS, Pool, announce, pool_actors

#: Resources that pin the supervisor to the head node, which the cluster cannot work without.
_AT_THE_HEAD = {"node:__internal_head__": 0.001}
_THREADS = 16


class PoolSupervisor:
    """Actor that supervises the devices of the cluster's pool."""

    def __init__(self) -> None:
        # Ray's handler would end the process only after its tasks.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._executor = RayExecutor(keeps_pool=True)
        self._executor.keep(list(pool_actors()))  # started by a predecessor

    def table(self, wait: bool) -> PoolTable:
        """Return the device table of the pool; `wait`: whether to wait for new nodes."""
        return self._executor.pool_table(wait=wait)

    def start(self, names: Sequence[str]) -> PoolTable:
        """Start devices that do not run, and supervise them; return the device table.

        Raises the errors of `RayDevices.with_addresses`.
        """
        self._executor.keep(names)
        return self.table(wait=False)

    def start_all(self) -> None:
        """Start every working device that a bare ``HETERO`` includes."""
        self._executor.keep(
            [d.name for d in self._executor.devices() if d.automatic and not d.error]
        )


def open_pool(pool: Pool) -> Any:
    """Announce a pool and start its supervisor if none runs; return the supervisor's actor.

    Raises ClusterError: the cluster has a different pool.
    """
    announce(pool)
    remote: Any = ray.remote
    return (
        remote(PoolSupervisor)
        .options(
            name=SUPERVISOR,
            namespace=SUPERVISORS,
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
