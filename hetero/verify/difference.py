"""Difference between the values of one tensor on two devices: size, position and elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

#: Default tolerances: those of ONNX's own model tests.
RTOL: Final = 1e-3
ATOL: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference between one value on two devices."""

    name: str
    #: Element types on the first and the second device.
    dtypes: tuple[str, str]
    #: Shapes on the first and the second device.
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    #: Number of elements beyond tolerance, and of all elements.
    differing: int
    size: int
    #: Largest absolute and relative difference over elements that are finite on both devices,
    #: relative to the first device's value. NaN if types or shapes differ.
    max_abs: float
    max_rel: float
    #: Index of the element furthest beyond tolerance; empty for a scalar.
    position: tuple[int, ...] = ()
    values: tuple[float | str, float | str] = ("", "")
    #: Number of NaN and of infinite elements on each device.
    nans: tuple[int, int] = (0, 0)
    infs: tuple[int, int] = (0, 0)

    @property
    def agrees(self) -> bool:
        """Whether the values are equal within tolerance."""
        return not self.differing


def differences_of(
    name: str, first: Any, second: Any, rtol: float = RTOL, atol: float = ATOL
) -> tuple[Difference, ...]:
    """Compare two values; sequences are compared element by element.

    `name`: the value's name; the elements of a sequence are ``name[0]``, ``name[1]``...
    `rtol`, `atol`: tolerances of floats; integers may differ by at most `atol`, rounded down.
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
    types = (str(a.dtype), str(b.dtype)), (a.shape, b.shape)
    if a.shape != b.shape or a.dtype != b.dtype:  # every element differs
        count, nan = max(a.size, b.size, 1), float("nan")
        return (Difference(name, *types, count, count, nan, nan),)
    if not a.size:
        return (Difference(name, *types, 0, 0, 0.0, 0.0),)
    gaps = _elementwise_gaps(a, b, rtol, atol)
    position = tuple(int(i) for i in np.unravel_index(int(np.argmax(gaps.excess)), a.shape))
    difference = Difference(
        name,
        *types,
        int(np.count_nonzero(gaps.differs)),
        a.size,
        float(gaps.gap.max()),
        float((gaps.gap / np.where(gaps.scale > 0, gaps.scale, np.inf)).max()),
        position,
        (_element(a, position), _element(b, position)),
        *gaps.nans_and_infs,
    )
    return (difference,)


class _Gaps(NamedTuple):
    """Differences of two arrays, element by element."""

    differs: np.ndarray
    gap: np.ndarray
    #: Magnitudes to which gaps are relative.
    scale: np.ndarray
    #: Gaps minus tolerance.
    excess: np.ndarray
    #: Numbers of NaN, and of infinities, in each array.
    nans_and_infs: tuple[tuple[int, int], ...] = ()


def _elementwise_gaps(a: np.ndarray, b: np.ndarray, rtol: float, atol: float) -> _Gaps:
    if a.dtype.kind in "OUSTb":  # strings and truth values are equal or not
        differs = np.asarray(a != b, dtype=bool).reshape(a.shape)
        return _Gaps(differs, differs, differs, differs)
    if a.dtype.kind in "iu":
        # Modulo 2**64 no difference overflows; the operator `-` would warn about scalars.
        high, low = np.maximum(a, b).astype(np.uint64), np.minimum(a, b).astype(np.uint64)
        gap = np.subtract(high, low)
        return _Gaps(gap > np.uint64(atol), gap, np.abs(a.astype(np.float64)), gap)
    kind = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(kind), b.astype(kind)
    finite = np.isfinite(x) & np.isfinite(y)
    # Equal infinities agree, and so do two NaN; any other value that is not finite differs.
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    gap = np.abs(np.where(finite, x, 0) - np.where(finite, y, 0))
    scale = np.abs(np.where(finite, x, 0))
    excess = np.where(finite, gap - (atol + rtol * scale), np.where(same, -np.inf, np.inf))
    nans, infs = ((int(f(x).sum()), int(f(y).sum())) for f in (np.isnan, np.isinf))
    return _Gaps(excess > 0, gap, scale, excess, (nans, infs))


def _element(array: np.ndarray, position: tuple[int, ...]) -> float | str:
    value = array[position]
    return float(value) if array.dtype.kind in "fiu" else str(value)
