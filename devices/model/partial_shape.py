"""Shapes with OpenVINO's API: `Shape`, `Dimension`, `PartialShape` and `Symbol`."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import Any, Final, SupportsIndex, overload

import numpy as np

from hetero.devices.errors import ArgumentError, ArgumentTypeError
from hetero.devices.model.property_getter import getter

#: Any value that `Dimension` accepts.
DimensionLike = Any

#: OpenVINO's value for a dynamic dimension, and for an unlimited maximum.
_DYNAMIC: Final = -1
_NUMBERS: Final = itertools.count()
#: ``1..10``, ``1..``, ``..10``.
_INTERVAL: Final = re.compile(r"(\d*)\.\.(\d*)")


class Shape(tuple[Any, ...]):
    """Lengths of a tensor's axes: a tuple that also equals a list of the same lengths.

    The shape of a port may contain symbols, and None for unknown lengths.
    """

    __slots__ = ()

    def __new__(cls, lengths: Iterable[Any] | str = ()) -> Shape:
        """Create a shape from lengths or from text such as ``[1,3]``."""
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
    """A symbol for dynamic dimensions: all dimensions with the same symbol have equal lengths."""

    __slots__ = ()

    def __new__(cls, name: str | None = None) -> Symbol:
        """Create a symbol; without a name, it gets a unique one."""
        return super().__new__(cls, name or f"symbol_{next(_NUMBERS)}")


class Dimension:
    """The length of an axis: a number, an interval or a symbol; equals the value it is made from.

    Parameters
    ----------
    minimum : int, str or None, optional
        The length, a symbol, or text such as ``"1..10"`` or ``"?"``. None and -1 make the dimension
        dynamic. With `maximum`, the minimum of an interval.
    maximum : int, optional
        The maximum length; -1 for no limit.
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
                "expected a dimension: a length, a symbol, an interval such as '1..10', or -1 for "
                f"any length; got {minimum!r}."
            )
        elif maximum is not None:
            self._low = max(int(minimum or 0), 0)
            self._high = inf if maximum == _DYNAMIC else int(maximum)
        elif minimum is not None and minimum != _DYNAMIC:
            self._low = self._high = int(minimum)
        if not 0 <= self._low <= self._high:
            raise ArgumentError(
                "expected a dimension of 0 or more, with a maximum of at least the minimum, or -1 "
                f"for any length; got {minimum!r}{'' if maximum is None else f' to {maximum}'}."
            )

    def _read(self, text: str) -> None:
        interval = _INTERVAL.fullmatch(text)
        if interval and text != "..":
            self._low = int(interval[1] or 0)
            self._high = int(interval[2]) if interval[2] else inf
        elif text.isdigit():
            self._low = self._high = int(text)
        elif ".." in text:
            raise ArgumentError(f"expected an interval such as '1..10' or '1..', got {text!r}.")
        elif text not in ("?", "-1", ""):
            self.symbol = text

    @property
    def is_static(self) -> bool:
        """Whether the length is a number."""
        return self._low == self._high

    @property
    def is_dynamic(self) -> bool:
        """Whether the length is unknown."""
        return not self.is_static

    @property
    def min_length(self) -> int:
        """The minimum length."""
        return self._low

    @property
    def max_length(self) -> int:
        """The maximum length; -1 for no limit."""
        return _DYNAMIC if self._high == inf else int(self._high)

    get_min_length = getter(min_length)
    get_max_length = getter(max_length)

    @property
    def value(self) -> int | str | None:
        """The entry of `TensorSpec.shape`: a length, a symbol, or None."""
        return self._low if self.is_static else self.symbol

    def get_length(self) -> int:
        """Return the length; ArgumentError if it is dynamic."""
        if self.is_dynamic:
            raise ArgumentError(f"expected a static dimension, got {self}.")
        return self._low

    def get_symbol(self) -> str | None:
        """Return the dimension's symbol, or None."""
        return self.symbol

    def has_symbol(self) -> bool:
        """Return whether the dimension has a symbol."""
        return self.symbol is not None

    def set_symbol(self, symbol: str) -> None:
        """Set the dimension's symbol."""
        self.symbol = symbol

    def same_scheme(self, dim: DimensionLike) -> bool:
        """Return whether the lengths are equal, or both are dynamic."""
        other_dimension = _dimension(dim)
        is_same = self._low == other_dimension._low or self.is_dynamic
        return self.is_static == other_dimension.is_static and is_same

    def compatible(self, dim: DimensionLike) -> bool:
        """Return whether some length matches both dimensions."""
        other_dimension = _dimension(dim)
        return max(self._low, other_dimension._low) <= min(self._high, other_dimension._high)

    def relaxes(self, dim: DimensionLike) -> bool:
        """Return whether this dimension allows every length of the other."""
        other_dimension = _dimension(dim)
        return self._low <= other_dimension._low and other_dimension._high <= self._high

    def refines(self, dim: DimensionLike) -> bool:
        """Return whether the other dimension allows every length of this one."""
        return _dimension(dim).relaxes(self)

    def to_string(self) -> str:
        """Return the dimension as text: ``3``, ``?``, ``1..10``."""
        return str(self)

    @staticmethod
    def _from_bounds(low: float, high: float) -> Dimension:
        return Dimension(int(low), _DYNAMIC if high == inf else int(high))

    def __add__(self, other: DimensionLike) -> Dimension:
        other_dimension = _dimension(other)
        return self._from_bounds(
            self._low + other_dimension._low, self._high + other_dimension._high
        )

    __radd__ = __add__

    def __sub__(self, other: DimensionLike) -> Dimension:
        other_dimension = _dimension(other)
        low, high = (
            max(0, self._low - other_dimension._high),
            max(0, self._high - other_dimension._low),
        )
        return self._from_bounds(low, high)

    def __mul__(self, other: DimensionLike) -> Dimension:
        other_dimension = _dimension(other)
        high = (
            inf
            if inf in (self._high, other_dimension._high)
            else self._high * other_dimension._high
        )
        return self._from_bounds(self._low * other_dimension._low, high)

    __rmul__ = __mul__

    def __and__(self, other: DimensionLike) -> Dimension:
        other_dimension = _dimension(other)
        return self._from_bounds(
            max(self._low, other_dimension._low), min(self._high, other_dimension._high)
        )

    def __len__(self) -> int:
        return self.get_length()

    __index__ = __int__ = __len__

    def __bool__(self) -> bool:
        return self != 0

    def __eq__(self, other: object) -> bool:
        if other is None or isinstance(other, int | np.integer | str):
            other_dimension = Dimension(other)
            return (self._low, self._high, self.symbol) == (
                other_dimension._low,
                other_dimension._high,
                other_dimension.symbol,
            )
        if isinstance(other, Dimension):
            is_same = (self._low, self._high) == (other._low, other._high)
            return is_same and (None in (self.symbol, other.symbol) or self.symbol == other.symbol)
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
        """Return a dynamic dimension."""
        return Dimension()


