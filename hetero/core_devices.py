"""Devices of a Core: the executor, which the first use starts, and the plugins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from hetero.devices.errors import ClusterError, HeteroError, UnsupportedOperationError
from hetero.devices.model.model import Model
from hetero.devices.plugin.registry import with_name
from hetero.devices.plugin.support import Support
from hetero.properties.device_selection import check_counts, select_devices
from hetero.scheduler import create_executor
from hetero.scheduler.device.discovery import PluginSpec
from hetero.scheduler.executor import Executor
from hetero.scheduler.inprocess import InProcessExecutor
from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import ObservedRequest, Observer
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import HETERO, parse_device
from hetero.version import Version, hetero_version

ExecutorKind = Literal["ray", "inprocess"]


class Devices:
    """The devices of a Core.

    `counts`: plugin -> number of devices per node.
    `executor_options`: returns further options of the executor when it starts.
    """

    def __init__(
        self,
        kind: ExecutorKind,
        address: str | None,
        counts: Mapping[str, int],
        plugins: Sequence[PluginSpec],
        executor_options: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.kind: ExecutorKind = kind
        self.plugins = tuple(plugins)
        #: Observers of requests.
        self.observers: Final[list[Observer]] = []
        #: Set by the first use of a device.
        self.running_executor: Executor | None = None
        self._address = address
        self._counts = counts
        self._executor_options = executor_options
        self._lock = threading.RLock()
        self._closed = False

    def __str__(self) -> str:
        if self.running_executor is None:
            return f"{self.kind}: not started"
        return f"{self.kind}: {', '.join(d.name for d in self.descriptors())}"

    def get_executor(self) -> Executor:
        """Return the executor; the first call starts it."""
        with self._lock:
            if self._closed:
                raise ClusterError("this Core is closed; create another.")
            if self.running_executor is None:
                self.running_executor = create_executor(
                    self.kind,
                    address=self._address,
                    devices=self._counts,
                    plugins=self.plugins,
                    observers=self.observers,
                    **self._executor_options(),
                )
            return self.running_executor

    def descriptors(self) -> tuple[DeviceDescriptor, ...]:
        """Return the descriptors of all devices; that of a broken plugin has its error."""
        check_counts(self._counts, descriptors := self.get_executor().devices())
        return descriptors

    def query(self, device: str, model: Model, config: Mapping[str, Any]) -> Support:
        """Query a device about a model."""
        return self.get_executor().query(device, model, config)

    def get_property(self, device: str, name: str) -> Any:
        """Return a property of a device."""
        return self.get_executor().get_property(device, name)

    def resolve(self, device: str) -> tuple[str, ...]:
        """Return the names of the devices of a device string, in order of priority."""
        return select_devices(device, self.descriptors())

    def add_of_family(self, family: str, count: int) -> bool:
        """Request nodes until a family has so many devices; return whether it then has them."""

        def num_devices() -> int:
            return sum(d.family == family and d.error is None for d in self.descriptors())

        missing = count - num_devices()
        if missing <= 0:
            return True
        return self.get_executor().add_nodes(missing, lambda: num_devices() >= count)

    def describe(self, names: Iterable[str]) -> tuple[DeviceDescriptor, ...]:
        """Return the descriptors of some devices."""
        by_name = {descriptor.name: descriptor for descriptor in self.descriptors()}
        return tuple(by_name[name] for name in names)

    def versions(self, device: str) -> dict[str, Version]:
        """Return the versions of the plugins of a device string."""
        versions = {d.plugin: d.version for d in self.describe(self.resolve(device))}
        if parse_device(device).hetero:
            versions = {HETERO: hetero_version(), **versions}
        return {name: Version(text, f"plugin {name}") for name, text in versions.items()}

    def register_plugin(self, plugin: PluginSpec, name: str | None) -> None:
        """Register a plugin that is not installed; see `Core.register_plugin`."""
        if name is not None:
            plugin = f"{name}={plugin}" if isinstance(plugin, str) else with_name(plugin, name)
        with self._lock:
            executor = self.get_executor() if self.kind == "inprocess" else self.running_executor
            if isinstance(executor, InProcessExecutor):
                executor.add_plugin(plugin)
            elif executor is not None:
                raise UnsupportedOperationError(
                    "register_plugin: the devices of the cluster are in use. Register plugins "
                    "before the first call that needs a device."
                )
            self.plugins = (*self.plugins, plugin)

    def unload_plugin(self, name: str) -> None:
        """Unload a plugin; see `Core.unload_plugin`."""
        executor = self.get_executor() if self.kind == "inprocess" else None
        if not isinstance(executor, InProcessExecutor):
            raise UnsupportedOperationError(
                "unload_plugin: the nodes of a cluster load their plugins themselves. Close this "
                "Core and create another."
            )
        executor.unload_plugin(name)

    def nodes(self) -> Mapping[str, str]:
        """Return the node of each device, if the executor is running."""
        try:
            descriptors = () if self.running_executor is None else self.running_executor.devices()
        except HeteroError:  # without the cluster, node names are unknown
            descriptors = ()
        return {device.name: device.node for device in descriptors}

    def in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests in flight."""
        executor = self.running_executor
        return () if executor is None else executor.requests_in_flight()

    def load(self) -> Load:
        """Return the numbers of waiting and running requests and tasks."""
        executor = self.running_executor
        return Load() if executor is None else executor.load()

    def close(self) -> None:
        """Close the executor, and with it all devices."""
        with self._lock:
            executor, self.running_executor = self.running_executor, None
            self._closed = True
        if executor is not None:
            executor.close()
