"""Descriptors of the devices of a cluster, and of plugins that failed to load."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hetero.devices.plugin.memory_traits import MemoryTraits
from hetero.devices.plugin.plugin_source import PluginSource
from hetero.devices.plugin.properties import COMMON_PROPERTIES, PropertyTable

#: Node name of devices in this process.
THIS_PROCESS: Final = "local"


@dataclass(frozen=True, slots=True)
class DeviceDescriptor:
    """A device of the cluster, or a plugin that failed to load.

    Attributes
    ----------
    name : str
        ``PLUGIN`` if the cluster has one such device, otherwise ``PLUGIN.<id>``. Ids are counted
        across the cluster, starting with the head node.
    plugin : str
        Name of the plugin.
    device_id : str
        Id of the device within its plugin and node; the value of ``DEVICE_ID``.
    node : str
        Display name of the node; ``local`` in process.
    full_name, version, fingerprint : str
        Values that the plugin reports.
    capabilities : tuple of str
        The plugin's ``OPTIMIZATION_CAPABILITIES``.
    error : str or None
        Reason why the plugin cannot be used.
    memory_nbytes : int or None
        Memory of the device, or its share of the node's memory.
    num_threads : int
        Threads for ``INFERENCE_NUM_THREADS=0`` if a model uses no other device of the node: its
        cores, which the devices of a model on one node share. 1 for an accelerator.
    automatic : bool
        Whether a bare ``HETERO`` includes it.
    rank : int
        Priority in a bare ``HETERO``, lower first.
    shares_memory : bool
        Whether `memory_nbytes` is memory of the node that other devices use too.
    memory_traits : MemoryTraits
        The memory of the device's process, for plans that fit.
    properties : PropertyTable
        Properties of the plugin; ``DEVICE_ID`` is read-only, because the name determines it.
    computes : bool
        Whether the device computes the model's outputs; False for devices that only simulate.
    source : PluginSource or None
        The plugin of another Python interpreter, which runs the device; None for a plugin of the
        node's own interpreter.
    """

    name: str
    plugin: str
    device_id: str
    node: str
    full_name: str = ""
    version: str = ""
    fingerprint: str = ""
    capabilities: tuple[str, ...] = ()
    error: str | None = None
    memory_nbytes: int | None = None
    num_threads: int = 1
    automatic: bool = True
    rank: int = 50
    shares_memory: bool = False
    memory_traits: MemoryTraits = field(default_factory=MemoryTraits, repr=False, compare=False)
    properties: PropertyTable = field(
        default_factory=lambda: COMMON_PROPERTIES, repr=False, compare=False
    )
    source: PluginSource | None = None
    computes: bool = True

    @property
    def family(self) -> str:
        """Group in which the device is numbered: its plugin, or ``OV.GPU`` if ids are names."""
        has_named_id = self.device_id and not self.device_id.isdigit()
        return f"{self.plugin}.{self.device_id}" if has_named_id else self.plugin
