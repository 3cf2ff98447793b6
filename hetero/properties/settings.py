"""Settings of a Core: options for all devices, for HETERO, and for single devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hetero.devices.errors import PropertyError, UnknownPropertyError
from hetero.devices.plugin.configuration import Configuration, check_mapping
from hetero.devices.plugin.properties import Config, PropertyTable
from hetero.properties.device_selection import (
    apply_device_id,
    select_devices,
    select_prioritised_devices,
)
from hetero.properties.log import set_logging_level
from hetero.properties.replicas_property import (
    REPLACED,
    REPLICAS,
    read_replaced,
    without_replaced,
)
from hetero.properties.table import (
    HETERO_PROPERTIES,
    SETTABLE_ON_DEVICES,
    SplitConfig,
    settable_table,
    split_options,
    split_shared_options,
)
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.device_names import HETERO, parse_device, split_name

#: The scope of HETERO and of every device that has a property.
GLOBAL_SCOPE: Final = "HETERO or any device"


class Settings:
    """The options set on a Core, which apply to models compiled later. Thread-safe.

    `descriptors`: returns the descriptors of all devices.
    `get_device_property`: returns a property of a device: device name, property name -> value.
    """

    def __init__(
        self,
        descriptors: Callable[[], Sequence[DeviceDescriptor]],
        get_device_property: Callable[[str, str], Any],
    ) -> None:
        self._descriptors = descriptors
        self._get_device_property = get_device_property
        self._global = Configuration(PropertyTable(), GLOBAL_SCOPE)
        self._configurations: dict[str, Configuration] = {}
        self._lock = threading.Lock()

    def property_tables(self) -> dict[str, PropertyTable]:
        """Return the property table of each usable device."""
        return {row.name: row.properties for row in self._descriptors() if row.error is None}

    def set(self, device: Any, config: Any) -> None:
        """Set options of GLOBAL_SCOPE, HETERO or a device; without effect if one is invalid."""
        configuration = self._scope(device)
        check_mapping(config, configuration.owner)
        config = without_replaced(config, stacklevel=3)
        if "DEVICE_PROPERTIES" in config:
            raise PropertyError(
                "DEVICE_PROPERTIES cannot be set. Set options of a device by its name, such as "
                "set_property('CPU', {'NUM_STREAMS': 2}), or pass them to compile_model.",
                property="DEVICE_PROPERTIES",
            )
        if configuration is self._global:
            split_shared_options(config, self.property_tables())
        for name in config:
            if name not in configuration.table and (explanation := self._explain_scope(name)):
                raise UnknownPropertyError(
                    f"no property {name!r} on {configuration.owner}: {explanation}, or pass it to "
                    "compile_model.",
                    property=name,
                )
        configuration.set(config)
        if "LOG_LEVEL" in config:
            is_shared = configuration.owner in (GLOBAL_SCOPE, HETERO)
            plugin = "" if is_shared else split_name(configuration.owner)[0]
            set_logging_level(plugin, configuration.get("LOG_LEVEL"))

    def executor_options(self, kind: str) -> dict[str, float]:
        """Return the options for the start of an executor of a kind."""
        return {"device_timeout_s": self.get(HETERO, "DEVICE_TIMEOUT_S")} if kind == "ray" else {}

    def refuse_executor_options(self, config: Any) -> None:
        """Raise PropertyError if `config` changes an option of the running executor."""
        name = "DEVICE_TIMEOUT_S"
        current = self.get(HETERO, name)
        requested = config.get(name, current) if isinstance(config, Mapping) else current
        if HETERO_PROPERTIES[name].parse(requested) != current:
            raise PropertyError(
                f"{name} cannot be changed here. Call set_property({HETERO!r}, {{{name!r}: "
                f"{requested}}}) on a Core with executor 'ray' before the first use of a device.",
                property=name,
            )

    def get(self, device: Any, name: str) -> Any:
        """Return an option of a scope: its own setting, the global setting, or the default."""
        configuration = self._scope(device)
        if name == "SUPPORTED_PROPERTIES":
            return configuration.table.mutability
        if name in REPLACED and REPLICAS.name in configuration.table:
            return read_replaced(name, configuration.get(REPLICAS.name), stacklevel=3)
        return configuration.get(name)

    def select_devices(self, device: str, config: Config) -> tuple[tuple[str, ...], Config]:
        """Return the devices of a device string and options, and the remaining options."""
        device, config = apply_device_id(device, config)
        priorities = config.get("MULTI_DEVICE_PRIORITIES")
        if priorities is None:
            configuration = self._configuration(HETERO, HETERO_PROPERTIES)
            priorities = configuration.get("MULTI_DEVICE_PRIORITIES")
        priorities = HETERO_PROPERTIES["MULTI_DEVICE_PRIORITIES"].parse(priorities)
        return select_prioritised_devices(device, priorities, self._descriptors()), config

    def replicas(self, config: Config) -> Any:
        """Return the value of REPLICAS for one model."""
        if REPLICAS.name in config:
            return REPLICAS.parse(config[REPLICAS.name])
        return self._configuration(HETERO, HETERO_PROPERTIES).get(REPLICAS.name)

    def split(self, config: Config, names: Iterable[str]) -> SplitConfig:
        """Return the options for one model: the caller's take precedence over settings."""
        config = without_replaced(config, stacklevel=4)
        tables = self.property_tables()
        devices = {name: tables[name] for name in names}
        defaults: Config = {}
        if len(devices) == 1:
            (table,) = devices.values()
            defaults = {
                p.name: p.sole_device_default
                for p in table.values()
                if p.sole_device_default is not None
            }
        options = split_options(config, devices)
        configuration = self._configuration(HETERO, HETERO_PROPERTIES)
        settings_by_device = {n: self._configuration(n, devices[n]).values for n in devices}
        #: Options of the whole model that were set for its only device.
        sole_options: Config = {}
        if len(devices) == 1:
            (only_settings,) = settings_by_device.values()
            sole_options = {n: v for n, v in only_settings.items() if n in SETTABLE_ON_DEVICES}
        # A global setting may apply to none of this model's devices.
        device_properties = (p for table in devices.values() for p in table.values())
        all_properties = HETERO_PROPERTIES.extended(*device_properties)
        settings = self._global.values | configuration.values
        settings = {name: value for name, value in settings.items() if name in all_properties}
        shared = split_shared_options(settings, devices)
        return SplitConfig(
            {**configuration.effective(), **sole_options, **options.hetero_config},
            {
                name: {**defaults, **shared.device_configs[name]}
                | {n: v for n, v in settings_by_device[name].items() if n in devices[name]}
                | options.device_configs[name]
                for name in devices
            },
        )

    def _explain_scope(self, name: str) -> str | None:
        """Describe the scopes in which a property can be set, if there are any."""
        if name in HETERO_PROPERTIES:
            return f"it applies to the whole model. Set it for {HETERO!r}"
        devices = [device for device, table in self.property_tables().items() if name in table]
        return f"it is a property of {', '.join(devices)}. Set it there" if devices else None

    def _scope(self, device: Any) -> Configuration:
        """Return the configuration of a scope."""
        if device == GLOBAL_SCOPE:
            # Computed at each call, because the set of devices may change.
            tables = (
                *self.property_tables().values(),
                HETERO_PROPERTIES,
            )  # HETERO's take precedence
            mutable = (p for table in tables for p in table.values() if p.mutable)
            self._global.table = PropertyTable(*mutable)
            return self._global
        request = parse_device(device)
        if request.hetero and request.names:
            raise PropertyError(
                f"{device!r} is a list; set or read properties of one device at a time, or of "
                f"{HETERO}."
            )
        if request.hetero:
            name, table = HETERO, HETERO_PROPERTIES
        else:
            (name,) = select_devices(device, self._descriptors())
            table = self.property_tables()[name]
        return self._configuration(name, table)

    def _configuration(self, name: str, table: PropertyTable) -> Configuration:
        if name != HETERO:
            table = settable_table(table)

        def read(property_name: str, _: Any) -> Any:
            return self._default(name, table, property_name)

        configuration = Configuration(table, name, read=read)
        with self._lock:
            return self._configurations.setdefault(name, configuration)

    def _default(self, scope: str, table: PropertyTable, name: str) -> Any:
        settings = self._global.values
        if name in settings:
            return table[name].parse(settings[name])
        if scope == HETERO:
            return table[name].default
        return (
            table[name].default if table[name].mutable else self._get_device_property(scope, name)
        )
