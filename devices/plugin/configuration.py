"""Configuration of a plugin, a Core or a compiled model: a property table and the set values.

A configuration rejects unknown and read-only properties and invalid values; its errors list the
valid ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from hetero.devices.errors import ArgumentTypeError, PropertyError, ReadOnlyPropertyError
from hetero.devices.plugin.properties import Config, PropertyTable, unknown_property

#: Returns the value of an unset property, from its name and the device id.
Read = Callable[[str, str], Any]


class Configuration:
    """Properties and their typed values; safe to use from several threads.

    Parameters
    ----------
    table : PropertyTable
        The valid properties.
    owner : str
        Name of the plugin or model, for error messages.
    values : mapping, optional
        Initial typed values.
    read : callable, optional
        Returns the value of an unset property; by default the default in the table.
    check : callable, optional
        Raises for typed values that are invalid for reasons outside the table.
    """

    def __init__(
        self,
        table: PropertyTable,
        owner: str,
        values: Config | None = None,
        *,
        read: Read | None = None,
        check: Callable[[Config], None] | None = None,
    ) -> None:
        self.table = table
        self.owner = owner
        self._values = dict(values or {})
        self._read = read
        self._check = check
        self._lock = threading.Lock()

    @property
    def values(self) -> dict[str, Any]:
        """The set values, typed."""
        return dict(self._values)

    def parse(self, config: Config) -> dict[str, Any]:
        """Check a configuration and return it with typed values, without setting them.

        Raises
        ------
        UnknownPropertyError, ReadOnlyPropertyError, PropertyError
            An entry is invalid; the message lists the valid ones.
        """
        check_mapping(config, self.owner)
        typed_values = {}
        for name, value in config.items():
            row = self.table.get(name)
            if row is None:
                raise unknown_property(name, self.owner, self.table.mutable)
            if not row.mutable:
                raise ReadOnlyPropertyError(
                    f"{self.owner}: property {name} is read-only.", property=name
                )
            try:
                typed_values[name] = row.parse(value)
            except PropertyError as error:
                raise type(error)(f"{self.owner}: {error.message}", **error.data) from None
        if self._check is not None:
            self._check(typed_values)
        return typed_values

    def set(self, config: Config) -> None:
        """Set all values, or none of them if one is invalid."""
        typed_values = self.parse(config)
        with self._lock:  # readers see the old mapping or the new one
            self._values = self._values | typed_values

    def get(self, name: str, device_id: str = "") -> Any:
        """Return a property's value: the set value, otherwise the device's value.

        Raises
        ------
        UnknownPropertyError
            The property does not exist.
        """
        if name not in self.table:
            raise unknown_property(name, self.owner, self.table)
        values = self._values
        value = values[name] if name in values else self._unset_value(name, device_id)
        return deepcopy(value) if isinstance(value, dict) else value

    def effective(self, config: Config | None = None) -> dict[str, Any]:
        """Return all mutable properties; `config` overrides set values, which override defaults."""
        typed_values = self.parse({} if config is None else config)
        values = self.values | typed_values
        return {
            name: values[name] if name in values else self._unset_value(name)
            for name in self.table.mutable
        }

    def _unset_value(self, name: str, device_id: str = "") -> Any:
        return self.table[name].default if self._read is None else self._read(name, device_id)


def check_mapping(config: Any, owner: str) -> None:
    """Raise ArgumentTypeError if options are not a mapping."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f"{owner}: expected options as a mapping of names to values, such as "
            f"{{'PERF_COUNT': True}}, got {config!r} ({type(config).__name__})."
        )
