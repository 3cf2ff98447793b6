"""What a Core says of its devices, and their memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping

from devices.errors import UnsupportedOperationError
from devices.plugin.registry import renamed
from devices.plugin.remote import RemoteContext
from hetero.cache.blob import hetero_version
from hetero.query.device_choice import check_counts, choose_devices
from scheduler.device.probe import PluginSpec
from scheduler.executor import Executor
from scheduler.inprocess import InProcessExecutor
from scheduler.vocabulary.names import HETERO, parse_device
from scheduler.vocabulary.rows import DeviceDescriptor


class HasDevices(ABC):
    """Part of `Core`."""

    #: Plugin -> how many devices of it each node is to offer.
    _device_counts: Mapping[str, int]
    #: Plugins besides the installed ones.
    _plugins: tuple[PluginSpec, ...]
    #: Set once the first device is needed.
    _executor: Executor | None
    _kind: str
    _lock: threading.RLock

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

    def register_plugin(self, plugin: PluginSpec, device_name: str | None = None) -> None:
        """Offer the devices of a plugin that is not installed.

        Parameters
        ----------
        plugin : str or type
            ``module:attr``, an installed one's name, either with ``@PYTHON`` for one of another
            interpreter's, or a subclass of `devices.Plugin`. One that cannot be had is a device
            with its error, which its first use raises.
        device_name : str, optional
            The name of its devices, where it is not to be the plugin's own.

        Raises
        ------
        ArgumentError
            Another plugin has that name.
        UnsupportedOperationError
            The devices of a cluster are in use: register plugins before the first call that needs
            one.
        """
        if device_name is not None:
            plugin = (
                f"{device_name}={plugin}"
                if isinstance(plugin, str)
                else renamed(plugin, device_name)
            )
        with self._lock:
            executor = self.executor if self._kind == "inprocess" else self._executor
            if isinstance(executor, InProcessExecutor):
                executor.add_plugin(plugin)
            elif executor is not None:
                raise UnsupportedOperationError(
                    "register_plugin: the devices of the cluster are in use. Register plugins "
                    "before the first call that needs a device."
                )
            self._plugins = (*self._plugins, plugin)

    def unload_plugin(self, device_name: str) -> None:
        """Let go of a plugin: what it holds is made anew for models compiled from now on.

        Models made before keep working.

        Parameters
        ----------
        device_name : str
            The plugin's name.

        Raises
        ------
        UnknownDeviceError, PluginLoadError
            For a plugin that is not there, or is broken.
        UnsupportedOperationError
            Devices are a cluster's.
        """
        executor = self.executor if self._kind == "inprocess" else None
        if not isinstance(executor, InProcessExecutor):
            raise UnsupportedOperationError(
                "unload_plugin: the devices of a cluster are loaded by its nodes. Close this Core "
                "and make another."
            )
        executor.unload_plugin(device_name)

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
