"""OpenVINO's other form of a property: a method that returns it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

S = TypeVar("S")
T = TypeVar("T")


def getter(of: Callable[[S], T]) -> Callable[[S], T]:
    """Return the method that returns a property: ``get_size = getter(size)``."""
    name: str = cast(Any, of).fget.__name__  # a type checker takes the property for its function

    def get(self: S) -> T:
        value: T = getattr(self, name)
        return value

    get.__name__ = f"get_{name}"
    get.__doc__ = f"Return `{name}`."
    return get
