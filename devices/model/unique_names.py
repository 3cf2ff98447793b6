"""Unique names for the values and nodes that a transformation adds to a model."""

from __future__ import annotations

from collections.abc import Iterable

from hetero.devices.model.model import Model


class UniqueNames:
    """Generator of names that are not yet in use."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)

    @classmethod
    def of_values(cls, model: Model) -> UniqueNames:
        """Return a generator of names for new values of a model."""
        ports = (port.name for port in (*model.inputs, *model.optional_inputs))
        return cls([*ports, *model.constants, *model.producers])

    def make(self, name: str) -> str:
        """Return `name`, or the first of ``name_1``, ``name_2``, ... that is unused."""
        unique, i = name, 0
        while unique in self._names:
            i += 1
            unique = f"{name}_{i}"
        self._names.add(unique)
        return unique
