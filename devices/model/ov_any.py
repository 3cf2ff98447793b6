"""`OVAny`: a value of any type with OpenVINO's accessors."""

from __future__ import annotations

from typing import Any


class OVAny:
    """A value of run-time information or of a property; it equals the value that it contains.

    Parameters
    ----------
    value : object
        The value.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = plain(value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, OVAny) else other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __str__(self) -> str:
        return str(self.value)

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]

    def __len__(self) -> int:
        return len(self.value)

    def get(self) -> Any:
        """Return the value."""
        return self.value

    def astype(self, kind: type) -> Any:
        """Return the value as another type."""
        return kind(self.value)

    def aslist(self, kind: type | None = None) -> list[Any]:
        """Return a list, with elements of one type if `kind` is given; text is split at spaces."""
        items = self.value.split() if isinstance(self.value, str) else self.value
        return list(items) if kind is None else [kind(item) for item in items]


def plain(value: Any) -> Any:
    """Return the value that an OVAny contains, or `value` itself."""
    return value.value if isinstance(value, OVAny) else value
