"""Callable property names, as in OpenVINO's Python API."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.errors import ArgumentTypeError
from hetero.devices.model.ov_any import OVAny


class PropertyName(str):  # noqa: SLOT000 - str subclasses cannot have slots
    """A property name that can be called; with a value it returns a pair with an `OVAny`.

    If the property accepts lists, several strings are joined to one value.

    Parameters
    ----------
    name : str
        The property's name.
    *types : type
        The types of its values; none for a read-only property.
    """

    _types: tuple[type, ...]

    def __new__(cls, name: str, *types: type) -> PropertyName:
        """Create the name."""
        property_name = super().__new__(cls, name)
        property_name._types = types
        return property_name

    def __call__(self, *value: Any) -> Any:
        """Return the name; with a value, the pair ``(name, OVAny(value))``.

        Raises
        ------
        ArgumentTypeError
            The property is read-only, or the value has another type.
        """
        if not value:
            return str(self)
        setting = value[0].item() if isinstance(value[0], np.generic) else value[0]
        if tuple in self._types and all(isinstance(element, str) for element in value):
            setting = ",".join(value)
        elif len(value) > 1 or not isinstance(setting, self._types):
            expected = (
                " or ".join(value_type.__name__ for value_type in self._types)
                or "no value (it is read-only)"
            )
            raise ArgumentTypeError(f"property {self}: expected {expected}; got {value!r}.")
        return str(self), OVAny(setting)

    def __reduce__(self) -> tuple[Any, ...]:
        return PropertyName, (str(self), *self._types)
