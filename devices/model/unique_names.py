"""Names that nothing has, for the values and nodes that a rewriting adds."""

from __future__ import annotations

from collections.abc import Iterable

from hetero.devices.model.model import Model


class UniqueNames:
    """Makes names that are not among those taken; each is taken from then on."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    @classmethod
    def of_values(cls, model: Model) -> UniqueNames:
        """Return the maker of names for new values of a model."""
        ports = (port.name for port in (*model.inputs, *model.optional_inputs))
        return cls([*ports, *model.constants, *model.producers])

    def make(self, name: str) -> str:
        """Return `name`, or the first of ``name_1``, ``name_2``, ... that is free."""
        unique, i = name, 0
        while unique in self._taken:
            i += 1
            unique = f"{name}_{i}"
        self._taken.add(unique)
        return unique
