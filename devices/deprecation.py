"""Deprecated aliases of renamed attributes."""

from __future__ import annotations

import warnings
from typing import Any


def deprecated_alias(old: str, new: str) -> property:
    """Return a property that reads the attribute `new` and warns about its old name."""

    def read(self: Any) -> Any:
        warn_renamed(old, new, stacklevel=2)
        return getattr(self, new)

    read.__doc__ = f"Deprecated alias of `{new}`."
    return property(read)


def warn_renamed(old: str, new: str, *, stacklevel: int) -> None:
    """Warn that a name is deprecated."""
    warnings.warn(
        f"{old!r} is deprecated; use {new!r}.", DeprecationWarning, stacklevel=stacklevel + 1
    )
