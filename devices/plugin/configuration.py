"""Configuration, the guide's word: a table of properties, and the values that were set.

Plugins, the scopes of Core and compiled models each hold one. It refuses what is unknown,
read-only or ill-typed, and lists the valid ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from hetero.devices.errors import ArgumentTypeError, PropertyError, ReadOnlyPropertyError
from hetero.devices.plugin.properties import Config, PropertyTable, unknown_property

#: Gives the value of a property that was not set, from its name and a device's id.
Read = Callable[[str, str], Any]


class Configuration:
    """Properties and their typed values; safe to use from several threads.

    Parameters
    ----------
    table : PropertyTable
        The known properties.
    owner : str
        Whose they are, for messages.
    values : mapping, optional
        What is set already, typed.
    read : callable, optional
        Gives what is not set; by default the table's default.
    check : callable, optional
        Raises for typed values that the table alone cannot judge.
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
        """What was set, typed."""
        return dict(self._values)

    def parse(self, config: Config) -> dict[str, Any]:
        """Check a whole configuration and return it with typed values; nothing is set.

        Raises
        ------
        UnknownPropertyError, ReadOnlyPropertyError, PropertyError
            Naming the first invalid entry and the valid ones.
        """
        check_mapping(config, self.owner)
        parsed = {}
        for name, value in config.items():
            row = self.table.get(name)
            if row is None:
                raise unknown_property(name, self.owner, self.table.mutable)
            if not row.mutable:
                raise ReadOnlyPropertyError(
                    f"{self.owner}: {name} can be read, not set.", property=name
                )
            try:
                parsed[name] = row.parse(value)
            except PropertyError as error:
                raise type(error)(f"{self.owner}: {error.message}", **error.data) from None
        if self._check is not None:
            self._check(parsed)
        return parsed

    def set(self, config: Config) -> None:
        """Set values: all of them, or none where one cannot be."""
        parsed = self.parse(config)
        with self._lock:  # those who read have the values of before, or these
            self._values = self._values | parsed

    def get(self, name: str, device_id: str = "") -> Any:
        """Return a property's value: what was set, else what holds for the device.

        Raises
        ------
        UnknownPropertyError
            There is no such property.
        """
        if name not in self.table:
            raise unknown_property(name, self.owner, self.table)
        values = self._values
        value = values[name] if name in values else self._unset(name, device_id)
        return deepcopy(value) if isinstance(value, dict) else value

    def effective(self, config: Config | None = None) -> dict[str, Any]:
        """Return every property that can be set: its default, what was set, then `config`'s."""
        parsed = self.parse({} if config is None else config)
        chosen = self.values | parsed
        return {
            name: chosen[name] if name in chosen else self._unset(name)
            for name in self.table.mutable
        }

    def _unset(self, name: str, device_id: str = "") -> Any:
        return self.table[name].default if self._read is None else self._read(name, device_id)


def check_mapping(config: Any, owner: str) -> None:
    """Raise ArgumentTypeError for options that are not a mapping, saying what was given."""
    if not isinstance(config, Mapping):
        raise ArgumentTypeError(
            f"{owner}: options {config!r}: wanted a mapping of names to values, as "
            f"{{'PERF_COUNT': True}}, got {type(config).__name__}."
        )
