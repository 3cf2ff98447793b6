"""Bindings of element-wise operators and activations: ufuncs that write where they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy._core import umath

from devices.interpreter.binding.registry import Call, Scratch, binds, flat_blocks
from devices.kernels.elementwise import ERF32

#: The ufunc inside `numpy.clip`, which itself takes three times as long to call.
_CLIP: Final[Any] = vars(umath)["clip"]
_FLOAT32: Final = np.dtype(np.float32)
#: Elements that are chosen between in no time, whatever the condition.
FEW: Final = 4096


def _bind_ufunc(ufunc: Any, op_type: str, since: int) -> None:
    def bind(scratch: Scratch, y: np.ndarray, *inputs: np.ndarray) -> Sequence[Call] | None:
        if any(x.dtype != y.dtype for x in inputs):
            return None
        return [partial(ufunc, *inputs, y)]

    binds(op_type, since, over=tuple(range(ufunc.nin)), any_order=True)(bind)


#: Operator, first opset, and the ufunc of arrays of one type that computes it in that type.
_SAME_TYPE: Final[tuple[tuple[str, int, Any], ...]] = (
    ("Abs", 6, np.absolute), ("Neg", 6, np.negative), ("Sqrt", 6, np.sqrt), ("Exp", 6, np.exp),
    ("Log", 6, np.log), ("Reciprocal", 6, np.reciprocal), ("Ceil", 6, np.ceil),
    ("Floor", 6, np.floor), ("Round", 11, np.rint), ("Sin", 7, np.sin), ("Cos", 7, np.cos),
    ("Tanh", 6, np.tanh), ("Sign", 9, np.sign),
    ("Add", 7, np.add), ("Sub", 7, np.subtract), ("Mul", 7, np.multiply),
    ("And", 7, np.logical_and), ("Or", 7, np.logical_or), ("Xor", 7, np.logical_xor),
    ("Not", 1, np.logical_not),
)  # fmt: skip

for _op_type, _since, _ufunc in _SAME_TYPE:
    _bind_ufunc(_ufunc, _op_type, _since)


def _bind_comparison(ufunc: Any, op_type: str, since: int) -> None:
    def bind(
        scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray
    ) -> Sequence[Call] | None:
        return [partial(ufunc, a, b, y)] if a.dtype == b.dtype else None

    binds(op_type, since, any_order=True)(bind)


_COMPARISONS: Final[tuple[tuple[str, int, Any], ...]] = (
    ("Equal", 7, np.equal), ("Less", 7, np.less), ("Greater", 7, np.greater),
    ("LessOrEqual", 12, np.less_equal), ("GreaterOrEqual", 12, np.greater_equal),
)  # fmt: skip

for _op_type, _since, _ufunc in _COMPARISONS:
    _bind_comparison(_ufunc, _op_type, _since)


def _bind_of_many(ufunc: np.ufunc, op_type: str) -> None:
    def bind(scratch: Scratch, y: np.ndarray, *inputs: np.ndarray) -> Sequence[Call] | None:
        if len(inputs) < 2 or any(x.dtype != y.dtype for x in inputs):
            return None
        first: Call = partial(ufunc, *inputs[:2], out=y)
        return [first, *(partial(ufunc, y, x, out=y) for x in inputs[2:])]

    binds(op_type, 6, 8, any_order=True)(bind)


for _op_type, _ufunc in (("Max", np.maximum), ("Min", np.minimum)):
    _bind_of_many(_ufunc, _op_type)


@binds("Div", 7, over=(0, 1), any_order=True)
def bind_division(
    scratch: Scratch, y: np.ndarray, a: np.ndarray, b: np.ndarray
) -> Sequence[Call] | None:
    """Bind a division of floats; that of integers looks for zeros first."""
    floats = a.dtype.kind == "f" and a.dtype == b.dtype
    return [partial(np.divide, a, b, y)] if floats else None


@binds("Pow", 7, 12, any_order=True)
def bind_power(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, exponent: np.ndarray
) -> Sequence[Call] | None:
    """Bind squares and cubes, whose exponent is a constant."""
    if not is_wide(x) or exponent.flags.writeable or exponent.size != 1:
        return None
    if exponent.ndim > x.ndim or exponent.item() not in (2, 3):
        return None
    calls: list[Call] = [partial(np.multiply, x, x, y)]
    return calls if exponent.item() == 2 else [*calls, partial(np.multiply, y, x, y)]


@binds("Relu", 6, over=(0,), any_order=True)
def bind_relu(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind max(0, x)."""
    return clipped(y, x, 0, np.inf) if x.dtype.kind == "f" else None


