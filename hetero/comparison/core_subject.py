"""Adapter that runs the conformance suite on the devices of a Core."""

from __future__ import annotations

from typing import Any, Final

from hetero.compile.compiled_model import CompiledModel
from hetero.core import Core
from hetero.devices.model.model import Model
from hetero.devices.plugin.properties import Config, PropertyTable
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.properties.table import HETERO_PROPERTIES, settable_table
from hetero.scheduler.types.device_names import HETERO, parse_device


class CoreSubject:
    """`hetero.devices.testing.Subject` that compiles models on a device string of a Core.

    If there are several devices, neighbouring nodes run on different ones.
    """

    computes: Final = True

    def __init__(self, core: Core, device_name: str) -> None:
        self.name: Final = device_name
        self._core = core
        self._devices = core.resolve_devices(device_name)
        #: Owner of the properties: HETERO, or the device.
        self._scope = HETERO if parse_device(device_name).hetero else device_name

    @property
    def properties(self) -> PropertyTable:
        """The properties of HETERO, or of the device."""
        if self._scope == HETERO:
            return HETERO_PROPERTIES
        (row,) = (row for row in self._core.device_descriptors if row.name == self._devices[0])
        return settable_table(row.properties)

    def get_property(self, name: str) -> Any:
        """Return a property's value."""
        return self._core.get_property(self._scope, name)

    def set_property(self, config: Config) -> None:
        """Set default properties of models that are compiled later."""
        self._core.set_property(self._scope, config)

    def query_model(self, model: Model, config: Config | None = None) -> Support:
        """Return the nodes that the devices support."""
        return self._core.query_model(model, self.name, config)

    def compile_model(self, model: Model, config: Config | None = None) -> CompiledModel:
        """Compile a model with neighbouring nodes on different devices."""
        return self._core.compile_model(model, self.name, config, affinity=self._spread_pins(model))

    def import_model(self, exported: bytes, model: Model, /) -> CompiledModel:
        """Return the compiled model of a blob."""
        return self._core.import_model(exported)

    def create_context(self) -> RemoteContext:
        """Return a context for the memory of the first device."""
        return self._core.create_context(self._devices[0])

    def _spread_pins(self, model: Model) -> dict[str, str]:
        """Return pins that place neighbouring nodes on different devices."""
        if len(self._devices) == 1:
            return {}
        support = {name: self._core.query_model(model, name) for name in self._devices}
        candidates = {
            node: [name for name in self._devices if node in support[name]]
            for node in model.node_names
        }
        return {
            node: names[i % len(names)]
            for i, (node, names) in enumerate(candidates.items())
            if names
        }
