"""Pool: devices of a cluster that several clients share, and that outlive each client.

The cluster's store contains the pool's description: device counts and plugins. The devices are
actors; the pool supervisor starts them, restarts lost ones, and publishes a device table for the
clients. A client that leaves unloads only its own stages.
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
from hetero.scheduler.device.discovery import PluginSpec
from hetero.scheduler.ray.private_api import ClusterStore

#: Ray namespaces of the pool's devices and of its supervisor; the supervisor's actor name.
NAMESPACE: Final = "hetero-pool"
SUPERVISORS: Final = "hetero-pool-supervisor"
SUPERVISOR: Final = "supervisor"
_STORE: Final = ClusterStore(b"hetero-pool")
_KEY: Final = b"pool"
_VERSION: Final = 2
#: Time limit for devices to release sockets and shared memory before they are killed, in seconds.
_LEAVE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Pool:
    """Description of a pool.

    `devices`: plugin -> number of logical devices per node.
    `plugins`: plugins in addition to the installed ones: ``module:attr``.
    """

    devices: Mapping[str, int] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()

    def offers(self, devices: Mapping[str, int], plugins: Sequence[PluginSpec]) -> bool:
        """Whether the pool offers the devices that a client requests."""
        return all(self.devices.get(name, 1) == n for name, n in devices.items()) and all(
            plugin in self.plugins for plugin in plugins
        )

    def options(self, device: str) -> dict[str, Any]:
        """Return the actor options of a device: get the actor by its name, or create it."""
        return {
            "name": device,
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "get_if_exists": True,
        }


def announce(pool: Pool) -> None:
    """Store a pool's description in the cluster.

    Raises ClusterError: the cluster has a different pool.
    """
    announced = find_pool()
    if announced is not None and announced != pool:
        raise ClusterError(
            f"the cluster has a pool of other devices: {dict(announced.devices)}, plugins "
            f"{list(announced.plugins)}. Take it down first: hetero pool down."
        )
    form = [_VERSION, dict(pool.devices), list(pool.plugins)]
    _STORE.put(_KEY, encode(form))


def find_pool() -> Pool | None:
    """Return the pool of this process's cluster; None without one.

    Raises ClusterError: the pool's format has another version.
    """
    encoded = _STORE.get(_KEY)
    if not encoded:
        return None
    version, devices, plugins = decode(encoded)
    if version != _VERSION:
        raise ClusterError(
            f"the cluster's pool is of version {version}; this program supports {_VERSION}. Take "
            "it down with the version that made it: hetero pool down."
        )
    return Pool(devices, tuple(plugins))


def pool_supervisor() -> Any:
    """Return the actor of the pool supervisor.

    Raises ClusterError: it does not run.
    """
    try:
        return ray.get_actor(SUPERVISOR, namespace=SUPERVISORS)
    except ValueError as error:
        raise ClusterError(
            "the supervisor of the cluster's pool does not run. Bring the pool up: hetero pool up.",
            cause=str(error),
        ) from error


def pool_actors() -> dict[str, Any]:
    """Return the running actors of the pool's devices, by device name."""
    actors = {}
    for row in list_named_actors(all_namespaces=True):
        if row["namespace"] == NAMESPACE:
            try:
                actors[row["name"]] = ray.get_actor(row["name"], namespace=NAMESPACE)
            except ValueError:  # the actor has just ended
                continue
    return dict(sorted(actors.items()))


def dissolve() -> list[str]:
    """End the pool's devices, even if clients use them; return their names."""
    _STORE.delete(_KEY)
    with contextlib.suppress(ClusterError):  # no supervisor runs
        ray.kill(pool_supervisor())
    actors = pool_actors()
    end_devices(actors.values())
    return list(actors)


def end_devices(actors: Collection[Any]) -> None:
    """End actors, after they have released the resources that survive a killed process."""
    refs = [actor.release_resources.remote() for actor in actors]
    if refs:
        ray.wait(refs, num_returns=len(refs), timeout=_LEAVE_S)
    for actor in actors:
        ray.kill(actor)
