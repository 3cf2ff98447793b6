"""Element-wise arithmetic, comparisons, logic, powers, rounding, trigonometry, bit operations.

Tables list the operators that are one call of the array namespace; the others are functions.
"""

from __future__ import annotations

import math
from functools import reduce

from hetero.devices.kernels.element_types import (
    Array,
    Kernel,
    Xp,
    check_same_type,
    in_float32,
    is_float,
    is_on_host,
)
from hetero.devices.kernels.registry import op

#: Operator, first opset, and the name of the function of one array that computes it.
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

#: Operator, first opset, and the name of the broadcasting function of two arrays.
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

#: The same for operators on boolean arrays.
_CONNECTIVES = (("And", 7, "logical_and"), ("Or", 7, "logical_or"), ("Xor", 7, "logical_xor"))


def _unary_kernel(name: str) -> Kernel:
    def kernel(xp: Xp, x: Array) -> Array:
        return getattr(xp, name)(x)

    return kernel


def _binary_kernel(name: str) -> Kernel:
    def kernel(xp: Xp, a: Array, b: Array) -> Array:
        # Strings are Python objects or numpy's own string types, which can be compared.
        if a.dtype != b.dtype and "O" not in (a.dtype.kind, b.dtype.kind):
            check_same_type(a, b)
        return getattr(xp, name)(a, b)

    return kernel


def _connective(name: str) -> Kernel:
    def kernel(xp: Xp, a: Array, b: Array) -> Array:
        _check_booleans(name, a, b)
        return getattr(xp, name)(a, b)

    return kernel


def _check_booleans(name: str, *inputs: Array) -> None:
    for array in inputs:
        if array.dtype.kind != "b":
            raise TypeError(f"{name}: expected bool, got {array.dtype}")


for _op, _since, _name in _UNARY:
    op(_op, since=_since)(_unary_kernel(_name))
for _op, _since, _name in _BINARY:
    op(_op, since=_since)(_binary_kernel(_name))
for _op, _since, _name in _CONNECTIVES:
    op(_op, since=_since)(_connective(_name))


@op("Not", since=1)
def negate(xp: Xp, x: Array) -> Array:
    """Return the negation of booleans."""
    _check_booleans("Not", x)
    return xp.logical_not(x)


@op("Where", since=9)
def where(xp: Xp, condition: Array, x: Array, y: Array) -> Array:
    """Return x where the condition is true, y elsewhere; all three broadcast."""
    _check_booleans("the condition of Where", condition)
    check_same_type(x, y)
    return xp.where(condition, x, y)


def _align(a: Array, b: Array, axis: int | None, broadcast: int) -> Array:
    """Reshape b to broadcast as before opset 7: it matches a's axes from `axis` on, or the last."""
    if a.shape == b.shape:
        return b
    if not broadcast:
        raise ValueError(f"expected equal shapes without broadcast=1, got {a.shape} and {b.shape}")
    if b.size == 1:
        return b.reshape(())
    start = a.ndim - b.ndim if axis is None else axis
    span = a.shape[start : start + b.ndim] if start >= 0 else ()
    if len(span) != b.ndim or any(n not in (1, m) for n, m in zip(b.shape, span, strict=True)):
        raise ValueError(f"B: expected the shape of {a.shape} from axis {start} on, got {b.shape}")
    return b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim))


@op("Div", since=7)
def divide(xp: Xp, a: Array, b: Array) -> Array:
    """Return a / b; integers truncate toward zero."""
    check_same_type(a, b)
    if is_float(a):
        return xp.divide(a, b)
    _check_divisor(xp, b)
    if a.dtype.kind == "u":
        return xp.floor_divide(a, b)
    # Without C's remainder a is a multiple of b, so that flooring and truncating agree.
    return xp.floor_divide(a - xp.fmod(a, b), b)


@op("Mod", since=(10, 28))
def modulo(xp: Xp, a: Array, b: Array, *, fmod: int = 0, version: int) -> Array:
    """Return a - b * floor(a / b), or with `fmod` a - b * trunc(a / b)."""
    if version < 28 and is_float(a) and not fmod:
        raise ValueError(f"fmod: expected 1 for {a.dtype} before opset 28, got 0")
    check_same_type(a, b)
    if fmod not in (0, 1):
        raise ValueError(f"fmod: expected 0 or 1, got {fmod}")
    if not is_float(a):
        _check_divisor(xp, b)
    return xp.fmod(a, b) if fmod else xp.remainder(a, b)


