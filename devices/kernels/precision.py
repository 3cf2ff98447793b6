"""The arithmetic of kernels in several steps: in which type."""

from __future__ import annotations

from typing import Any

from devices.kernels.element_types import Array, Xp, is_narrow_float


def wide(xp: Xp, *arrays: Array | None) -> tuple[Array, ...]:
    """Return the arrays, floats under 32 bits as float32; None stays None."""
    return tuple(a if a is None or not is_narrow_float(a) else a.astype(xp.float32) for a in arrays)


def stash(xp: Xp, array: Array, stash_type: int) -> Array:
    """Return the array in the type that a normalisation computes in.

    `stash_type` 1 is float32, 11 float64; 10 and 16 (16-bit floats) compute in float32.
    """
    return array.astype(xp.float64 if stash_type == 11 else xp.float32, copy=False)


def to_integers(xp: Xp, x: Array, dtype: Any) -> Array:
    """Return interpolated values as an integer type: rounded to even, kept within its range."""
    if x.dtype == dtype:
        return x
    limits = xp.iinfo(dtype)
    return xp.clip(xp.rint(x), limits.min, limits.max).astype(dtype)
