"""Pool administration: start a pool, report its status, and stop it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import exceptions

from hetero.devices.errors import ClusterError
from hetero.scheduler.ray.auto_address import find_cluster
from hetero.scheduler.ray.devices import answer, why_lost
from hetero.scheduler.ray.local_cluster import find_head, start_head, stop_head
from hetero.scheduler.ray.pool import Pool, dissolve, find_pool, pool_actors
from hetero.scheduler.ray.pool_supervisor import open_pool
from hetero.scheduler.ray.session import connect

#: Time limit for a device to report its status, in seconds.
_STATUS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """Status of one device of a pool.

    `process`: process id of its actor; 0 if it does not respond.
    `tasks`, `running`: number of its tasks, and of those that run now.
    `kept_nbytes`: size of its resident tensors, in bytes.
    """

    name: str
    process: int = 0
    clients: int = 0
    tasks: int = 0
    running: int = 0
    kept_nbytes: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """Status of a pool: the address of its cluster, its description, and its running devices."""

    address: str
    pool: Pool
    devices: tuple[PoolDevice, ...]


def bring_up(
    address: str | None = None,
    devices: Mapping[str, int] | None = None,
    plugins: Sequence[str] = (),
) -> PoolStatus:
    """Announce a pool in a cluster and start its devices; idempotent.

    `address`: the cluster's address; defaults to ``RAY_ADDRESS``, and without it to the user's
        local cluster on this machine, which is started if it does not run.
    `devices`: plugin -> number of logical devices per node.
    `plugins`: ``module:attr``, importable on each node.
    Raises ClusterError: the cluster has a different pool, or no Ray can be started or reached.
    """
    existing_address = _existing(address)
    try:
        address = existing_address or start_head()
        with _joined(address):
            supervisor = open_pool(Pool(dict(devices or {}), tuple(plugins)))
            answer(supervisor.start_all.remote(), "the pool supervisor")
            return _status(address)
    except BaseException:
        if existing_address is None:  # a local cluster without a pool has no use
            stop_head()
        raise


def look_at(address: str | None = None) -> PoolStatus:
    """Return the status of a pool.

    Raises ClusterError: no pool is up, or its cluster cannot be reached.
    """
    address = _known(address)
    with _joined(address):
        return _status(address)


def take_down(address: str | None = None) -> tuple[str, ...]:
    """End a pool's devices, and its cluster if `bring_up` started it; return the device names.

    Raises ClusterError: no pool is up, or its cluster cannot be reached.
    """
    own = find_head()
    address = _known(address)
    with _joined(address):
        names = dissolve()
    if address == own:
        stop_head()
    return tuple(names)


def _existing(address: str | None) -> str | None:
    """Return the address of a running cluster, as HOST:PORT; None if there is none."""
    named = address or os.environ.get("RAY_ADDRESS")
    return find_cluster() if named == "auto" else named or find_head()


def _known(address: str | None) -> str:
    resolved = _existing(address)
    if resolved is None:
        raise ClusterError(
            "no pool is up on this machine; `hetero pool up` starts one. That of a cluster is "
            "named by --address HOST:PORT."
        )
    return resolved


@contextlib.contextmanager
def _joined(address: str) -> Iterator[None]:
    session = connect(address)
    try:
        yield
    finally:
        session.close(parts=True)


def _status(address: str) -> PoolStatus:
    pool = find_pool()
    if pool is None:
        raise ClusterError(
            f"the cluster at {address} has no pool; `hetero pool up --address {address}` makes "
            "one.",
            address=address,
        )
    actors = pool_actors()
    refs = {name: actor.status.remote() for name, actor in actors.items()}
    return PoolStatus(address, pool, tuple(_device(name, ref) for name, ref in refs.items()))


def _device(name: str, ref: Any) -> PoolDevice:
    try:
        status = ray.get(ref, timeout=_STATUS_S)
    except exceptions.GetTimeoutError:
        return PoolDevice(name, error=f"its process did not answer within {_STATUS_S:.0f} s")
    except exceptions.RayError as error:
        return PoolDevice(name, error=why_lost(error))
    tasks, running, kept_nbytes = (int(status[n]) for n in ("tasks", "running", "kept_nbytes"))
    return PoolDevice(name, status["pid"], status["clients"], tasks, running, kept_nbytes)
