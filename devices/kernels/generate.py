"""Operators that make tensors: constants, ranges and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from onnx import numpy_helper

from devices.kernels.element_types import Array, Xp, element_type, is_narrow_float, same_type
from devices.kernels.registry import ALL, op


@op("Constant", since=1)
def constant_1(xp: Xp, *, value: Array) -> Array:
    """Return the attribute's tensor."""
    return xp.asarray(value)


@op("Constant", since=11)
def constant_11(xp: Xp, *, value: Array | None = None, sparse_value: Any = None) -> Array:
    """Return the attribute's tensor, a sparse one as a dense."""
    return _constant(xp, value=value, sparse_value=sparse_value)


@op("Constant", since=12)
def constant_12(
    xp: Xp,
    *,
    value: Array | None = None,
    sparse_value: Any = None,
    value_float: float | None = None,
    value_floats: Sequence[float] | None = None,
    value_int: int | None = None,
    value_ints: Sequence[int] | None = None,
    value_string: str | None = None,
    value_strings: Sequence[str] | None = None,
) -> Array:
    """Return the one attribute that is given as a tensor: float32, int64 or strings."""
    return _constant(
        xp,
        value=value,
        sparse_value=sparse_value,
        value_float=value_float,
        value_floats=value_floats,
        value_int=value_int,
        value_ints=value_ints,
        value_string=value_string,
        value_strings=value_strings,
    )


def _constant(xp: Xp, **attributes: Any) -> Array:
    given = {name: value for name, value in attributes.items() if value is not None}
    if len(given) != 1:
        raise ValueError(f"exactly one value is wanted, not {sorted(given)}")
    ((name, value),) = given.items()
    if name == "value":
        return xp.asarray(value)
    if name == "sparse_value":
        return xp.asarray(_dense(xp, value))
    kind = name.removeprefix("value_").removesuffix("s")
    return xp.asarray(value, {"float": xp.float32, "int": xp.int64, "string": object}[kind])


def _dense(xp: Xp, sparse: Any) -> Array:
    """Return a SparseTensorProto's tensor; its indices are flat (count,) or (count, rank)."""
    values, indices = (numpy_helper.to_array(t) for t in (sparse.values, sparse.indices))
    shape = tuple(sparse.dims)
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    places = indices if indices.ndim == 1 else indices @ strides
    if places.size and not (places.min() >= 0 and places.max() < math.prod(shape)):
        raise IndexError(f"a sparse value lies outside its shape {shape}")
    dense = xp.zeros(math.prod(shape), dtype=values.dtype)
    dense[places] = values
    return dense.reshape(shape)


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


@op("Range", since=11, host=(ALL,))
def range_11(xp: Xp, start: Array, limit: Array, delta: Array) -> Array:
    """Count from `start` up (or down) to before `limit` by `delta`."""
    return _range(xp, start, limit, delta, start.dtype)


@op("Range", since=27, host=(ALL,))
def range_27(xp: Xp, start: Array, limit: Array, delta: Array, *, stash_type: int = 1) -> Array:
    """Count from `start` up (or down) to before `limit` by `delta`.

    Half-width floats are counted in `stash_type` and rounded at the end.
    """
    stash = element_type(stash_type) if is_narrow_float(start) else start.dtype
    return _range(xp, start, limit, delta, stash)


def _range(xp: Xp, start: Array, limit: Array, delta: Array, stash: Any) -> Array:
    same_type(start, limit, delta)
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
