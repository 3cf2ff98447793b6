"""A cluster's list of devices: one row for each, and for each plugin that is broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from hetero.devices.plugin.plugin_source import PluginSource
from hetero.devices.plugin.properties import COMMON_PROPERTIES, PropertyTable

#: The node of devices in this process.
THIS_PROCESS: Final = "local"


@dataclass(frozen=True, slots=True)
class DeviceDescriptor:
    """A device of the cluster, or a plugin that could not be loaded.

    Attributes
    ----------
    name : str
        ``PLUGIN`` where the cluster has one such device, else ``PLUGIN.<id>``, ids counted
        through the cluster, the head node's first.
    plugin : str
        The plugin's name.
    device_id : str
        Its id for the plugin, on its node: what ``DEVICE_ID`` is set to.
    node : str
        The node's name for people; ``local`` in process.
    full_name, version, fingerprint : str
        As the plugin gives them.
    capabilities : tuple of str
        The plugin's ``OPTIMIZATION_CAPABILITIES``.
    error : str or None
        Why the plugin cannot be used; such a row takes no work.
    memory_nbytes : int or None
        Memory of its own, or its share of its node's with those that compute there too.
    num_threads : int
        What ``INFERENCE_NUM_THREADS=0`` comes to for a model that uses no other device of the
        node: its cores. Devices of one node that a model uses share them. 1 for a device that
        computes elsewhere.
    automatic : bool
        Whether a bare ``HETERO`` means it too.
    rank : int
        Its place in a bare ``HETERO``, lower first.
    shares_memory : bool
        Whether `memory_nbytes` is the node's, which the node's other devices use too.
    properties : PropertyTable
        The plugin's, with the device's own id, which its name says already: read-only.
    source : PluginSource or None
        The plugin, where it is of another interpreter than the node's own, which then runs the
        device; None for the node's own.
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
    properties: PropertyTable = field(
        default_factory=lambda: COMMON_PROPERTIES, repr=False, compare=False
    )
    source: PluginSource | None = None

    @property
    def family(self) -> str:
        """What it is numbered among: its plugin, or ``OV.GPU`` where ids are names."""
        named = self.device_id and not self.device_id.isdigit()
        return f"{self.plugin}.{self.device_id}" if named else self.plugin
