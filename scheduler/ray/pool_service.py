"""Bringing a pool up, looking at it, and taking it down."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import ray
from ray import exceptions

from hetero.devices.errors import ClusterError
from hetero.scheduler.ray.devices import answer, why_lost
from hetero.scheduler.ray.own_head import find_head, start_head, stop_head
from hetero.scheduler.ray.pool import Pool, dissolve, find_pool, pool_actors
from hetero.scheduler.ray.pool_keeper import open_pool
from hetero.scheduler.ray.start import connect

#: Seconds that a device may take to say how it is.
_STATUS_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """A device of a pool.

    `process`: its actor's process id; 0 where it says nothing.
    `tasks`, `running`: tasks that it holds, and of those that run.
    `kept_nbytes`: bytes of the tensors that it keeps for clients.
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
    """A pool: the address of its cluster, what it offers, and its devices that were started."""

    address: str
    pool: Pool
    devices: tuple[PoolDevice, ...]


def bring_up(
    address: str | None = None,
    devices: Mapping[str, int] | None = None,
    plugins: Sequence[str] = (),
) -> PoolStatus:
    """Announce a pool in a cluster and start its devices; again is harmless.

    `address`: the cluster; by default what ``RAY_ADDRESS`` says, and without it a Ray of this
        user's own on this machine, which is started if there is none.
    `devices`: plugin -> logical devices on each node.
    `plugins`: ``module:attr``, importable on each node.
    Raises ClusterError: there is another pool, or no Ray can be started or reached.
    """
    known = address or os.environ.get("RAY_ADDRESS") or find_head()
    try:
        address = known or start_head()
        with _joined(address):
            keeper = open_pool(Pool(dict(devices or {}), tuple(plugins)))
            answer(keeper.start_all.remote(), "the pool's keeper")
            return _status(address)
    except BaseException:
        if known is None:  # a Ray without a pool is of use to nobody
            stop_head()
        raise


def look_at(address: str | None = None) -> PoolStatus:
    """Return how a pool is; ClusterError if none is up, or its cluster cannot be reached."""
    address = _known(address)
    with _joined(address):
        return _status(address)


def take_down(address: str | None = None) -> tuple[str, ...]:
    """End a pool's devices, and its Ray where `bring_up` started that; return their names.

    Raises ClusterError: none is up, or its cluster cannot be reached.
    """
    own = find_head()
    address = _known(address)
    with _joined(address):
        names = dissolve()
    if address == own:
        stop_head()
    return tuple(names)


def _known(address: str | None) -> str:
    found = address or os.environ.get("RAY_ADDRESS") or find_head()
    if found is None:
        raise ClusterError(
            "no pool is up on this machine; `hetero pool up` starts one. That of a cluster is "
            "named by --address HOST:PORT."
        )
    return found


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
        told = ray.get(ref, timeout=_STATUS_S)
    except exceptions.GetTimeoutError:
        return PoolDevice(name, error=f"its process did not answer within {_STATUS_S:.0f} s")
    except exceptions.RayError as error:
        return PoolDevice(name, error=why_lost(error))
    tasks, running, kept_nbytes = (int(told[n]) for n in ("tasks", "running", "kept_nbytes"))
    return PoolDevice(name, told["pid"], told["clients"], tasks, running, kept_nbytes)
