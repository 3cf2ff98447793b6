"""The pool: devices of a cluster that several clients share, and that outlive each of them.

A pool is announced in the cluster: what its nodes offer, by which plugins. Its devices are actors
with names, which every client finds. Who leaves takes nothing with it but its own stages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import ray
from ray import cloudpickle
from ray.experimental.internal_kv import (
    _internal_kv_del,
    _internal_kv_get,
    _internal_kv_put,
)
from ray.util import list_named_actors

from devices.errors import ClusterError
from scheduler.device.probe import PluginSpec
from scheduler.vocabulary.rows import DeviceDescriptor

#: The Ray namespace of pools' actors.
NAMESPACE: Final = "hetero-pool"
_TABLE: Final = b"hetero-pool"
_KEY: Final = b"pool"
_LISTINGS: Final = b"node"
_VERSION: Final = 1
#: Seconds that devices may take to let go of what they have, in the end.
_LEAVE_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class Pool:
    """What a pool offers.

    Attributes
    ----------
    devices : mapping of str to int
        Plugin -> how many logical devices each node offers.
    plugins : tuple of str
        Plugins besides the installed ones: ``module:attr``.
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


def keep_listing(node_id: str, rows: Sequence[DeviceDescriptor]) -> None:
    """Keep for all clients what a node has listed: to be asked costs it a process and seconds."""
    held = cloudpickle.dumps(tuple(rows))  # type: ignore[no-untyped-call]  # Ray's own gap
    _internal_kv_put(_listing(node_id), held, namespace=_TABLE)


def kept_listing(node_id: str) -> tuple[DeviceDescriptor, ...] | None:
    """Return what a node has listed for the pool; None where nobody has asked it."""
    held = _internal_kv_get(_listing(node_id), namespace=_TABLE)
    # Who may write there may run what it likes in the cluster: Ray keeps its functions there.
    rows: tuple[DeviceDescriptor, ...] | None = cloudpickle.loads(held) if held else None
    return rows


def _listing(node_id: str) -> bytes:
    return b"%s/%s" % (_LISTINGS, node_id.encode())


def announce(pool: Pool) -> None:
    """Tell the cluster of a pool.

    Raises ClusterError: it has another.
    """
    known = find_pool()
    if known is not None and known != pool:
        raise ClusterError(
            f"the cluster has a pool of other devices: {dict(known.devices)}, plugins "
            f"{list(known.plugins)}. Take it down first: hetero pool down."
        )
    form = [_VERSION, dict(pool.devices), list(pool.plugins)]
    _internal_kv_put(_KEY, msgpack.packb(form), overwrite=True, namespace=_TABLE)


def find_pool() -> Pool | None:
    """Return the pool of the cluster that this process is in; None without one.

    Raises ClusterError: it is of another version.
    """
    held = _internal_kv_get(_KEY, namespace=_TABLE)
    if not held:
        return None
    version, devices, plugins = msgpack.unpackb(held)
    if version != _VERSION:
        raise ClusterError(
            f"the cluster's pool is of version {version}; this program knows {_VERSION}. Take it "
            "down with the version that made it: hetero pool down."
        )
    return Pool(devices, tuple(plugins))


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
    _internal_kv_del(_KEY, namespace=_TABLE)
    _internal_kv_del(_LISTINGS, del_by_prefix=True, namespace=_TABLE)
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
