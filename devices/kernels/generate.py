"""Operators that generate tensors: constants, ranges and window functions."""

from __future__ import annotations

import math

from hetero.devices.kernels.element_types import (
    Array,
    Xp,
    check_same_type,
    element_type,
    is_narrow_float,
)
from hetero.devices.kernels.registry import ALL, op


@op("ConstantOfShape", since=9, host=(0,))
def constant_of_shape(xp: Xp, shape: Array, *, value: Array | None = None) -> Array:
    """Return a tensor of `shape` filled with the element in `value`, by default float32 0."""
    sizes = shape.tolist()
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape: expected no negative dimension, got {sizes}")
    if value is None:
        return xp.zeros(sizes, dtype=xp.float32)
    if value.size != 1:
        raise ValueError(f"value: expected one element, got {value.size}")
    return xp.full(sizes, value.reshape(()), dtype=value.dtype)


@op("Range", since=11, host=(ALL,), additions={"stash_type": 27})
def range_11(xp: Xp, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """Return the numbers from `start` to before `limit` in steps of `delta`.

    16-bit floats are computed in `stash_type` and then rounded.
    """
    check_same_type(start, limit, delta)
    stash = element_type(stash_type) if is_narrow_float(start) else start.dtype
    first, last, step = start.item(), limit.item(), delta.item()
    if step == 0:
        raise ValueError("delta: expected a number other than 0, which never reaches the limit")
    if not all(map(math.isfinite, (first, last, step))):
        raise ValueError(f"expected finite numbers, got {first} to {last} by {step}")
    if isinstance(step, int):
        count = max(-((first - last) // step), 0)
    else:
        count = max(math.ceil((last - first) / step), 0)
    numbers = xp.arange(count).astype(stash) * delta.astype(stash).reshape(())
    return (numbers + start.astype(stash).reshape(())).astype(start.dtype)


def _window(op_type: str, *terms: float) -> None:
    """Register a window function, the alternating sum of cosines with these coefficients."""

    @op(op_type, since=17, host=(0,))
    def window(xp: Xp, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        samples = int(size.item())
        if samples < 0:
            raise ValueError(f"size: expected 0 or more samples, got {samples}")
        period = samples if periodic else samples - 1
        angle = xp.arange(samples, dtype=xp.float64) * (2 * math.pi / period if period else 0.0)
        total = sum((-1) ** k * a * xp.cos(k * angle) for k, a in enumerate(terms))
        return total.astype(element_type(output_datatype))


_window("HannWindow", 0.5, 0.5)
_window("HammingWindow", 25 / 46, 21 / 46)
_window("BlackmanWindow", 0.42, 0.5, 0.08)
