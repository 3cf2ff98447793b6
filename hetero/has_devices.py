"""What a Core says of its devices, and their memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from devices.plugin.remote import RemoteContext
from hetero.cache.blob import hetero_version
from hetero.query.device_choice import check_counts, choose_devices
from scheduler.device_names import HETERO, parse_device
from scheduler.executor import DeviceDescriptor, Executor


class HasDevices(ABC):
    """Part of `Core`."""

    #: Plugin -> how many devices of it each node is to offer.
    _device_counts: Mapping[str, int]

    @property
    @abstractmethod
    def executor(self) -> Executor:
        """The executor, started on first use."""

    @property
    def device_descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Every device, broken plugins included as rows with their error.

        Raises
        ------
        UnknownDeviceError
            If `devices` counts devices of a plugin that is not there.
        """
        check_counts(self._device_counts, rows := self.executor.devices())
        return rows

    @property
    def available_devices(self) -> list[str]:
        """Names of the devices that work: ``NAME`` where there is one, else ``NAME.<id>``."""
        return [d.name for d in self.device_descriptors if d.error is None]

    def resolve_devices(self, device_name: str) -> tuple[str, ...]:
        """Return the devices that a device string means, in order of priority.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a device that is not there, listing those that are, or whose plugin is broken.
        """
        return choose_devices(device_name, self.device_descriptors)

    def get_versions(self, device_name: str) -> dict[str, str]:
        """Return the version of each plugin that a device string names.

        Raises
        ------
        UnknownDeviceError
            For a device that is not there.
        """
        by_name = {d.name: d for d in self.device_descriptors}
        found = {by_name[n].plugin: by_name[n].version for n in self.resolve_devices(device_name)}
        return {HETERO: hetero_version(), **found} if parse_device(device_name).hetero else found

    def create_context(self, device_name: str) -> RemoteContext:
        """Return a device's memory: its tensors stay in the device's process between requests.

        Parameters
        ----------
        device_name : str
            One device.

        Returns
        -------
        RemoteContext
            Its tensors are inputs and outputs of requests of this Core's models on any device,
            and do not pass through this process.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a device that is not there, or whose plugin is broken.
        """
        return self.executor.create_context(device_name)
