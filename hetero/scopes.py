"""What is set on a Core for models compiled later: for all devices, for HETERO, for one device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from devices.configuration import Configuration, check_mapping
from devices.errors import PropertyError, UnknownPropertyError
from devices.properties import Config, PropertyTable
from hetero.config import HETERO_PROPERTIES, SplitConfig, parse_given, parse_shared
from scheduler.device_names import HETERO

#: The scope of HETERO and of every device that knows a property.
EVERYWHERE: Final = "Core"


class Scopes:
    """The configurations of a Core; safe to use from several threads.

    Parameters
    ----------
    tables : callable
        Returns device name -> its properties, for each device that works.
    read : callable
        Returns a read-only property of a device, from their names.
    """

    def __init__(
        self,
        tables: Callable[[], Mapping[str, PropertyTable]],
        read: Callable[[str, str], Any],
    ) -> None:
        self._tables = tables
        self._read_device = read
        self._everywhere = Configuration(PropertyTable(), EVERYWHERE)
        self._scopes: dict[str, Configuration] = {}
        self._lock = threading.Lock()

    def set(self, scope: str, config: Any) -> None:
        """Set options, all of them or none.

        Parameters
        ----------
        scope : str
            EVERYWHERE, HETERO, or a device's name.
        config : mapping
            The options.

        Raises
        ------
        PropertyError
            For what the scope does not take, and where to give it instead.
        """
        check_mapping(config, scope)
        if "DEVICE_PROPERTIES" in config:
            raise PropertyError(
                "DEVICE_PROPERTIES cannot be set. Set options of a device by its name, as in "
                "set_property('CPU', {'NUM_STREAMS': 2}), or give them to compile_model.",
                property="DEVICE_PROPERTIES",
            )
        if scope == EVERYWHERE:
            parse_shared(config, self._tables())
        held = self._scope(scope)
        for name in config:
            if name not in held.table and (where := self._where(name)):
                raise UnknownPropertyError(
                    f"no property {name!r} on {scope}: {where}, or give it to compile_model.",
                    property=name,
                )
        held.set(config)

    def get(self, scope: str, name: str) -> Any:
        """Return what holds in a scope: what was set in it, or everywhere; else the default."""
        return self._scope(scope).get(name)

    def split(self, config: Config, devices: Mapping[str, PropertyTable]) -> SplitConfig:
        """Return the options of one model: those given over those set, sorted by who reads them.

        Parameters
        ----------
        config : mapping
            What `compile_model` is given.
        devices : mapping of str to PropertyTable
            The model's devices, with their properties.

        Raises
        ------
        PropertyError
            For options that nobody takes, or that cannot have such a value.
        """
        given = parse_given(config, devices)
        own = self._scope(HETERO)
        # What was set everywhere may concern none of this model's devices.
        known = HETERO_PROPERTIES.extended(*(p for t in devices.values() for p in t.values()))
        common = self._everywhere.values | own.values
        shared = parse_shared({n: v for n, v in common.items() if n in known}, devices)
        return SplitConfig(
            own.effective() | given.own,
            {
                name: shared.devices[name] | self._scope(name).values | given.devices[name]
                for name in devices
            },
        )

    def _where(self, name: str) -> str | None:
        """Return where a property can be set, if anywhere."""
        if name in HETERO_PROPERTIES:
            return f"it is of the whole model. Set it for {HETERO!r}"
        takers = [device for device, table in self._tables().items() if name in table]
        return f"it is of {', '.join(takers)}. Set it there" if takers else None

    def _scope(self, scope: str) -> Configuration:
        if scope == EVERYWHERE:
            # Devices come and go: what can be set is what those that are here know.
            self._everywhere.table = _mutable(self._tables())
            return self._everywhere
        table = HETERO_PROPERTIES if scope == HETERO else self._tables()[scope]
        held = Configuration(table, scope, read=lambda name, _: self._read(scope, table, name))
        with self._lock:
            return self._scopes.setdefault(scope, held)

    def _read(self, scope: str, table: PropertyTable, name: str) -> Any:
        everywhere = self._everywhere.values
        if name in everywhere:
            return table[name].parse(everywhere[name])
        if scope == HETERO:
            return tuple(table) if name == "SUPPORTED_PROPERTIES" else table[name].default
        return table[name].default if table[name].mutable else self._read_device(scope, name)


def _mutable(tables: Mapping[str, PropertyTable]) -> PropertyTable:
    """Return all that can be set on devices or HETERO; HETERO's where both have it."""
    every = (p for table in (*tables.values(), HETERO_PROPERTIES) for p in table.values())
    return PropertyTable(*(p for p in every if p.mutable))