def _dimension(value: DimensionLike) -> Dimension:
    if isinstance(value, Dimension):
        return value
    if isinstance(value, tuple | list):
        if len(value) != 2 or not all(isinstance(end, int | np.integer) for end in value):
            raise ArgumentTypeError(
                f"expected a pair of two lengths such as (1, 10), got {value!r}."
            )
        return Dimension(*value)
    return Dimension(value)


class PartialShape:
    """A shape with possibly dynamic dimensions or dynamic rank; equals a list of its dimensions.

    Dimensions are assignable: ``shape[0] = -1``. A port returns a new PartialShape on each access,
    so an assignment does not change the port.

    Parameters
    ----------
    dimensions : sequence, text or None
        One entry per dimension: a length, -1 or None for any length, a pair (minimum, maximum), a
        symbol, or a `Dimension`. Text such as ``"[?,3,1..10]"`` is also valid. None and ``"..."``
        make the rank dynamic.

    Raises
    ------
    ArgumentError
        An entry is not a dimension.
    """

    __slots__ = ("_dimensions",)

    def __init__(self, dimensions: Iterable[DimensionLike] | str | None = ()) -> None:
        if isinstance(dimensions, str):
            dimensions = _parts(dimensions)
        elif isinstance(dimensions, PartialShape):
            dimensions = dimensions._dimensions
        if dimensions is not None and not isinstance(dimensions, Iterable):
            raise ArgumentTypeError(
                f"expected a list of dimensions or text such as '[?,3]', got {dimensions!r}."
            )
        self._dimensions: tuple[Dimension, ...] | None = (
            None if dimensions is None else tuple(_dimension(d) for d in dimensions)
        )

    @staticmethod
    def dynamic(rank: DimensionLike = None) -> PartialShape:
        """Return a shape of dynamic dimensions; without `rank`, the rank is dynamic too."""
        length = _dimension(rank)
        return PartialShape([None] * length.get_length() if length.is_static else None)

    @property
    def rank(self) -> Dimension:
        """Number of dimensions."""
        return Dimension(None if self._dimensions is None else len(self._dimensions))

    @property
    def is_static(self) -> bool:
        """Whether rank and every dimension are numbers."""
        return self._dimensions is not None and all(d.is_static for d in self._dimensions)

    @property
    def is_dynamic(self) -> bool:
        """Whether the rank or a dimension is dynamic."""
        return not self.is_static

    @property
    def all_non_negative(self) -> bool:
        """Whether no length is negative: always true."""
        return True

    @property
    def values(self) -> tuple[int | str | None, ...] | None:
        """The shape in the form of `TensorSpec.shape`."""
        return None if self._dimensions is None else tuple(d.value for d in self._dimensions)

    def _require_rank(self) -> tuple[Dimension, ...]:
        if self._dimensions is None:
            raise ArgumentError("expected a shape of static rank; the rank of this one is dynamic.")
        return self._dimensions

    def get_dimension(self, index: int) -> Dimension:
        """Return one dimension."""
        return self._require_rank()[index]

    def get_max_shape(self) -> Shape:
        """Return the maximum lengths (2**63 - 1 if unlimited); empty if the rank is dynamic."""
        limit = np.iinfo(np.int64).max
        return Shape(int(min(d._high, limit)) for d in self._dimensions or ())

    def get_min_shape(self) -> Shape:
        """Return the minimum lengths; empty if the rank is dynamic."""
        return Shape(d.min_length for d in self._dimensions or ())

    def to_shape(self) -> Shape:
        """Return the lengths; ArgumentError if one is dynamic."""
        if self.is_dynamic:
            raise ArgumentError(f"expected a static shape, got {self}.")
        return Shape(d.get_length() for d in self._require_rank())

    get_shape = to_shape

    def to_string(self) -> str:
        """Return the shape as text: ``[?,3]``."""
        return str(self)

    def same_scheme(self, shape: PartialShape) -> bool:
        """Return whether the ranks and static lengths are equal in both shapes."""
        return self._all_dimensions(
            shape, Dimension.same_scheme, dynamic_rank=self.rank == shape.rank
        )

    def compatible(self, shape: PartialShape) -> bool:
        """Return whether some tensor shape matches both shapes."""
        return self._all_dimensions(shape, Dimension.compatible, dynamic_rank=True)

    def relaxes(self, shape: PartialShape) -> bool:
        """Return whether this shape allows every tensor shape that the other allows."""
        return self._all_dimensions(shape, Dimension.relaxes, dynamic_rank=self._dimensions is None)

    def refines(self, shape: PartialShape) -> bool:
        """Return whether the other shape allows every tensor shape that this one allows."""
        return shape.relaxes(self)

    def _all_dimensions(self, other: PartialShape, rule: Any, *, dynamic_rank: bool) -> bool:
        """Return whether a rule holds for all dimensions; `dynamic_rank` if a rank is dynamic."""
        if self._dimensions is None or other._dimensions is None:
            return dynamic_rank
        return len(self) == len(other) and all(map(rule, self._dimensions, other._dimensions))

    def __len__(self) -> int:
        return len(self._require_rank())

    def __iter__(self) -> Iterator[Dimension]:
        return iter(self._require_rank())

    @overload
    def __getitem__(self, index: SupportsIndex) -> Dimension: ...
    @overload
    def __getitem__(self, index: slice) -> PartialShape: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Dimension | PartialShape:
        selection = self._require_rank()[index]
        return PartialShape(selection) if isinstance(selection, tuple) else selection

    def __setitem__(self, index: SupportsIndex, dimension: DimensionLike) -> None:
        dimensions = [*self._require_rank()]
        dimensions[index] = _dimension(dimension)
        self._dimensions = tuple(dimensions)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PartialShape):
            return self._dimensions == other._dimensions
        if isinstance(other, list | tuple):
            return self._dimensions is not None and [*self._dimensions] == [*other]
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # mutable, like a list

    def __str__(self) -> str:
        if self._dimensions is None:
            return "[...]"
        return f"[{','.join(map(str, self._dimensions))}]"

    def __repr__(self) -> str:
        return f"<PartialShape: {self}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return PartialShape, (self._dimensions,)


def _parts(text: str) -> Sequence[str] | None:
    """Return the dimensions in a text, or None for a dynamic rank."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
    if inner == "...":
        return None
    if not inner:
        return []
    parts = [part.strip() for part in inner.split(",")]
    dimension = re.compile(r"\?|-1|\d+|\d*\.\.\d*|[A-Za-z_]\w*")
    invalid = [part for part in parts if not dimension.fullmatch(part)]
    if invalid:
        raise ArgumentError(
            f"shape {text!r}: expected lengths, '?', intervals such as '1..10' or symbols, got "
            f"{invalid[0]!r}."
        )
    return parts
