"""Element-wise arithmetic, comparisons, logic, powers, rounding, trigonometry, bit operations.

Operators that are one call of the array namespace are rows of tables; the rest are functions.
"""

from __future__ import annotations

import math
from functools import reduce

from hetero.devices.kernels.element_types import (
    Array,
    Kernel,
    Xp,
    in_float32,
    is_float,
    is_on_host,
    same_type,
)
from hetero.devices.kernels.registry import op

#: Operator, first opset, and the function of one array that computes it.
_UNARY = (
    ("Abs", 6, "absolute"),
    ("Neg", 6, "negative"),
    ("Sign", 9, "sign"),
    ("Reciprocal", 6, "reciprocal"),
    ("Sqrt", 6, "sqrt"),
    ("Exp", 6, "exp"),
    ("Log", 6, "log"),
    ("Ceil", 6, "ceil"),
    ("Floor", 6, "floor"),
    ("Round", 11, "rint"),
    ("Sin", 7, "sin"),
    ("Cos", 7, "cos"),
    ("Tan", 7, "tan"),
    ("Asin", 7, "arcsin"),
    ("Acos", 7, "arccos"),
    ("Atan", 7, "arctan"),
    ("Sinh", 9, "sinh"),
    ("Cosh", 9, "cosh"),
    ("Tanh", 6, "tanh"),
    ("Asinh", 9, "arcsinh"),
    ("Acosh", 9, "arccosh"),
    ("Atanh", 9, "arctanh"),
    ("IsNaN", 9, "isnan"),
    ("BitwiseNot", 18, "invert"),
)

#: Operator, first opset, and the broadcasting function of two arrays that computes it.
_BINARY = (
    ("Add", 7, "add"),
    ("Sub", 7, "subtract"),
    ("Mul", 7, "multiply"),
    ("BitwiseAnd", 18, "bitwise_and"),
    ("BitwiseOr", 18, "bitwise_or"),
    ("BitwiseXor", 18, "bitwise_xor"),
    ("Equal", 7, "equal"),
    ("Less", 7, "less"),
    ("Greater", 7, "greater"),
    ("LessOrEqual", 12, "less_equal"),
    ("GreaterOrEqual", 12, "greater_equal"),
)

#: The same of boolean arrays.
_CONNECTIVES = (("And", 7, "logical_and"), ("Or", 7, "logical_or"), ("Xor", 7, "logical_xor"))


def _unary(name: str) -> Kernel:
    def kernel(xp: Xp, x: Array) -> Array:
        return getattr(xp, name)(x)

    return kernel


def _binary(name: str) -> Kernel:
    def kernel(xp: Xp, a: Array, b: Array) -> Array:
        # Strings come as Python objects or in numpy's own string types, and compare either way.
        if a.dtype != b.dtype and "O" not in (a.dtype.kind, b.dtype.kind):
            same_type(a, b)
        return getattr(xp, name)(a, b)

    return kernel


def _connective(name: str) -> Kernel:
    def kernel(xp: Xp, a: Array, b: Array) -> Array:
        _refuse_numbers(name, a, b)
        return getattr(xp, name)(a, b)

    return kernel


def _refuse_numbers(name: str, *inputs: Array) -> None:
    for array in inputs:
        if array.dtype.kind != "b":
            raise TypeError(f"{name} takes bool, not {array.dtype}")


for _op, _since, _name in _UNARY:
    op(_op, since=_since)(_unary(_name))
for _op, _since, _name in _BINARY:
    op(_op, since=_since)(_binary(_name))
for _op, _since, _name in _CONNECTIVES:
    op(_op, since=_since)(_connective(_name))


@op("Not", since=1)
def negate(xp: Xp, x: Array) -> Array:
    """Return the negation of booleans."""
    _refuse_numbers("Not", x)
    return xp.logical_not(x)


@op("Where", since=9)
def where(xp: Xp, condition: Array, x: Array, y: Array) -> Array:
    """Return x where the condition holds, y elsewhere; all three broadcast."""
    _refuse_numbers("the condition of Where", condition)
    same_type(x, y)
    return xp.where(condition, x, y)


