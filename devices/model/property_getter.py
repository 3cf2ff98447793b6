"""Getter methods for properties: OpenVINO's API has both forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

S = TypeVar("S")
T = TypeVar("T")


def getter(prop: Callable[[S], T]) -> Callable[[S], T]:
    """Return a getter method for a property: ``get_size = getter(size)``."""
    name: str = cast(Any, prop).fget.__name__  # type checkers see the property's function

    def get(self: S) -> T:
        value: T = getattr(self, name)
        return value

    get.__name__ = f"get_{name}"
    get.__doc__ = f"Return `{name}`."
    return get
