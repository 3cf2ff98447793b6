"""The pool: devices of a cluster that several clients share, and that outlive each of them.

A pool is announced in the cluster: what its nodes offer, by which plugins. Its devices are actors
that its keeper starts, and starts anew when they are lost; clients go by what that says of them.
Who leaves takes nothing with it but its own stages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import ray
from msgspec.msgpack import decode, encode
from ray.util import list_named_actors

from hetero.devices.errors import ClusterError
from hetero.scheduler.device.probe import PluginSpec
from hetero.scheduler.ray.private_api import ClusterStore

#: The Ray namespaces of the actors of pools' devices, and of their keepers; a keeper's name.
NAMESPACE: Final = "hetero-pool"
KEEPERS: Final = "hetero-pool-keeper"
KEEPER: Final = "keeper"
_STORE: Final = ClusterStore(b"hetero-pool")
_KEY: Final = b"pool"
_VERSION: Final = 2
#: Seconds that devices may take to let go of what they have, in the end.
_LEAVE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Pool:
    """What a pool offers.

    `devices`: plugin -> how many logical devices each node offers.
    `plugins`: plugins besides the installed ones: ``module:attr``.
    """

    devices: Mapping[str, int] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    def serves(self, devices: Mapping[str, int], plugins: Sequence[PluginSpec]) -> bool:
        """Whether a client that wants these devices finds them in the pool."""
        return all(self.devices.get(name, 1) == n for name, n in devices.items()) and all(
            plugin in self.plugins for plugin in plugins
        )

    def options(self, device: str) -> dict[str, Any]:
        """Return the options of a device's actor: found by its name, or made with it."""
        return {
            "name": device,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
        }


def announce(pool: Pool) -> None:
    """Tell the cluster of a pool; ClusterError if it has another."""
    known = find_pool()
    if known is not None and known != pool:
        raise ClusterError(
            f"the cluster has a pool of other devices: {dict(known.devices)}, plugins "
            f"{list(known.plugins)}. Take it down first: hetero pool down."
        )
    form = [_VERSION, dict(pool.devices), list(pool.plugins)]
    _STORE.put(_KEY, encode(form))


def find_pool() -> Pool | None:
    """Return the pool of the cluster that this process is in; None without one.

    Raises ClusterError: it is of another version.
    """
    held = _STORE.get(_KEY)
    if not held:
        return None
    version, devices, plugins = decode(held)
    if version != _VERSION:
        raise ClusterError(
            f"the cluster's pool is of version {version}; this program knows {_VERSION}. Take it "
            "down with the version that made it: hetero pool down."
        )
    return Pool(devices, tuple(plugins))


def pool_keeper() -> Any:
    """Return the actor of the pool's keeper; ClusterError if there is none."""
    try:
        return ray.get_actor(KEEPER, namespace=KEEPERS)
    except ValueError as error:
        raise ClusterError(
            "the cluster's pool has no keeper, or not yet. Bring the pool up: hetero pool up.",
            cause=str(error),
        ) from error


def pool_actors() -> dict[str, Any]:
    """Return the actors of the pool's devices that were started, by device."""
    found = {}
    for row in list_named_actors(all_namespaces=True):
        if row["namespace"] == NAMESPACE:
            try:
                found[row["name"]] = ray.get_actor(row["name"], namespace=NAMESPACE)
            except ValueError:  # it has just ended
                continue
    return dict(sorted(found.items()))


def dissolve() -> list[str]:
    """End the pool's devices, whoever uses them; return their names."""
    _STORE.delete(_KEY)
    with contextlib.suppress(ClusterError):  # it has none
        ray.kill(pool_keeper())
    actors = pool_actors()
    end_devices(actors.values())
    return list(actors)


def end_devices(actors: Collection[Any]) -> None:
    """End actors; what a process has that is killed, nothing removes."""
    refs = [actor.leave.remote() for actor in actors]
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=_LEAVE_S)
    for actor in actors:
        ray.kill(actor)