def _aligned(a: Array, b: Array, axis: int | None, broadcast: int) -> Array:
    """Return b shaped to broadcast as before opset 7: its axes are a's from `axis` on, or last."""
    if a.shape == b.shape:
        return b
    if not broadcast:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ, and broadcast is 0")
    if b.size == 1:
        return b.reshape(())
    start = a.ndim - b.ndim if axis is None else axis
    span = a.shape[start : start + b.ndim] if start >= 0 else ()
    if len(span) != b.ndim or any(n not in (1, m) for n, m in zip(b.shape, span, strict=True)):
        raise ValueError(f"shape {b.shape} is not that of {a.shape} from axis {start} on")
    return b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim))


@op("Div", since=7)
def divide(xp: Xp, a: Array, b: Array) -> Array:
    """Return a / b; integers truncate toward zero."""
    same_type(a, b)
    if is_float(a):
        return xp.divide(a, b)
    _refuse_zero(xp, b)
    if a.dtype.kind == "u":
        return xp.floor_divide(a, b)
    # What C's remainder leaves is a multiple of b, on which flooring and truncating agree.
    return xp.floor_divide(a - xp.fmod(a, b), b)


@op("Mod", since=(10, 28))
def modulo(xp: Xp, a: Array, b: Array, *, fmod: int = 0, version: int) -> Array:
    """Return a - b * floor(a / b), or a - b * trunc(a / b) with `fmod`."""
    if version < 28 and is_float(a) and not fmod:
        raise ValueError(f"fmod is 0, but before opset 28 Mod of {a.dtype} needs fmod=1")
    same_type(a, b)
    if fmod not in (0, 1):
        raise ValueError(f"fmod is {fmod}, not 0 or 1")
    if not is_float(a):
        _refuse_zero(xp, b)
    return xp.fmod(a, b) if fmod else xp.remainder(a, b)


@op("Pow", since=(7, 12))
@in_float32
def power(xp: Xp, x: Array, y: Array) -> Array:
    """Return x to the power y, in x's element type."""
    if is_float(x):
        # Squares and cubes are most of the powers in models, and ten times cheaper as products.
        alone = y.size == 1 and y.ndim <= x.ndim and is_on_host(y)
        exponent = y.item() if alone else None
        if exponent == 2:
            return xp.multiply(x, x)
        if exponent == 3:
            return x * x * x
        if exponent == 0.5:
            # The root differs from the power in its sign of -0 and in -inf, whose power is inf.
            return xp.where(x == -xp.inf, -x, xp.sqrt(x) + 0)
        return xp.power(x, y.astype(x.dtype, copy=False))
    if is_float(y):
        return xp.power(x.astype(xp.float64), y.astype(xp.float64)).astype(x.dtype)
    # Of negative integer powers only those of 1 and -1 are not fractions, which truncate to zero.
    looking = is_on_host(x) and is_on_host(y)
    if y.dtype.kind == "i" and (not looking or bool((y < 0).any())):
        if looking and bool(((x == 0) & (y < 0)).any()):
            raise ValueError("an integer zero is raised to a negative power")
        odd = xp.where(y % 2 == 0, 1, x)
        fraction = xp.where(xp.absolute(x) == 1, odd, 0)
        return xp.where(y < 0, fraction, xp.power(x, xp.maximum(y, 0))).astype(x.dtype)
    return xp.power(x, y).astype(x.dtype, copy=False)


def _with_axis(kernel: Kernel) -> Kernel:
    def aligned(
        xp: Xp, a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0
    ) -> Array:
        return kernel(xp, a, _aligned(a, b, axis, broadcast))

    return aligned


op("Add", since=6)(_with_axis(_binary("add")))
op("Sub", since=6)(_with_axis(_binary("subtract")))
op("Mul", since=6)(_with_axis(_binary("multiply")))
op("Div", since=6)(_with_axis(divide))
op("Pow", since=1)(_with_axis(power))


def _variadic(name: str) -> Kernel:
    def kernel(xp: Xp, *inputs: Array) -> Array:
        same_type(*inputs)
        return reduce(getattr(xp, name), inputs)

    return kernel


# NaN wins over both of Max and Min.
op("Max", since=(6, 8))(_variadic("maximum"))
op("Min", since=(6, 8))(_variadic("minimum"))
op("Sum", since=(6, 8))(in_float32(_variadic("add")))


