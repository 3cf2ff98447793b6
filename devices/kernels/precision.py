"""Half-width floats: computed in float32, rounded once at the end."""

from __future__ import annotations

from typing import Any


def wide(xp: Any, *arrays: Any) -> tuple[Any, ...]:
    """Return the arrays, those of float16 and bfloat16 as float32; None stays None."""
    return tuple(
        array.astype(xp.float32)
        if array is not None and array.dtype.itemsize < 4 and array.dtype.kind in "fV"
        else array
        for array in arrays
    )
