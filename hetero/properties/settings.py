"""What is set on a Core for models compiled later: for all devices, for HETERO, for one device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from hetero.devices.errors import PropertyError, UnknownPropertyError
from hetero.devices.plugin.configuration import Configuration, check_mapping
from hetero.devices.plugin.properties import Config, PropertyTable
from hetero.properties.device_selection import choose_devices, choose_prioritised, identified
from hetero.properties.table import HETERO_PROPERTIES, SplitConfig, parse_given, parse_shared
from hetero.scheduler.vocabulary.names import HETERO, parse_device
from hetero.scheduler.vocabulary.rows import DeviceDescriptor

#: The scope of HETERO and of every device that knows a property.
EVERYWHERE: Final = "HETERO or any device"


class Scopes:
    """The configurations of a Core; safe to use from several threads."""

    def __init__(
        self, rows: Callable[[], Sequence[DeviceDescriptor]], read: Callable[[str, str], Any]
    ) -> None:
        self._rows = rows
        self._read_device = read
        self._everywhere = Configuration(PropertyTable(), EVERYWHERE)
        self._scopes: dict[str, Configuration] = {}
        self._lock = threading.Lock()

    def tables(self) -> dict[str, PropertyTable]:
        """Return the properties of each device that works."""
        return {row.name: row.properties for row in self._rows() if row.error is None}

    def set(self, device: Any, config: Any) -> None:
        """Set options of EVERYWHERE, HETERO or a device, all of them or none."""
        held = self._scope(device)
        check_mapping(config, held.owner)
        if "DEVICE_PROPERTIES" in config:
            raise PropertyError(
                "DEVICE_PROPERTIES cannot be set. Set options of a device by its name, as in "
                "set_property('CPU', {'NUM_STREAMS': 2}), or give them to compile_model.",
                property="DEVICE_PROPERTIES",
            )
        if held is self._everywhere:
            parse_shared(config, self.tables())
        for name in config:
            if name not in held.table and (where := self._where(name)):
                raise UnknownPropertyError(
                    f"no property {name!r} on {held.owner}: {where}, or give it to compile_model.",
                    property=name,
                )
        held.set(config)

    def of_executor(self, kind: str) -> dict[str, float]:
        """Return what was set of the executor, which holds from its start."""
        return {"device_timeout_s": self.get(HETERO, "DEVICE_TIMEOUT_S")} if kind == "ray" else {}

    def keep_executor(self, config: Any) -> None:
        """Raise PropertyError for an option of the executor other than it has, or can have."""
        name = "DEVICE_TIMEOUT_S"
        held = self.get(HETERO, name)
        given = config.get(name, held) if isinstance(config, Mapping) else held
        if HETERO_PROPERTIES[name].parse(given) != held:
            raise PropertyError(
                f"{name} is of a Core on Ray: set_property({HETERO!r}, {{{name!r}: {given}}}) "
                "before its devices are first used. Devices of this process are never silent.",
                property=name,
            )

    def get(self, device: Any, name: str) -> Any:
        """Return what holds in a scope: what was set in it, or everywhere; else the default."""
        held = self._scope(device)
        return held.table.mutability if name == "SUPPORTED_PROPERTIES" else held.get(name)

    def devices(self, device: str, config: Config) -> tuple[tuple[str, ...], Config]:
        """Return the devices that a device string and options mean, and the other options."""
        device, config = identified(device, config)
        listed = config.get("MULTI_DEVICE_PRIORITIES")
        if listed is None:
            listed = self._of(HETERO, HETERO_PROPERTIES).get("MULTI_DEVICE_PRIORITIES")
        names = HETERO_PROPERTIES["MULTI_DEVICE_PRIORITIES"].parse(listed)
        return choose_prioritised(device, names, self._rows()), config

    def split(self, config: Config, names: Iterable[str]) -> SplitConfig:
        """Return the options of one model: those given over those set, sorted by who reads them."""
        tables = self.tables()
        devices = {name: tables[name] for name in names}
        defaults: Config = {}
        if len(devices) == 1:
            (table,) = devices.values()
            defaults = {p.name: p.alone for p in table.values() if p.alone is not None}
        given = parse_given(config, devices)
        own = self._of(HETERO, HETERO_PROPERTIES)
        # What was set everywhere may concern none of this model's devices.
        known = HETERO_PROPERTIES.extended(*(p for t in devices.values() for p in t.values()))
        common = self._everywhere.values | own.values
        shared = parse_shared({n: v for n, v in common.items() if n in known}, devices)
        return SplitConfig(
            own.effective() | given.own,
            {
                name: {**defaults, **shared.devices[name]}
                | self._of(name, devices[name]).values
                | given.devices[name]
                for name in devices
            },
        )

    def _where(self, name: str) -> str | None:
        """Return where a property can be set, if anywhere."""
        if name in HETERO_PROPERTIES:
            return f"it is of the whole model. Set it for {HETERO!r}"
        takers = [device for device, table in self.tables().items() if name in table]
        return f"it is of {', '.join(takers)}. Set it there" if takers else None

    def _scope(self, device: Any) -> Configuration:
        """Return the configuration that a device string means."""
        if device == EVERYWHERE:
            # Devices come and go: what can be set is what those that are here know.
            tables = (*self.tables().values(), HETERO_PROPERTIES)  # its own where both have it
            mutable = (p for table in tables for p in table.values() if p.mutable)
            self._everywhere.table = PropertyTable(*mutable)
            return self._everywhere
        request = parse_device(device)
        if request.hetero and request.names:
            raise PropertyError(
                f"{device!r} is a list; set or read properties of one device at a time, or of "
                f"{HETERO}."
            )
        if request.hetero:
            name, table = HETERO, HETERO_PROPERTIES
        else:
            (name,) = choose_devices(device, self._rows())
            table = self.tables()[name]
        return self._of(name, table)

    def _of(self, name: str, table: PropertyTable) -> Configuration:
        held = Configuration(table, name, read=lambda asked, _: self._read(name, table, asked))
        with self._lock:
            return self._scopes.setdefault(name, held)

    def _read(self, scope: str, table: PropertyTable, name: str) -> Any:
        everywhere = self._everywhere.values
        if name in everywhere:
            return table[name].parse(everywhere[name])
        if scope == HETERO:
            return table[name].default
        return table[name].default if table[name].mutable else self._read_device(scope, name)
