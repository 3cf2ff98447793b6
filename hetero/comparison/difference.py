"""How a value differs between two devices: where, by how much, in what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

#: Differences below both do not count: those that ONNX's own model tests allow.
RTOL: Final = 1e-3
ATOL: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Difference:
    """How one value differs between two devices."""

    name: str
    #: Element types on the first and the second device.
    dtypes: tuple[str, str]
    #: Shapes on both.
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    #: Elements beyond tolerance, and all elements.
    differing: int
    size: int
    #: The largest difference, and the largest one relative to the first device's value; over
    #: elements that are finite on both. NaN where types or shapes differ.
    max_abs: float
    max_rel: float
    #: Where the value is furthest beyond tolerance; empty for a scalar.
    position: tuple[int, ...] = ()
    values: tuple[float | str, float | str] = ("", "")
    #: Elements that are NaN, or infinite, on each.
    nans: tuple[int, int] = (0, 0)
    infs: tuple[int, int] = (0, 0)

    @property
    def agrees(self) -> bool:
        """Whether the value is the same within tolerance."""
        return not self.differing


def differences_of(
    name: str, first: Any, second: Any, rtol: float = RTOL, atol: float = ATOL
) -> tuple[Difference, ...]:
    """Compare two values; a sequence's elements one by one.

    `name`: the value's name; elements are called ``name[0]``, ``name[1]``...
    `rtol`, `atol`: of floats; integers may differ by no more than `atol` rounded down.
    """
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        if len(first) != len(second):
            return differences_of(name, np.empty(len(first)), np.empty(len(second)))
        return tuple(
            d
            for i, (a, b) in enumerate(zip(first, second, strict=True))
            for d in differences_of(f"{name}[{i}]", a, b, rtol, atol)
        )
    a, b = np.asarray(first), np.asarray(second)
    about = (str(a.dtype), str(b.dtype)), (a.shape, b.shape)
    if a.shape != b.shape or a.dtype != b.dtype:  # every element differs
        count, nan = max(a.size, b.size, 1), float("nan")
        return (Difference(name, *about, count, count, nan, nan),)
    if not a.size:
        return (Difference(name, *about, 0, 0, 0.0, 0.0),)
    found = _apart(a, b, rtol, atol)
    position = tuple(int(i) for i in np.unravel_index(int(np.argmax(found.beyond)), a.shape))
    difference = Difference(
        name,
        *about,
        int(np.count_nonzero(found.differs)),
        a.size,
        float(found.gap.max()),
        float((found.gap / np.where(found.size > 0, found.size, np.inf)).max()),
        position,
        (_element(a, position), _element(b, position)),
        *found.odd,
    )
    return (difference,)


class _Apart(NamedTuple):
    """How far two arrays are apart, element by element."""

    differs: np.ndarray
    gap: np.ndarray
    #: What the gap is relative to.
    size: np.ndarray
    #: How far beyond tolerance.
    beyond: np.ndarray
    #: How many are NaN, and infinite, on each.
    odd: tuple[tuple[int, int], ...] = ()


def _apart(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> _Apart:
    if a.dtype.kind in "OUSTb":  # strings and truth values are equal or not
        differs = np.asarray(a != b, dtype=bool).reshape(a.shape)
        return _Apart(differs, differs, differs, differs)
    if a.dtype.kind in "iu":
        # Modulo 2**64, as unsigned numbers, no difference overflows.
        whole = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)
        return _Apart(whole > np.uint64(atol), whole, np.abs(a.astype(np.float64)), whole)
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(kind), b.astype(kind)
    finite = np.isfinite(x) & np.isfinite(y)
    # Infinities of one sign and NaN on both sides agree; anything else that is not finite differs.
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.abs(np.where(finite, x, 0) - np.where(finite, y, 0))
    size = np.abs(np.where(finite, x, 0))
    beyond = np.where(finite, gap - (atol + rtol * size), np.where(same, -np.inf, np.inf))
    nans, infs = ((int(f(x).sum()), int(f(y).sum())) for f in (np.isnan, np.isinf))
    return _Apart(beyond > 0, gap, size, beyond, (nans, infs))


def _element(array: np.ndarray, position: tuple[int, ...]) -> float | str:
    value = array[position]
    return float(value) if array.dtype.kind in "fiu" else str(value)
