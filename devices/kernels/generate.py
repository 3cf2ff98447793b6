"""Operators that make tensors of given sizes: filled ones, ranges and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from devices.kernels.element_types import Array, Xp, element_type, is_narrow_float, same_type
from devices.kernels.registry import ALL, op


@op("ConstantOfShape", since=9, host=(0,))
def constant_of_shape(xp: Xp, shape: Array, *, value: Array | None = None) -> Array:
    """Return a tensor of `shape` filled with the attribute's one element, else float32 0."""
    sizes = shape.tolist()
    if min(sizes, default=0) < 0:
        raise ValueError(f"shape {sizes} holds a negative dimension")
    if value is None:
        return xp.zeros(sizes, dtype=xp.float32)
    if value.size != 1:
        raise ValueError(f"the value must be one element, not {value.size}")
    return xp.full(sizes, value.reshape(()), dtype=value.dtype)


@op("Range", since=11, host=(ALL,), added={"stash_type": 27})
def range_11(xp: Xp, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """Count from `start` up (or down) to before `limit` by `delta`.

    Half-width floats are counted in `stash_type` and rounded at the end.
    """
    same_type(start, limit, delta)
    stash = element_type(stash_type) if is_narrow_float(start) else start.dtype
    first, last, step = start.item(), limit.item(), delta.item()
    if step == 0:
        raise ValueError("a delta of 0 never reaches the limit")
    if not all(map(math.isfinite, (first, last, step))):
        raise ValueError(f"no count leads from {first} to {last} by {step}")
    if isinstance(step, int):
        count = max(-((first - last) // step), 0)
    else:
        count = max(math.ceil((last - first) / step), 0)
    numbers = xp.arange(count).astype(stash) * delta.astype(stash).reshape(())
    return (numbers + start.astype(stash).reshape(())).astype(start.dtype)


@op("HannWindow", since=17, host=(0,))
def hann_window(xp: Xp, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """Return ``0.5 - 0.5 cos(t)``, t over a period of `size` (or ``size - 1``) samples."""
    return _window(xp, size, output_datatype, periodic, (0.5, 0.5))


@op("HammingWindow", since=17, host=(0,))
def hamming_window(xp: Xp, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """Return ``25/46 - 21/46 cos(t)``, t over a period of `size` (or ``size - 1``) samples."""
    return _window(xp, size, output_datatype, periodic, (25 / 46, 21 / 46))


@op("BlackmanWindow", since=17, host=(0,))
def blackman_window(xp: Xp, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
    """Return ``0.42 - 0.5 cos(t) + 0.08 cos(2t)``, t over `size` (or ``size - 1``) samples."""
    return _window(xp, size, output_datatype, periodic, (0.42, 0.5, 0.08))


def _window(
    xp: Xp, size: Array, output_datatype: int, periodic: int, terms: Sequence[float]
) -> Array:
    """Return the alternating cosine sum with these coefficients."""
    samples = int(size.item())
    if samples < 0:
        raise ValueError(f"a window of {samples} samples")
    period = samples if periodic else samples - 1
    angle = xp.arange(samples, dtype=xp.float64) * (2 * math.pi / period if period else 0.0)
    window = sum((-1) ** k * a * xp.cos(k * angle) for k, a in enumerate(terms))
    return window.astype(element_type(output_datatype))
