"""Bindings of activations whose negative side has a slope or bends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from devices.interpreter.binding.elementwise import FEW, clipped, is_wide, number
from devices.interpreter.binding.registry import Call, Scratch, binds, flat_blocks


@binds("PRelu", 7, any_order=True)
def bind_prelu(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, slope: np.ndarray
) -> Sequence[Call] | None:
    """Bind x, multiplied by slope where it is negative, of few elements."""
    if not is_wide(x) or slope.dtype != x.dtype or y.size > FEW:
        return None
    negative = scratch(x.shape, np.bool_)
    return [
        partial(np.less, x, number(0, x), negative),
        partial(np.copyto, y, x),
        partial(np.multiply, x, slope, out=y, where=negative),
    ]


def _exponential(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, alpha: float, width: float, gamma: float
) -> Sequence[Call] | None:
    """Return the calls for gamma * (max(0, x) + alpha * (exp(min(0, x) / width) - 1))."""
    if not is_wide(x):
        return None
    calls: list[Call] = []
    pieces = flat_blocks(y, x)
    positive = scratch(pieces[0][0].shape, x.dtype)
    for to, at in pieces:
        above = positive[: len(to)]
        calls += clipped(to, at, -np.inf, 0)
        calls += [partial(np.divide, to, number(width, x), to)] if width != 1 else []
        calls += [
            partial(np.exp, to, to),
            partial(np.subtract, to, number(1, x), to),
            partial(np.multiply, to, number(alpha, x), to),
            *clipped(above, at, 0, np.inf),
            partial(np.add, to, above, to),
        ]
        calls += [partial(np.multiply, to, number(gamma, x), to)] if gamma != 1 else []
    return calls


@binds("Elu", 6, any_order=True)
def bind_elu(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, alpha: float = 1.0
) -> Sequence[Call] | None:
    """Bind x, and alpha * (exp(x) - 1) where it is negative."""
    return _exponential(scratch, y, x, alpha, 1, 1)


@binds("Selu", 6, any_order=True)
def bind_selu(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *,
    alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323,
) -> Sequence[Call] | None:  # fmt: skip
    """Bind gamma * x, and gamma * alpha * (exp(x) - 1) where x is not positive."""
    return _exponential(scratch, y, x, alpha, 1, gamma)


@binds("Celu", 12, any_order=True)
def bind_celu(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, alpha: float = 1.0
) -> Sequence[Call] | None:
    """Bind max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    return _exponential(scratch, y, x, alpha, alpha, 1) if alpha else None


@binds("Mish", 18, any_order=True)
def bind_mish(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind x * tanh(log(1 + exp(x))), by the kernel's quotient."""
    if not is_wide(x):
        return None
    calls: list[Call] = []
    pieces = flat_blocks(y, x)
    power = scratch(pieces[0][0].shape, x.dtype)
    for to, at in pieces:
        e = power[: len(to)]
        calls += [
            *clipped(e, at, -np.inf, 20),
            partial(np.exp, e, e),
            partial(np.add, e, number(2, x), to),
            partial(np.multiply, to, e, to),
            partial(np.add, to, number(2, x), e),
            partial(np.divide, to, e, to),
            partial(np.multiply, to, at, to),
        ]
    return calls
