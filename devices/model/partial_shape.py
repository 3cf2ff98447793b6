"""Shapes as OpenVINO's scripts write and read them: `Shape`, `Dimension`, `PartialShape`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final, SupportsIndex, overload

import numpy as np

from hetero.devices.errors import ArgumentError, ArgumentTypeError
from hetero.devices.model.property_getter import getter

#: What a dimension may be given as.
DimensionLike = Any

#: The largest length of an open dimension, as OpenVINO writes it; `inf` to count with.
_OPEN: Final = -1
_NUMBERS: Final = itertools.count()
#: ``1..10``, ``1..``, ``..10``.
_INTERVAL: Final = re.compile(r"(\d*)\.\.(\d*)")


class Shape(tuple[Any, ...]):
    """Lengths of a tensor's axes: a tuple that also equals the list of the same lengths.

    Of a port it may hold a symbol, or None for a length that is not known.
    """

    __slots__ = ()

    def __new__(cls, lengths: Iterable[Any] | str = ()) -> Shape:
        """Read a shape, from text too: ``Shape("[1,3]")``."""
        if isinstance(lengths, str):
            lengths = PartialShape(lengths).to_shape()
        return super().__new__(cls, lengths)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartialShape):
            return other == self
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __str__(self) -> str:
        return f"[{','.join('?' if length is None else str(length) for length in self)}]"

    def to_string(self) -> str:
        """Return the shape as text: ``[1,3]``."""
        return str(self)


class Symbol(str):
    """A name for an open dimension that no other has: dimensions with it have one length."""

    __slots__ = ()

    def __new__(cls, name: str | None = None) -> Symbol:
        """Take a name, or make one."""
        return super().__new__(cls, name or f"symbol_{next(_NUMBERS)}")


class Dimension:
    """The length of an axis: a number, an interval, or a symbol; equal to what it is given as.

    Parameters
    ----------
    minimum : int, str or None, optional
        The length; a symbol, or text such as ``"1..10"`` or ``"?"``. None or -1 leaves it open.
    maximum : int, optional
        The greatest length; -1 for any.
    """

    __slots__ = ("_high", "_low", "symbol")

    def __init__(self, minimum: DimensionLike = None, maximum: int | None = None) -> None:
        self.symbol: str | None = None
        self._low: int = 0
        self._high: float = inf
        if isinstance(minimum, Dimension):
            self.symbol, self._low, self._high = minimum.symbol, minimum._low, minimum._high
        elif isinstance(minimum, str):
            self._read(minimum.strip())
        elif minimum is not None and not isinstance(minimum, int | np.integer):
            raise ArgumentTypeError(
                f"dimension {minimum!r}: wanted a length, a symbol, an interval such as '1..10', "
                "or -1 for any."
            )
        elif maximum is not None:
            self._low = max(int(minimum or 0), 0)
            self._high = inf if maximum == _OPEN else int(maximum)
        elif minimum is not None and minimum != _OPEN:
            self._low = self._high = int(minimum)
        if not 0 <= self._low <= self._high:
            raise ArgumentError(
                f"dimension {minimum!r}{'' if maximum is None else f' to {maximum}'}: wanted 0 or "
                "more, and a maximum that is not less than the minimum, or -1 for any."
            )

    def _read(self, text: str) -> None:
        interval = _INTERVAL.fullmatch(text)
        if interval and text != "..":
            self._low = int(interval[1] or 0)
            self._high = int(interval[2]) if interval[2] else inf
        elif text.isdigit():
            self._low = self._high = int(text)
        elif ".." in text:
            raise ArgumentError(f"dimension {text!r}: wanted an interval such as '1..10' or '1..'.")
        elif text not in ("?", "-1", ""):
            self.symbol = text

    @property
    def is_static(self) -> bool:
        """Whether the length is a number."""
        return self._low == self._high

    @property
    def is_dynamic(self) -> bool:
        """Whether the length is open."""
        return not self.is_static

    @property
    def min_length(self) -> int:
        """The least length."""
        return self._low

    @property
    def max_length(self) -> int:
        """The greatest length; -1 for any."""
        return _OPEN if self._high == inf else int(self._high)

    get_min_length = getter(min_length)
    get_max_length = getter(max_length)

    @property
    def value(self) -> int | str | None:
        """The length as `TensorSpec.shape` has it: a number, a symbol, or None."""
        return self._low if self.is_static else self.symbol

    def get_length(self) -> int:
        """Return the length; ArgumentError if it is open."""
        if self.is_dynamic:
            raise ArgumentError(f"dimension {self} is open: it has no one length.")
        return self._low

    def get_symbol(self) -> str | None:
        """Return the symbol, or None."""
        return self.symbol

    def has_symbol(self) -> bool:
        """Return whether there is a symbol."""
        return self.symbol is not None

    def set_symbol(self, symbol: str) -> None:
        """Name the dimension."""
        self.symbol = symbol

    def same_scheme(self, dim: DimensionLike) -> bool:
        """Return whether both are the same number, or both are open."""
        given = _dimension(dim)
        same = self._low == given._low or self.is_dynamic
        return self.is_static == given.is_static and same

    def compatible(self, dim: DimensionLike) -> bool:
        """Return whether a length may be both."""
        given = _dimension(dim)
        return max(self._low, given._low) <= min(self._high, given._high)

    def relaxes(self, dim: DimensionLike) -> bool:
        """Return whether every length of the other is one of this."""
        given = _dimension(dim)
        return self._low <= given._low and given._high <= self._high

    def refines(self, dim: DimensionLike) -> bool:
        """Return whether every length of this is one of the other."""
        return _dimension(dim).relaxes(self)

    def to_string(self) -> str:
        """Return the dimension as text: ``3``, ``?``, ``1..10``."""
        return str(self)

    @staticmethod
    def _between(low: float, high: float) -> Dimension:
        return Dimension(int(low), _OPEN if high == inf else int(high))

    def __add__(self, other: DimensionLike) -> Dimension:
        given = _dimension(other)
        return self._between(self._low + given._low, self._high + given._high)

    __radd__ = __add__

    def __sub__(self, other: DimensionLike) -> Dimension:
        given = _dimension(other)
        least, most = max(0, self._low - given._high), max(0, self._high - given._low)
        return self._between(least, most)

    def __mul__(self, other: DimensionLike) -> Dimension:
        given = _dimension(other)
        most = inf if inf in (self._high, given._high) else self._high * given._high
        return self._between(self._low * given._low, most)

    __rmul__ = __mul__

    def __and__(self, other: DimensionLike) -> Dimension:
        given = _dimension(other)
        return self._between(max(self._low, given._low), min(self._high, given._high))

    def __len__(self) -> int:
        return self.get_length()

    __index__ = __int__ = __len__

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: object) -> bool:
        if other is None or isinstance(other, int | np.integer | str):
            given = Dimension(other)
            return (self._low, self._high, self.symbol) == (given._low, given._high, given.symbol)
        if isinstance(other, Dimension):
            same = (self._low, self._high) == (other._low, other._high)
            return same and (None in (self.symbol, other.symbol) or self.symbol == other.symbol)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self._low) if self.is_static else hash((self._low, self._high))

    def __str__(self) -> str:
        if self.is_static:
            return str(self._low)
        if self.symbol is not None:
            return self.symbol
        if self._low == 0 and self._high == inf:
            return "?"
        return f"{self._low or ''}..{'' if self._high == inf else self._high}"

    def __repr__(self) -> str:
        return f"<Dimension: {self}>"

    @staticmethod
    def dynamic() -> Dimension:
        """Return an open dimension."""
        return Dimension()


def _dimension(given: DimensionLike) -> Dimension:
    if isinstance(given, Dimension):
        return given
    if isinstance(given, tuple | list):
        if len(given) != 2 or not all(isinstance(end, int | np.integer) for end in given):
            raise ArgumentTypeError(f"dimension {given!r}: a pair is of two lengths, as (1, 10).")
        return Dimension(*given)
    return Dimension(given)


class PartialShape:
    """A shape whose dimensions, or whose rank, may be open; equal to the list or tuple of them.

    Dimensions can be set, as ``shape[0] = -1``: a port's shape is given anew each time it is asked.

    Parameters
    ----------
    dimensions : sequence, text or None
        A dimension each: a length, -1 or None for any, a pair of least and greatest, a symbol, a
        `Dimension`; or text as ``"[?,3,1..10]"``, with ``"..."`` for an open rank, as None is.

    Raises
    ------
    ArgumentError
        A dimension is none.
    """

    __slots__ = ("_dimensions",)

    def __init__(self, dimensions: Iterable[DimensionLike] | str | None = ()) -> None:
        if isinstance(dimensions, str):
            dimensions = _parts(dimensions)
        elif isinstance(dimensions, PartialShape):
            dimensions = dimensions._dimensions
        if dimensions is not None and not isinstance(dimensions, Iterable):
            raise ArgumentTypeError(
                f"shape {dimensions!r}: wanted a list of dimensions, or text as '[?,3]'."
            )
        self._dimensions: tuple[Dimension, ...] | None = (
            None if dimensions is None else tuple(_dimension(d) for d in dimensions)
        )

    @staticmethod
    def dynamic(rank: DimensionLike = None) -> PartialShape:
        """Return a shape of open dimensions; without a rank, that is open too."""
        known = _dimension(rank)
        return PartialShape([None] * known.get_length() if known.is_static else None)

    @property
    def rank(self) -> Dimension:
        """How many dimensions there are."""
        return Dimension(None if self._dimensions is None else len(self._dimensions))

    @property
    def is_static(self) -> bool:
        """Whether rank and every dimension are numbers."""
        return self._dimensions is not None and all(d.is_static for d in self._dimensions)

    @property
    def is_dynamic(self) -> bool:
        """Whether anything is open."""
        return not self.is_static

    @property
    def all_non_negative(self) -> bool:
        """Whether no length is negative, which none can be."""
        return True

    @property
    def values(self) -> tuple[int | str | None, ...] | None:
        """The shape as `TensorSpec.shape` has it."""
        return None if self._dimensions is None else tuple(d.value for d in self._dimensions)

    def _known(self) -> tuple[Dimension, ...]:
        if self._dimensions is None:
            raise ArgumentError("a shape of open rank has no dimensions to count.")
        return self._dimensions

    def get_dimension(self, index: int) -> Dimension:
        """Return one dimension."""
        return self._known()[index]

    def get_max_shape(self) -> Shape:
        """Return the greatest lengths, of 64 bits where any; none where the rank is open."""
        most = np.iinfo(np.int64).max
        return Shape(int(min(d._high, most)) for d in self._dimensions or ())

    def get_min_shape(self) -> Shape:
        """Return the least lengths; none where the rank is open."""
        return Shape(d.min_length for d in self._dimensions or ())

    def to_shape(self) -> Shape:
        """Return the lengths; ArgumentError if any is open."""
        if self.is_dynamic:
            raise ArgumentError(f"shape {self} is open: it has no one length for each dimension.")
        return Shape(d.get_length() for d in self._known())

    get_shape = to_shape

    def to_string(self) -> str:
        """Return the shape as text: ``[?,3]``."""
        return str(self)

    def same_scheme(self, shape: PartialShape) -> bool:
        """Return whether ranks agree, and each dimension is the same number or open in both."""
        return self._agrees(shape, Dimension.same_scheme, open_rank=self.rank == shape.rank)

    def compatible(self, shape: PartialShape) -> bool:
        """Return whether a tensor may have both shapes."""
        return self._agrees(shape, Dimension.compatible, open_rank=True)

    def relaxes(self, shape: PartialShape) -> bool:
        """Return whether every tensor of the other shape has this one too."""
        return self._agrees(shape, Dimension.relaxes, open_rank=self._dimensions is None)

    def refines(self, shape: PartialShape) -> bool:
        """Return whether every tensor of this shape has the other one too."""
        return shape.relaxes(self)

    def _agrees(self, other: PartialShape, rule: Any, *, open_rank: bool) -> bool:
        if self._dimensions is None or other._dimensions is None:
            return open_rank
        return len(self) == len(other) and all(map(rule, self._dimensions, other._dimensions))

    def __len__(self) -> int:
        return len(self._known())

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._known())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Dimension: ...
    @overload
    def __getitem__(self, index: slice) -> PartialShape: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Dimension | PartialShape:
        found = self._known()[index]
        return PartialShape(found) if isinstance(found, tuple) else found

    def __setitem__(self, index: SupportsIndex, dimension: DimensionLike) -> None:
        known = [*self._known()]
        known[index] = _dimension(dimension)
        self._dimensions = tuple(known)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartialShape):
            return self._dimensions == other._dimensions
        if isinstance(other, list | tuple):
            return self._dimensions is not None and [*self._dimensions] == [*other]
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __str__(self) -> str:
        if self._dimensions is None:
            return "[...]"
        return f"[{','.join(map(str, self._dimensions))}]"

    def __repr__(self) -> str:
        return f"<PartialShape: {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialShape, (self._dimensions,)


def _parts(text: str) -> Sequence[str] | None:
    """Return the dimensions that a text lists, or None for an open rank."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    if inner == "...":
        return None
    if not inner:
        return []
    parts = [part.strip() for part in inner.split(",")]
    wrong = [part for part in parts if not re.fullmatch(r"\?|-1|\d+|\d*\.\.\d*|[A-Za-z_]\w*", part)]
    if wrong:
        raise ArgumentError(
            f"shape {text!r}: {wrong[0]!r} is no dimension; wanted lengths, '?', intervals as "
            "'1..10' or symbols, as in '[?,3]'."
        )
    return parts
