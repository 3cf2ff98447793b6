"""Shapes that may be open, as OpenVINO's scripts write and read them."""

from __future__ import annotations

from collections.abc import Iterable


class PartialShape(tuple[int | str | None, ...]):
    """A shape whose dimensions are sizes, symbols, or None where nothing is known; -1 is None."""

    __slots__ = ()

    def __new__(cls, dimensions: Iterable[int | str | None]) -> PartialShape:
        """Read a shape."""
        return super().__new__(cls, (None if d == -1 else d for d in dimensions))

    def __str__(self) -> str:
        return f"[{','.join('?' if d is None else str(d) for d in self)}]"

    @property
    def is_dynamic(self) -> bool:
        """Whether a dimension is open."""
        return not self.is_static

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a size."""
        return all(isinstance(d, int) for d in self)

    @property
    def rank(self) -> int:
        """How many dimensions there are."""
        return len(self)