@op("Mean", since=(6, 8))
@in_float32
def mean(xp: Xp, *inputs: Array) -> Array:
    """Return the mean of the inputs, element by element."""
    return _variadic("add")(xp, *inputs) / len(inputs)


@op("Clip", since=6)
def clip_6(xp: Xp, x: Array, *, min: float = -3.4028235e38, max: float = 3.4028235e38) -> Array:
    """Return x limited to [min, max]."""
    return _clip(xp, x, xp.asarray(min).astype(x.dtype), xp.asarray(max).astype(x.dtype))


@op("Clip", since=11)
def clip_11(xp: Xp, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    """Return x limited to [low, high]; an absent limit does not limit."""
    for name, limit in (("min", low), ("max", high)):
        if limit is not None and limit.size != 1:
            raise ValueError(f"{name} has shape {limit.shape}, not a scalar's")
        if limit is not None:
            same_type(x, limit)
    low = None if low is None else low.reshape(())
    high = None if high is None else high.reshape(())
    return _clip(xp, x, low, high)


def _clip(xp: Xp, x: Array, low: Array | None, high: Array | None) -> Array:
    if x.dtype.kind == "f" and not (low is None and high is None):
        # One pass, and faster than `maximum` with a scalar by three times.
        low = -xp.inf if low is None else low
        return xp.clip(x, low, xp.inf if high is None else high)
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


@op("IsInf", since=10)
def is_inf(xp: Xp, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Tell which elements are infinite, of the signs asked for."""
    infinite = xp.isinf(x)
    if not detect_negative:
        infinite &= ~xp.signbit(x)
    if not detect_positive:
        infinite &= xp.signbit(x)
    return infinite


@op("BitShift", since=11, choices={"direction": ("LEFT", "RIGHT")})
def bit_shift(xp: Xp, x: Array, y: Array, *, direction: str) -> Array:
    """Return x shifted by y bits; what leaves is lost, and a right shift keeps the sign."""
    same_type(x, y)
    bits = 8 * x.dtype.itemsize
    within = (y >= 0) & (y < bits)
    count = xp.where(within, y, 0).astype(x.dtype)
    if direction == "LEFT":
        return xp.where(within, xp.left_shift(x, count), 0).astype(x.dtype)
    # Shifting by all the bits leaves the sign; no machine shifts that far at once.
    if x.dtype.kind == "i":
        return xp.right_shift(x, xp.where(within, count, bits - 1))
    return xp.where(within, xp.right_shift(x, count), 0).astype(x.dtype)


@op("Erf", since=9)
def erf_9(xp: Xp, x: Array) -> Array:
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t²) from 0 to x."""
    if is_float(x) and x.dtype != xp.float64:
        return _erf32(xp, x)
    # A polynomial of its precision takes as long as a call for each element.
    exact = [math.erf(value) for value in x.reshape(-1).tolist()]
    return xp.asarray(exact, dtype=xp.float64).astype(x.dtype).reshape(x.shape)


#: atanh(erf(x)) / x as a polynomial of x² on [0, 4], lowest power first: least maximal relative
#: error of erf (9.5e-8), found by iteratively reweighted least squares (Lawson's method). Beyond 4
#: it goes on growing, so that tanh of it stays 1, which erf is there in float32.
ERF32 = (
    1.128379225730896,
    0.10276905447244644,
    -0.00019182793039362878,
    -0.0006197869661264122,
    8.763813093537465e-05,
    -5.668598987540463e-06,
    1.4185889085638337e-07,
)


@in_float32
def _erf32(xp: Xp, x: Array) -> Array:
    square = x * x
    y = xp.multiply(square, xp.float32(ERF32[-1]), out=xp.empty_like(x))
    for coefficient in ERF32[-2:0:-1]:
        y += xp.float32(coefficient)
        y *= square
    y += xp.float32(ERF32[0])
    y *= x
    return xp.tanh(y, out=y)


def _refuse_zero(xp: Xp, divisor: Array) -> None:
    if is_on_host(divisor) and not bool(xp.all(divisor)):
        raise ValueError(f"division of {divisor.dtype} by zero: the divisor holds a 0")
