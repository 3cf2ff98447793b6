"""Discovery of a node's devices: loads the plugins and describes their devices.

A plugin that fails to load is listed with its error. Additional logical devices are assigned to a
plugin's physical devices in round-robin order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hetero.devices.errors import DeviceError, HeteroError
from hetero.devices.plugin.crash_marks import marked
from hetero.devices.plugin.plugin import Plugin
from hetero.devices.plugin.registry import PluginEntry, load_plugins
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import assign_names

#: Reference to a plugin: ``module:attr``, or the class.
PluginSpec = str | type[Plugin]


def probe_node(
    node: str,
    specs: Sequence[PluginSpec] = (),
    counts: Mapping[str, int] | None = None,
    num_cores: int | None = None,
    entries: Mapping[str, PluginEntry] | None = None,
) -> tuple[DeviceDescriptor, ...]:
    """Return this node's devices, in the plugins' order, before the cluster assigns names.

    `counts`: number of logical devices by plugin; by default one per physical device.
    `num_cores`: maximum number of cores that devices use; by default all of this process's cores.
    """
    entries = load_plugins(specs) if entries is None else entries
    rows = [row for entry in entries.values() for row in _rows(node, entry, counts or {})]
    cores = len(os.sched_getaffinity(0))
    cores = min(cores, num_cores) if num_cores else cores
    return tuple(replace(row, num_threads=cores if row.num_threads else 1) for row in rows)


def with_cluster_names(rows: Sequence[DeviceDescriptor]) -> tuple[DeviceDescriptor, ...]:
    """Assign cluster names to the devices of a single node."""
    names = assign_names([row.family for row in rows])
    return tuple(replace(row, name=name) for row, name in zip(rows, names, strict=True))


def usable(descriptor: DeviceDescriptor) -> DeviceDescriptor:
    """Return the descriptor, or raise the error that it carries.

    Raises DeviceError: the plugin could not be loaded.
    """
    if descriptor.error is not None:
        raise DeviceError(
            f"device {descriptor.name} on node {descriptor.node} cannot be used: "
            f"{descriptor.error}",
            device=descriptor.name,
        )
    return descriptor


def _rows(node: str, entry: PluginEntry, counts: Mapping[str, int]) -> list[DeviceDescriptor]:
    plugin = entry.plugin
    if plugin is None:
        row = DeviceDescriptor(entry.name, entry.name, "", node, error=entry.error)
        return [] if counts.get(entry.name) == 0 else [row]
    try:
        with marked(entry.source):
            ids = plugin.device_ids()
            count = counts.get(plugin.name, len(ids))
            if count and not ids:
                raise DeviceError(
                    f"{plugin.name} finds no device on node {node}", device=plugin.name
                )
            device_ids = [ids[i % len(ids)] for i in range(count)]
            return [
                _describe(node, plugin, device, f"{plugin.name}.{i}", device_ids.count(device))
                for i, device in enumerate(device_ids)
            ]
    except (Exception, SystemExit) as error:  # list a broken plugin with its error
        kind = "" if isinstance(error, HeteroError) else f"{type(error).__name__}: "
        reason = f"{kind}{error}"
        return [DeviceDescriptor(entry.name, entry.name, "", node, error=reason)]


def _describe(
    node: str, plugin: Plugin, device_id: str, name: str, sharing: int
) -> DeviceDescriptor:
    """Describe one of `sharing` logical devices that share a physical device and its memory."""
    owns_memory = "DEVICE_TOTAL_MEM_SIZE" in plugin.properties
    memory_nbytes = (
        int(plugin.get_property("DEVICE_TOTAL_MEM_SIZE", device_id)) // sharing
        if owns_memory
        else _node_memory_nbytes()
    )
    integrated = plugin.get_property("DEVICE_TYPE", device_id) != "DISCRETE"
    return DeviceDescriptor(
        name,
        plugin.name,
        device_id,
        node,
        plugin.full_name(device_id),
        plugin.version(),
        plugin.fingerprint(device_id),
        tuple(plugin.get_property("OPTIMIZATION_CAPABILITIES", device_id)),
        None,
        memory_nbytes,
        int(plugin.automatic and integrated),
        plugin.automatic,
        plugin.rank,
        not owns_memory,
        plugin.memory_traits,
        plugin.properties.extended(
            replace(plugin.properties["DEVICE_ID"], mutable=False, default=device_id)
        ),
        computes=plugin.computes,
    )


def _node_memory_nbytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
