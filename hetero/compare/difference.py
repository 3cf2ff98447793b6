"""How a value differs between two devices: where, by how much, in what."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

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
            return (_unequal(name, np.empty(len(first)), np.empty(len(second))),)
        return tuple(
            d
            for i, (a, b) in enumerate(zip(first, second, strict=True))
            for d in differences_of(f"{name}[{i}]", a, b, rtol, atol)
        )
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape or a.dtype != b.dtype:
        return (_unequal(name, a, b),)
    if a.dtype.kind in "OUSTb":
        return (_exact(name, a, b),)
    if a.dtype.kind in "iu":
        return (_whole(name, a, b, atol),)
    return (_numeric(name, a, b, rtol, atol),)


def _numeric(name: str, a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> Difference:
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(kind), b.astype(kind)
    finite = np.isfinite(x) & np.isfinite(y)
    # Infinities of one sign and NaN on both sides agree; anything else that is not finite differs.
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.abs(np.where(finite, x, 0) - np.where(finite, y, 0))
    size = np.abs(np.where(finite, x, 0))
    beyond = np.where(finite, gap - (atol + rtol * size), np.where(same, -np.inf, np.inf))
    differs = beyond > 0
    relative = gap / np.where(size > 0, size, np.inf)
    found = _difference(name, a, b, differs, (gap, relative), beyond)
    nans, infs = ((int(f(x).sum()), int(f(y).sum())) for f in (np.isnan, np.isinf))
    return replace(found, nans=nans, infs=infs)


def _whole(name: str, a: np.ndarray, b: np.ndarray, atol: float) -> Difference:
    """Compare integers: `atol` alone may let them differ, by one or more."""
    # Modulo 2**64, as unsigned numbers, no difference overflows.
    gap = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)
    size = np.abs(a.astype(np.float64))
    relative = gap / np.where(size > 0, size, np.inf)
    return _difference(name, a, b, gap > np.uint64(atol), (gap, relative), gap)


def _exact(name: str, a: np.ndarray, b: np.ndarray) -> Difference:
    """Compare strings or truth values: equal or not."""
    differs = np.asarray(a != b, dtype=bool).reshape(a.shape)
    return _difference(name, a, b, differs, (differs, differs), differs)


def _unequal(name: str, a: np.ndarray, b: np.ndarray) -> Difference:
    """Describe values of different types or shapes: every element differs."""
    count, nan = max(a.size, b.size, 1), float("nan")
    return Difference(name, *_kinds(a, b), count, count, nan, nan)


def _kinds(a: np.ndarray, b: np.ndarray) -> tuple[tuple[str, str], tuple[Any, Any]]:
    return (str(a.dtype), str(b.dtype)), (a.shape, b.shape)


def _difference(
    name: str,
    a: np.ndarray,
    b: np.ndarray,
    differs: np.ndarray,
    gaps: tuple[np.ndarray, np.ndarray],
    beyond: np.ndarray,
) -> Difference:
    """Describe values of one type and shape; they are compared where `beyond` is largest."""
    if not a.size:
        return Difference(name, *_kinds(a, b), 0, 0, 0.0, 0.0)
    largest, relative = (float(gap.max()) for gap in gaps)
    position = tuple(int(i) for i in np.unravel_index(int(np.argmax(beyond)), a.shape))
    values = (_element(a, position), _element(b, position))
    count = int(np.count_nonzero(differs))
    return Difference(name, *_kinds(a, b), count, a.size, largest, relative, position, values)


def _element(array: np.ndarray, position: tuple[int, ...]) -> float | str:
    value = array[position]
    return float(value) if array.dtype.kind in "fiu" else str(value)
