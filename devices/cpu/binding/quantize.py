"""Bindings of quantisation: what rounds to integers, and what reads them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from devices.cpu.binding.elementwise import clipped
from devices.cpu.binding.registry import Call, Scratch, binds, flat_blocks


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
