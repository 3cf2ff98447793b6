"""Bindings of quantisation: what rounds to integers, and what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from devices.cpu.binding.elementwise import clipped
from devices.cpu.binding.product import product_calls
from devices.cpu.binding.registry import Call, Scratch, binds, blocks, flat_blocks


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
    if np.rint(high / step) > 255 - zero_point:
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
