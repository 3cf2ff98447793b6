"""Conversions between element types: Cast, CastLike, BitCast, and Identity.

The narrow types are numpy extension types. Some pairs of them have no direct conversion, so they
are converted through float32, which holds all their values. Strings are Python objects, on the
host.
"""

from __future__ import annotations

from typing import Any, Final

from onnx import TensorProto

from hetero.devices.kernels.element_types import (
    Array,
    Xp,
    element_type,
    is_float,
    is_float_type,
    is_string,
)
from hetero.devices.kernels.registry import op

#: Greatest finite value of each float8 type that `saturate` applies to.
FLOAT8_MAX: Final = {
    "float8_e4m3fn": 448.0,
    "float8_e4m3fnuz": 240.0,
    "float8_e5m2": 57344.0,
    "float8_e5m2fnuz": 57344.0,
}

#: Number of bits of the types that are smaller than a byte; in memory each takes a whole byte.
SUBBYTE_BITS: Final = {
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "float4_e2m1fn": 4,
    "float6_e2m3fn": 6,
    "float6_e3m2fn": 6,
}


def convert(xp: Xp, x: Array, to: Any, *, saturate: bool = True, round_mode: str = "up") -> Array:
    """Return x as element type `to`, by the rules of Cast; either may be strings.

    A value outside a float8's range becomes its greatest value with `saturate`, otherwise NaN or
    infinity. `round_mode` is the direction in which float8_e8m0 rounds to a power of two: ``"up"``,
    ``"down"`` or ``"nearest"``.
    """
    if is_string(x):
        return _parse(xp, x, to, saturate, round_mode)
    if to.kind in "OUS":
        return _to_strings(xp, x)
    if x.dtype == to:
        return x
    if to.name == "float8_e8m0fnu":
        return _to_power_of_two(xp, x.astype(xp.float32), to, saturate, round_mode)
    if saturate and to.name in FLOAT8_MAX:
        single = x if x.dtype in (xp.float32, xp.float64) else x.astype(xp.float32)
        return xp.clip(single, -FLOAT8_MAX[to.name], FLOAT8_MAX[to.name]).astype(to)
    if _is_extension(x.dtype) and _is_extension(to):
        x = x.astype(xp.float32)
    return x.astype(to)


def _is_extension(dtype: Any) -> bool:
    return dtype.kind == "V" or dtype.name in FLOAT8_MAX


def _to_power_of_two(xp: Xp, x: Array, to: Any, saturate: bool, round_mode: str) -> Array:
    # ONNX leaves negative numbers open; as in its reference, they lose their sign.
    # abs(x) = mantissa * 2**exponent, the mantissa in [1/2, 1): the power below is exponent - 1.
    mantissa, exponent = xp.frexp(abs(x))
    if round_mode == "up":
        power = exponent - (mantissa <= 0.5)
    elif round_mode == "down":
        power = exponent - 1
    else:
        power = exponent - (mantissa < 0.75)
    # Zero is below every power and infinity above. The code is the power + 127; 255 is NaN.
    power = xp.where(x == 0, -128, xp.where(xp.isinf(x), 128, power))
    code = xp.clip(power + 127, 0, 254)
    invalid = xp.isnan(x) if saturate else xp.isnan(x) | (power < -127) | (power > 127)
    return xp.where(invalid, 255, code).astype(xp.uint8).view(to)


def _parse(xp: Xp, x: Array, to: Any, saturate: bool, round_mode: str) -> Array:
    objects = x.astype(object)
    if to.kind in "OUS":
        return objects
    if to.kind in "iu":
        try:
            return objects.astype(xp.int64 if to.kind == "i" else xp.uint64).astype(to)
        except ValueError:
            return objects.astype(xp.float64).astype(to)
    doubles = objects.astype(xp.float64)
    return convert(xp, doubles, to, saturate=saturate, round_mode=round_mode)


def _to_strings(xp: Xp, x: Array) -> Array:
    if _is_extension(x.dtype):
        x = x.astype(xp.float32 if is_float(x) else xp.int32)
    return x.astype(str).astype(object)


_ROUND_MODES = {"round_mode": ("up", "down", "nearest")}


@op("Cast", since=6, additions={"saturate": 19, "round_mode": 24}, choices=_ROUND_MODES)
def cast_6(xp: Xp, x: Array, *, to: int, saturate: int = 1, round_mode: str = "up") -> Array:
    """Return x as element type `to`.

    `saturate` applies to values outside a float8's range, `round_mode` to float8_e8m0.
    """
    return convert(xp, x, element_type(to), saturate=bool(saturate), round_mode=round_mode)


@op("CastLike", since=15, additions={"saturate": 19, "round_mode": 24}, choices=_ROUND_MODES)
def cast_like_15(
    xp: Xp, x: Array, target: Array, *, saturate: int = 1, round_mode: str = "up"
) -> Array:
    """Return x in target's element type, as `Cast` does."""
    return convert(xp, x, target.dtype, saturate=bool(saturate), round_mode=round_mode)


@op("BitCast", since=26)
def bit_cast(xp: Xp, x: Array, *, to: int) -> Array:
    """Return x's bits as element type `to`, which has the same width."""
    target = element_type(to)
    if is_string(x) or to == TensorProto.STRING:
        raise TypeError("BitCast: expected numbers, got strings")
    widths = [SUBBYTE_BITS.get(t.name, 8 * t.itemsize) for t in (x.dtype, target)]
    if widths[0] != widths[1]:
        raise ValueError(
            f"expected a type of {widths[0]} bits as {x.dtype}, got {target} of {widths[1]}"
        )
    if x.dtype == target:
        return x
    if widths[0] >= 8:
        return x.view(target)
    # The unused high bits are copies of the sign in signed types and zero in the others.
    bits = x.view(xp.uint8) & ((1 << widths[0]) - 1)
    return bits.view(target) if is_float_type(target) else bits.astype(target)


@op("Identity", since=1)
def identity(xp: Xp, x: Any) -> Any:
    """Return x, which is a tensor, a sequence or an optional."""
    return x
