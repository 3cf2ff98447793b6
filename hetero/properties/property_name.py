"""What a property's name is to a script: text that can be called."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.errors import ArgumentTypeError


class PropertyName(str):  # noqa: SLOT000 - text has no slots beside its own
    """A property's name; called, it returns itself; called with a value, a pair of both.

    One that takes lists takes several texts as one.

    Parameters
    ----------
    name : str
        The property's name.
    *kinds : type
        Types of its values; without any the property can only be read.
    """

    _kinds: tuple[type, ...]

    def __new__(cls, name: str, *kinds: type) -> PropertyName:
        """Make the name."""
        made = super().__new__(cls, name)
        made._kinds = kinds
        return made

    def __call__(self, *value: Any) -> Any:
        """Return the name; with a value, the pair ``(name, value)``.

        Raises
        ------
        ArgumentTypeError
            The property cannot be set, or not to such a value.
        """
        if not value:
            return str(self)
        given = value[0].item() if isinstance(value[0], np.generic) else value[0]
        if tuple in self._kinds and all(isinstance(each, str) for each in value):
            given = ",".join(value)
        elif len(value) > 1 or not isinstance(given, self._kinds):
            wanted = " or ".join(kind.__name__ for kind in self._kinds) or "none: it is read-only"
            raise ArgumentTypeError(f"property {self}: got {value!r}, wanted {wanted}.")
        return str(self), given

    def __reduce__(self) -> tuple[Any, ...]:
        return PropertyName, (str(self), *self._kinds)
