"""The devices of a Core: their executor, which the first use starts, and their plugins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from hetero.devices.errors import ClusterError, HeteroError, UnsupportedOperationError
from hetero.devices.plugin.registry import renamed
from hetero.properties.device_selection import check_counts, choose_devices
from hetero.scheduler import create_executor
from hetero.scheduler.device.probe import PluginSpec
from hetero.scheduler.executor import Executor
from hetero.scheduler.inprocess import InProcessExecutor
from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import ObservedRequest, Observer
from hetero.scheduler.vocabulary.names import HETERO, parse_device
from hetero.scheduler.vocabulary.rows import DeviceDescriptor
from hetero.version import Version, hetero_version

ExecutorKind = Literal["ray", "inprocess"]


class Devices:
    """The devices of a Core; `options` returns what was set of the executor when it starts."""

    def __init__(
        self,
        kind: ExecutorKind,
        address: str | None,
        counts: Mapping[str, int],
        plugins: Sequence[PluginSpec],
        options: Callable[[], Mapping[str, Any]],
    ) -> None:
        self.kind: ExecutorKind = kind
        self.plugins = tuple(plugins)
        #: Who is told of requests.
        self.observers: Final[list[Observer]] = []
        #: Set once the first device is needed.
        self.started: Executor | None = None
        self._address = address
        self._counts = counts
        self._options = options
        self._lock = threading.RLock()
        self._closed = False

    def __str__(self) -> str:
        names = "not started" if self.started is None else ", ".join(d.name for d in self.rows())
        return f"{self.kind}: {names}"

    @property
    def executor(self) -> Executor:
        """The executor, started on first use."""
        with self._lock:
            if self._closed:
                raise ClusterError("this Core is closed; make another.")
            if self.started is None:
                self.started = create_executor(
                    self.kind,
                    address=self._address,
                    devices=self._counts,
                    plugins=self.plugins,
                    observers=self.observers,
                    **self._options(),
                )
            return self.started

    def rows(self) -> tuple[DeviceDescriptor, ...]:
        """Return every device; a broken plugin is a row with its error."""
        check_counts(self._counts, rows := self.executor.devices())
        return rows

    def resolve(self, device: str) -> tuple[str, ...]:
        """Return the names of the devices that a device string means, in order of priority."""
        return choose_devices(device, self.rows())

    def described(self, names: Iterable[str]) -> tuple[DeviceDescriptor, ...]:
        """Return the rows of some devices."""
        by_name = {row.name: row for row in self.rows()}
        return tuple(by_name[name] for name in names)

    def versions(self, device: str) -> dict[str, Version]:
        """Return the version of each plugin that a device string names."""
        found = {row.plugin: row.version for row in self.described(self.resolve(device))}
        if parse_device(device).hetero:
            found = {HETERO: hetero_version(), **found}
        return {name: Version(text, f"plugin {name}") for name, text in found.items()}

    def register_plugin(self, plugin: PluginSpec, name: str | None) -> None:
        """Offer the devices of a plugin that is not installed; see `Core.register_plugin`."""
        if name is not None:
            plugin = f"{name}={plugin}" if isinstance(plugin, str) else renamed(plugin, name)
        with self._lock:
            executor = self.executor if self.kind == "inprocess" else self.started
            if isinstance(executor, InProcessExecutor):
                executor.add_plugin(plugin)
            elif executor is not None:
                raise UnsupportedOperationError(
                    "register_plugin: the devices of the cluster are in use. Register plugins "
                    "before the first call that needs a device."
                )
            self.plugins = (*self.plugins, plugin)

    def unload_plugin(self, name: str) -> None:
        """Let go of a plugin; see `Core.unload_plugin`."""
        executor = self.executor if self.kind == "inprocess" else None
        if not isinstance(executor, InProcessExecutor):
            raise UnsupportedOperationError(
                "unload_plugin: the devices of a cluster are loaded by its nodes. Close this Core "
                "and make another."
            )
        executor.unload_plugin(name)

    def nodes(self) -> Mapping[str, str]:
        """Return the node of each device, if devices are in use."""
        try:
            rows = () if self.started is None else self.started.devices()
        except HeteroError:  # the cluster is lost: the rest goes without the nodes' names
            rows = ()
        return {device.name: device.node for device in rows}

    def in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended."""
        executor = self.started
        return () if executor is None else executor.requests_in_flight()

    def load(self) -> Load:
        """Return what waits and runs now."""
        executor = self.started
        return Load() if executor is None else executor.load()

    def close(self) -> None:
        """Give every device back."""
        with self._lock:
            executor, self.started = self.started, None
            self._closed = True
        if executor is not None:
            executor.close()