@binds("Clip", 11, over=(0,), any_order=True)
def bind_clip(
    scratch: Scratch,
    y: np.ndarray,
    x: np.ndarray,
    low: np.ndarray | None = None,
    high: np.ndarray | None = None,
) -> Sequence[Call] | None:
    """Bind limits of floats."""
    limits = [limit for limit in (low, high) if limit is not None]
    if x.dtype.kind != "f" or not limits:
        return None
    if any(limit.size != 1 or limit.dtype != x.dtype for limit in limits):
        return None
    return clipped(
        y,
        x,
        -np.inf if low is None else low.reshape(()),
        np.inf if high is None else high.reshape(()),
    )


def clipped(y: np.ndarray, x: np.ndarray, low: Any, high: Any) -> list[Call]:
    """Return the call that limits x to [low, high]."""
    low, high = np.asarray(low, x.dtype), np.asarray(high, x.dtype)
    return [partial(_CLIP, x, low, high, y)]


@binds("IsNaN", 9, any_order=True)
def bind_is_nan(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind the search for NaN."""
    return [partial(np.isnan, x, y)] if is_wide(x) else None


@binds("LeakyRelu", 6, any_order=True)
def bind_leaky_relu(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, alpha: float = 0.01
) -> Sequence[Call] | None:
    """Bind max(x, alpha * x), which it is where alpha is below 1."""
    if not is_wide(x) or not 0 < alpha <= 1:
        return None
    return [partial(np.multiply, x, number(alpha, x), y), partial(np.maximum, x, y, out=y)]


@binds("Softplus", 1, any_order=True)
def bind_softplus(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind log(exp(x) + 1), written so that exp cannot overflow."""
    if not is_wide(x):
        return None
    calls: list[Call] = []
    pieces = flat_blocks(y, x)
    above = scratch(pieces[0][0].shape, x.dtype)
    for to, at in pieces:
        positive = above[: len(to)]
        calls += [
            partial(np.absolute, at, to),
            partial(np.negative, to, to),
            partial(np.exp, to, to),
            partial(np.log1p, to, to),
            partial(np.maximum, at, number(0, x), out=positive),
            partial(np.add, positive, to, to),
        ]
    return calls


def number(value: float, like: np.ndarray) -> np.ndarray:
    """Return a number as an array of rank 0, which ufuncs take faster than anything else."""
    return np.asarray(value, like.dtype)


def is_wide(x: np.ndarray) -> bool:
    """Tell whether x is of floats that kernels compute with as they are."""
    return x.dtype.kind == "f" and x.dtype.itemsize >= _FLOAT32.itemsize


def _sigmoid(y: np.ndarray, x: np.ndarray) -> list[Call]:
    return [
        partial(np.negative, x, y),
        partial(np.exp, y, y),
        partial(np.add, y, number(1, x), y),
        partial(np.reciprocal, y, y),
    ]


def _hard_sigmoid(y: np.ndarray, x: np.ndarray, alpha: float, beta: float) -> list[Call]:
    return [
        partial(np.multiply, x, number(alpha, x), y),
        partial(np.add, y, number(beta, x), y),
        *clipped(y, y, 0, 1),
    ]


@binds("Sigmoid", 6, over=(0,), any_order=True)
def bind_sigmoid(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind 1 / (1 + exp(-x))."""
    if not is_wide(x):
        return None
    return [call for piece in flat_blocks(y, x) for call in _sigmoid(*piece)]


@binds("HardSigmoid", 6, over=(0,), any_order=True)
def bind_hard_sigmoid(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, alpha: float = 0.2, beta: float = 0.5
) -> Sequence[Call] | None:
    """Bind alpha * x + beta, limited to [0, 1]."""
    if not is_wide(x):
        return None
    return [c for to, at in flat_blocks(y, x) for c in _hard_sigmoid(to, at, alpha, beta)]


@binds("HardSwish", 14, any_order=True)
def bind_hard_swish(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind x * max(0, min(1, x / 6 + 1/2))."""
    if not is_wide(x):
        return None
    calls: list[Call] = []
    for to, at in flat_blocks(y, x):
        calls += [*_hard_sigmoid(to, at, 1 / 6, 0.5), partial(np.multiply, to, at, to)]
    return calls


@binds("Swish", 1, domain="hetero", any_order=True)
@binds("Swish", 24, any_order=True)
def bind_swish(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, alpha: float = 1.0
) -> Sequence[Call] | None:
    """Bind x * sigmoid(x)."""
    if not is_wide(x) or alpha != 1:
        return None
    calls: list[Call] = []
    for to, at in flat_blocks(y, x):
        calls += [*_sigmoid(to, at), partial(np.multiply, to, at, to)]
    return calls


@binds("Erf", 9, any_order=True)
def bind_erf(scratch: Scratch, y: np.ndarray, x: np.ndarray) -> Sequence[Call] | None:
    """Bind the error function of float32."""
    if x.dtype != _FLOAT32:
        return None
    pieces = flat_blocks(y, x)
    square = scratch(pieces[0][0].shape, x.dtype)
    return [call for to, at in pieces for call in _erf(square[: len(to)], to, at)]


def _erf(square: np.ndarray, y: np.ndarray, x: np.ndarray) -> list[Call]:
    """Return the calls that put erf(x) into y, which x does not lie over."""
    *others, first = ERF32[::-1]
    calls: list[Call] = [partial(np.multiply, x, x, square)]
    calls.append(partial(np.multiply, square, number(others[0], x), y))
    for coefficient in others[1:]:
        calls.append(partial(np.add, y, number(coefficient, x), y))
        calls.append(partial(np.multiply, y, square, y))
    calls.append(partial(np.add, y, number(first, x), y))
    calls.append(partial(np.multiply, y, x, y))
    calls.append(partial(np.tanh, y, y))
    return calls


@binds("Gelu", 1, domain="hetero", any_order=True)
@binds("Gelu", 20, any_order=True)
def bind_gelu(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, approximate: str = "none"
) -> Sequence[Call] | None:
    """Bind x / 2 * (1 + erf(x / sqrt(2))), or the approximation of it by tanh."""
    if x.dtype != _FLOAT32:
        return None
    pieces = flat_blocks(y, x)
    shape = pieces[0][0].shape
    scaled, square = scratch(shape, x.dtype), scratch(shape, x.dtype)
    calls: list[Call] = []
    for to, at in pieces:
        if approximate == "none":
            small = scaled[: len(to)]
            calls.append(partial(np.multiply, at, number(math.sqrt(0.5), x), small))
            calls += _erf(square[: len(to)], to, small)
        else:
            calls += _tanh_gate(to, at)
        calls.append(partial(np.add, to, number(1, x), to))
        calls.append(partial(np.multiply, to, at, to))
        calls.append(partial(np.multiply, to, number(0.5, x), to))
    return calls


def _tanh_gate(y: np.ndarray, x: np.ndarray) -> list[Call]:
    return [
        partial(np.multiply, x, x, y),
        partial(np.multiply, y, number(0.044715 * math.sqrt(2 / math.pi), x), y),
        partial(np.add, y, number(math.sqrt(2 / math.pi), x), y),
        partial(np.multiply, y, x, y),
        partial(np.tanh, y, y),
    ]


@binds("Where", 9, any_order=True)
def bind_where(
    scratch: Scratch, y: np.ndarray, condition: np.ndarray, a: np.ndarray, b: np.ndarray
) -> Sequence[Call] | None:
    """Bind a choice by a constant, which is most often a mask, or between few elements.

    What a processor cannot predict takes the kernel's way, by bits.
    """
    if condition.dtype.kind != "b" or not a.dtype == b.dtype == y.dtype:
        return None
    if condition.flags.writeable and y.size > FEW:
        return None
    return [partial(np.copyto, y, b), partial(np.copyto, y, a, where=condition)]


@binds("Cast", 6, any_order=True)
def bind_cast(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, to: int, **_: Any
) -> Sequence[Call] | None:
    """Bind casts of integers, and of floats to floats, as numpy does them; none to half floats."""
    if x.dtype.kind not in "biuf" or not (y.dtype.kind in "iu" or is_wide(y)):
        return None
    if x.dtype.kind == "f" and y.dtype.kind != "f":
        return None  # what is out of range is the kernel's to say
    return [partial(np.copyto, y, x, casting="unsafe")]
