"""Bindings of quantisation: what rounds to integers, and what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from devices.interpreter.binding.elementwise import clipped
from devices.interpreter.binding.product import product_calls
from devices.interpreter.binding.registry import Call, Scratch, binds, blocks, flat_blocks
from devices.kernels.quantize import RANGE


def rounding_calls(
    y: np.ndarray, x: np.ndarray, scale: float, low: float, high: float
) -> Iterator[Call]:
    """Yield the calls that put x into y, rounded to multiples of `scale` from low to high."""
    step = np.asarray(scale, x.dtype)
    yield partial(np.divide, x, step, y)
    yield partial(np.rint, y, y)
    yield from clipped(y, y, low, high)
    yield partial(np.multiply, y, step, y)


@binds("FakeQuantize", 1, domain="hetero", over=(0,), any_order=True)
def bind_fake_quantize(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, scale: float, low: float, high: float
) -> Sequence[Call] | None:
    """Bind the rounding to what integers stand for."""
    pieces = flat_blocks(y, x)
    return [call for to, at in pieces for call in rounding_calls(to, at, scale, low, high)]


@binds("QuantizeLinear", 10, any_order=True)
def bind_quantize(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray,
    zero_point: np.ndarray | None = None, *,
    block_size: int = 0, output_dtype: int = 0, precision: int = 0, **_: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind the rounding of float32 to integers of one constant scale."""
    if block_size or output_dtype or precision or y.dtype.name not in RANGE:
        return None
    if not x.dtype == scale.dtype == np.float32 or not _is_one(scale, zero_point):
        return None
    pieces = flat_blocks(x, y)
    floats = scratch(pieces[0][0].shape, x.dtype)
    calls: list[Call] = []
    for at, to in pieces:
        part = floats[: len(at)] if at.ndim else floats
        calls += [partial(np.divide, at, scale.reshape(()), part), partial(np.rint, part, part)]
        if zero_point is not None and zero_point.any():
            calls.append(partial(np.add, part, _number(zero_point, x), part))
        calls += clipped(part, part, *RANGE[y.dtype.name])
        calls.append(partial(np.copyto, to, part, casting="unsafe"))
    return calls


@binds("DequantizeLinear", 10, any_order=True)
def bind_dequantize(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, scale: np.ndarray,
    zero_point: np.ndarray | None = None, *, block_size: int = 0, **_: Any,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind what integers of one constant scale stand for, as float32."""
    if block_size or x.dtype.name not in RANGE or not y.dtype == scale.dtype == np.float32:
        return None
    if not _is_one(scale, zero_point):
        return None
    calls: list[Call] = []
    for to, at in flat_blocks(y, x):
        calls.append(partial(np.copyto, to, at))
        if zero_point is not None and zero_point.any():
            calls.append(partial(np.subtract, to, _number(zero_point, y), to))
        calls.append(partial(np.multiply, to, scale.reshape(()), to))
    return calls


def _is_one(scale: np.ndarray, zero_point: np.ndarray | None) -> bool:
    """Tell whether both are constants of one element."""
    given = [array for array in (scale, zero_point) if array is not None]
    return all(array.size == 1 and not array.flags.writeable for array in given)


def _number(array: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Return an array of one element as a number of another array's type."""
    return array.reshape(()).astype(like.dtype)


@binds("DynamicFakeQuantize", 1, domain="hetero", many=True)
def bind_dynamic_fake_quantize(
    scratch: Scratch, outputs: Sequence[np.ndarray], x: np.ndarray
) -> Sequence[Call] | None:
    """Bind the rounding to integers from 0 to 255 less the zero point that x's range gives."""
    y, scale = outputs
    if x.dtype != np.float32 or not x.size:
        return None
    return [partial(_spread, y, scale, x, flat_blocks(y, x))]


def _spread(
    y: np.ndarray, scale: np.ndarray, x: np.ndarray, pieces: Sequence[tuple[np.ndarray, ...]]
) -> None:
    low = min(np.minimum.reduce(x, None), np.float32(0))
    high = max(np.maximum.reduce(x, None), np.float32(0))
    scale[...] = step = (high - low) / np.float32(255) if high > low else np.float32(1)
    zero_point = np.rint(-low / step)
    for to, at in pieces:
        np.divide(at, scale, to)
        np.rint(to, to)
    # The least is in range, for the zero point was rounded as it is.
    if not np.rint(high / step) <= 255 - zero_point:  # or there is a NaN, which is all
        np.minimum(y, 255 - zero_point, out=y)


@binds("ScaledMatMul", 1, domain="hetero")
def bind_scaled_matmul(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray, a_scale: np.ndarray,
    b_scale: np.ndarray, c: np.ndarray | None = None, *, terms: int,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind a @ b * (a_scale * b_scale) + c."""
    before = list[Call]()
    if b.dtype != y.dtype:
        integers, b = b, scratch(b.shape, y.dtype)
        before.append(partial(np.copyto, b, integers))
    calls = product_calls(scratch, y, a, b, terms)
    if calls is None:
        return None
    calls = before + calls
    factor = scratch(b_scale.shape, y.dtype)
    calls.append(partial(np.multiply, a_scale, b_scale, factor))
    for (rows,) in blocks(y.reshape(-1, y.shape[-1])):
        calls.append(partial(np.multiply, rows, factor, rows))
        if c is not None:
            calls.append(partial(np.add, rows, c, rows))
    return calls