@op("Pow", since=(7, 12))
@in_float32
def power(xp: Xp, x: Array, y: Array) -> Array:
    """Return x to the power y, in x's element type."""
    if is_float(x):
        # Most powers in models are squares and cubes, which are ten times faster as products.
        is_scalar = y.size == 1 and y.ndim <= x.ndim and is_on_host(y)
        exponent = y.item() if is_scalar else None
        if exponent == 2:
            return xp.multiply(x, x)
        if exponent == 3:
            return x * x * x
        if exponent == 0.5:
            # The power of -0 is 0 and that of -inf is inf, unlike their roots.
            return xp.where(x == -xp.inf, -x, xp.sqrt(x) + 0)
        return xp.power(x, y.astype(x.dtype, copy=False))
    if is_float(y):
        return xp.power(x.astype(xp.float64), y.astype(xp.float64)).astype(x.dtype)
    # Negative integer powers are fractions, which truncate to zero, except those of 1 and -1.
    can_check = is_on_host(x) and is_on_host(y)
    if y.dtype.kind == "i" and (not can_check or bool((y < 0).any())):
        if can_check and bool(((x == 0) & (y < 0)).any()):
            raise ValueError("expected no negative power of an integer zero")
        odd = xp.where(y % 2 == 0, 1, x)
        fraction = xp.where(xp.absolute(x) == 1, odd, 0)
        return xp.where(y < 0, fraction, xp.power(x, xp.maximum(y, 0))).astype(x.dtype)
    return xp.power(x, y).astype(x.dtype, copy=False)


def _with_axis(kernel: Kernel) -> Kernel:
    def kernel_with_axis(
        xp: Xp, a: Array, b: Array, *, axis: int | None = None, broadcast: int = 0
    ) -> Array:
        return kernel(xp, a, _align(a, b, axis, broadcast))

    return kernel_with_axis


op("Add", since=6)(_with_axis(_binary_kernel("add")))
op("Sub", since=6)(_with_axis(_binary_kernel("subtract")))
op("Mul", since=6)(_with_axis(_binary_kernel("multiply")))
op("Div", since=6)(_with_axis(divide))
op("Pow", since=1)(_with_axis(power))


def _variadic(name: str) -> Kernel:
    def kernel(xp: Xp, *inputs: Array) -> Array:
        check_same_type(*inputs)
        return reduce(getattr(xp, name), inputs)

    return kernel


# The Max and the Min of NaN and a number are NaN.
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
    """Return x limited to [low, high], either of which may be absent."""
    for name, limit in (("min", low), ("max", high)):
        if limit is not None and limit.size != 1:
            raise ValueError(f"{name}: expected a scalar, got shape {limit.shape}")
        if limit is not None:
            check_same_type(x, limit)
    low = None if low is None else low.reshape(())
    high = None if high is None else high.reshape(())
    return _clip(xp, x, low, high)


def _clip(xp: Xp, x: Array, low: Array | None, high: Array | None) -> Array:
    if x.dtype.kind == "f" and not (low is None and high is None):
        # One pass, three times faster than `maximum` with a scalar.
        low = -xp.inf if low is None else low
        return xp.clip(x, low, xp.inf if high is None else high)
    if low is not None:
        x = xp.maximum(x, low)
    return x if high is None else xp.minimum(x, high)


@op("IsInf", since=10)
def is_inf(xp: Xp, x: Array, *, detect_negative: int = 1, detect_positive: int = 1) -> Array:
    """Return a mask of the infinite elements with the signs to detect."""
    infinite = xp.isinf(x)
    if not detect_negative:
        infinite &= ~xp.signbit(x)
    if not detect_positive:
        infinite &= xp.signbit(x)
    return infinite


@op("BitShift", since=11, choices={"direction": ("LEFT", "RIGHT")})
def bit_shift(xp: Xp, x: Array, y: Array, *, direction: str) -> Array:
    """Return x shifted by y bits; a right shift preserves the sign."""
    check_same_type(x, y)
    bits = 8 * x.dtype.itemsize
    within = (y >= 0) & (y < bits)
    count = xp.where(within, y, 0).astype(x.dtype)
    if direction == "LEFT":
        return xp.where(within, xp.left_shift(x, count), 0).astype(x.dtype)
    # A shift by all bits gives the sign; processors shift by at most one bit less.
    if x.dtype.kind == "i":
        return xp.right_shift(x, xp.where(within, count, bits - 1))
    return xp.where(within, xp.right_shift(x, count), 0).astype(x.dtype)


@op("Erf", since=9)
def erf_9(xp: Xp, x: Array) -> Array:
    """Return the error function, 2 / sqrt(pi) times the integral of exp(-t²) from 0 to x."""
    if is_float(x) and x.dtype != xp.float64:
        return _erf32(xp, x)
    # A polynomial of float64's precision would be as slow as one call per element.
    exact = [math.erf(value) for value in x.reshape(-1).tolist()]
    return xp.asarray(exact, dtype=xp.float64).astype(x.dtype).reshape(x.shape)


#: atanh(erf(x)) / x as a polynomial of x² on [0, 4], lowest power first. Lawson's iteratively
#: reweighted least squares minimised the maximal relative error of erf (9.5e-8). Beyond 4 the
#: polynomial grows, so its tanh remains 1, as erf is in float32.
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


def _check_divisor(xp: Xp, divisor: Array) -> None:
    if is_on_host(divisor) and not bool(xp.all(divisor)):
        raise ValueError(f"division by zero: expected a divisor of {divisor.dtype} without 0")
