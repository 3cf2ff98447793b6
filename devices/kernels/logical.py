"""Comparisons, boolean logic and selection."""

from __future__ import annotations

from typing import Any

from devices.kernels.element_types import Array, Kernel, Xp, same_type
from devices.kernels.registry import op

#: Operator, first opset, and the broadcasting function of two arrays of one type.
_COMPARISONS = (
    ("Equal", 7, "equal"),
    ("Less", 7, "less"),
    ("Greater", 7, "greater"),
    ("LessOrEqual", 12, "less_equal"),
    ("GreaterOrEqual", 12, "greater_equal"),
)

#: Operator, first opset, and the broadcasting function of two boolean arrays.
_CONNECTIVES = (
    ("And", 7, "logical_and"),
    ("Or", 7, "logical_or"),
    ("Xor", 7, "logical_xor"),
)


def _comparison(name: str) -> Kernel:
    def kernel(xp: Xp, a: Array, b: Array) -> Array:
        # Strings come as Python objects or in numpy's own string types, and compare either way.
        if a.dtype.kind != "O" and b.dtype.kind != "O":
            same_type(a, b)
        return getattr(xp, name)(a, b)

    return kernel


def _connective(name: str) -> Kernel:
    def kernel(xp: Xp, a: Array, b: Array) -> Array:
        for array in (a, b):
            if array.dtype.kind != "b":
                raise TypeError(f"{name} takes bool, not {array.dtype}")
        return getattr(xp, name)(a, b)

    return kernel


for _op, _since, _name in _COMPARISONS:
    op(_op, since=_since)(_comparison(_name))
for _op, _since, _name in _CONNECTIVES:
    op(_op, since=_since)(_connective(_name))


@op("Not", since=1)
def negate(xp: Xp, x: Array) -> Array:
    """Return the negation of booleans."""
    if x.dtype.kind != "b":
        raise TypeError(f"Not takes bool, not {x.dtype}")
    return xp.logical_not(x)


@op("Where", since=9)
def where(xp: Xp, condition: Array, x: Array, y: Array) -> Array:
    """Return x where the condition holds, y elsewhere; all three broadcast."""
    if condition.dtype.kind != "b":
        raise TypeError(f"the condition must be bool, not {condition.dtype}")
    same_type(x, y)
    words = _words(xp, x.dtype)
    if words is None:
        return xp.where(condition, x, y)
    # Choosing by bits costs the same for any condition; numpy's `where` branches on each
    # element, which is up to ten times slower where the condition is not predictable.
    chosen = condition.astype(words)
    xp.negative(chosen, out=chosen)
    bits = y.view(words)
    result = xp.bitwise_and(x.view(words) ^ bits, chosen)
    result ^= bits
    return result.view(x.dtype)


def _words(xp: Xp, dtype: Any) -> Any:
    """Return the signed integer type of the width of a number type, for the common widths."""
    return {4: xp.int32, 8: xp.int64}.get(dtype.itemsize) if dtype.kind in "iuf" else None
