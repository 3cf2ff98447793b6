"""Quantisation, and products of quantised tensors.

Products of 8-bit integers are computed in floats, because BLAS has no integer products. float32
holds the partial sums exactly up to a number of terms; longer sums are computed in parts or in
float64.
"""

from __future__ import annotations

from math import ceil, prod
from typing import Any, Final

from hetero.devices.kernels.axes import axis_of
from hetero.devices.kernels.cast import convert
from hetero.devices.kernels.conv import conv_1
from hetero.devices.kernels.element_types import Array, Xp, element_type
from hetero.devices.kernels.registry import op, with_attributes_of

#: Least and greatest value of the integer types of quantised tensors.
RANGE: Final = {
    "uint8": (0, 255),
    "int8": (-128, 127),
    "uint16": (0, 65535),
    "int16": (-32768, 32767),
    "uint4": (0, 15),
    "int4": (-8, 7),
    "uint2": (0, 3),
    "int2": (-2, 1),
}


def _to_broadcast(
    xp: Xp, name: str, value: Array, shape: tuple[int, ...], axis: int, block_size: int
) -> Array:
    """Reshape a scale or zero point to broadcast with the tensor."""
    if value.size == 1 and value.ndim <= 1:
        return value.reshape(())
    axis = axis_of(axis, len(shape))
    if block_size:
        blocks = (*shape[:axis], ceil(shape[axis] / block_size), *shape[axis + 1 :])
        if block_size < 0 or value.shape != blocks:
            raise ValueError(
                f"{name}: expected shape {blocks} for blocks of {block_size} along axis {axis} of "
                f"{shape}, got {value.shape}"
            )
        whole = [slice(None)] * axis + [slice(shape[axis])]
        return xp.repeat(value, block_size, axis=axis)[tuple(whole)]
    if value.shape != (shape[axis],):
        raise ValueError(
            f"{name}: expected a scalar or shape ({shape[axis]},) for axis {axis} of {shape}, got "
            f"{value.shape}"
        )
    return value.reshape((-1,) + (1,) * (len(shape) - 1 - axis))


def _check_scalar(name: str, scale: Array, version: int) -> None:
    if version < 13 and scale.size != 1:
        raise ValueError(f"{name}: expected a scalar before opset 13, got shape {scale.shape}")


def _check_zero_point(scale: Array, zero_point: Array) -> None:
    if zero_point.shape != scale.shape and (zero_point.size, scale.size) != (1, 1):
        raise ValueError(
            f"zero point: expected the scale's shape {scale.shape}, got {zero_point.shape}"
        )


def _saturate(xp: Xp, y: Array, zero_point: Array | None, to: Any, saturate: bool = True) -> Array:
    """Round y for an integer type, add the zero point, and convert to the type."""
    is_integer = to.name in RANGE
    if is_integer:
        y = xp.rint(y)
    if zero_point is not None:
        y = y + zero_point.astype(y.dtype)
    if is_integer:
        return xp.clip(y, *RANGE[to.name]).astype(to)
    return convert(xp, xp.asarray(y), to, saturate=saturate)


@op(
    "QuantizeLinear",
    since=10,
    additions={"axis": 13, "saturate": 19, "block_size": 21, "output_dtype": 21, "precision": 23},
)
def quantize_10(
    xp: Xp,
    x: Array,
    y_scale: Array,
    y_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
    version: int,
) -> Array:
    """Return saturate(round(x / y_scale) + y_zero_point).

    Scale and zero point are scalars, vectors along the axis, or per block. The result has type
    `output_dtype` or the zero point's; the division is in type `precision` or the scale's. Values
    outside a float8's range become its greatest value with `saturate`.
    """
    _check_scalar("y_scale", y_scale, version)
    zero_point = y_zero_point
    if zero_point is not None:
        to = zero_point.dtype
        if output_dtype and element_type(output_dtype) != to:
            raise TypeError(
                f"output_dtype: expected {to}, the zero point's type, got "
                f"{element_type(output_dtype)}"
            )
        _check_zero_point(y_scale, zero_point)
    else:
        to = element_type(output_dtype) if output_dtype else xp.dtype(xp.uint8)
    scale = _to_broadcast(xp, "y_scale", y_scale, x.shape, axis, block_size)
    # The division is in the scale's type if that type supports division.
    if precision:
        divide_in = element_type(precision)
    elif scale.dtype.kind in "iu":
        divide_in = xp.dtype(xp.float64)
    else:
        divide_in = scale.dtype if scale.dtype.name != "float8_e8m0fnu" else xp.dtype(xp.float32)
    y = xp.divide(x.astype(divide_in, copy=False), scale.astype(divide_in, copy=False))
    if divide_in.itemsize < 4:
        y = y.astype(xp.float32)
    if zero_point is not None:
        zero_point = _to_broadcast(xp, "y_zero_point", zero_point, x.shape, axis, block_size)
    return _saturate(xp, y, zero_point, to, bool(saturate))


@op("DequantizeLinear", since=10, additions={"axis": 13, "block_size": 21, "output_dtype": 23})
def dequantize_10(
    xp: Xp,
    x: Array,
    x_scale: Array,
    x_zero_point: Array | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    version: int,
) -> Array:
    """Return (x - x_zero_point) * x_scale.

    Scale and zero point are scalars, vectors along the axis, or per block.
    """
    _check_scalar("x_scale", x_scale, version)
    to, zero_point = element_type(output_dtype) if output_dtype else x_scale.dtype, x_zero_point
    if zero_point is not None:
        if zero_point.dtype != x.dtype:
            raise TypeError(f"zero point: expected {x.dtype} as x, got {zero_point.dtype}")
        _check_zero_point(x_scale, zero_point)
    compute_in = xp.float64 if to == xp.float64 else xp.float32
    y = x.astype(compute_in)
    if zero_point is not None:
        y -= _to_broadcast(xp, "x_zero_point", zero_point, x.shape, axis, block_size).astype(
            compute_in
        )
    y *= _to_broadcast(xp, "x_scale", x_scale, x.shape, axis, block_size).astype(compute_in)
    return convert(xp, y, to)


@op("DynamicQuantizeLinear", since=11)
def dynamic_quantize(xp: Xp, x: Array) -> tuple[Array, Array, Array]:
    """Return x as uint8, with the scale and zero point computed from its range and 0."""
    low = high = zero = x.dtype.type(0)
    if x.size:
        low, high = xp.minimum(xp.min(x), zero), xp.maximum(xp.max(x), zero)
    # The range of a tensor of zeros is empty, so any scale represents it.
    scale = xp.where(high > low, (high - low) / x.dtype.type(255), x.dtype.type(1))
    zero_point = xp.clip(xp.rint(-low / scale), 0, 255).astype(xp.uint8)
    return _saturate(xp, x / scale, zero_point, xp.dtype(xp.uint8)), scale, zero_point


@op("FakeQuantize", since=1, domain="hetero")
def fake_quantize(xp: Xp, x: Array, *, scale: float, low: float, high: float) -> Array:
    """Return x rounded to multiples of `scale` from `low` to `high`."""
    step = x.dtype.type(scale)
    return xp.clip(xp.rint(x / step), low, high) * step


#: Number of products of 9-bit differences that float32 adds exactly: 255 * 255 * 256 < 2**24.
_EXACT_TERMS: Final = 256


def _integer_matmul(xp: Xp, a: Array, b: Array) -> Array:
    """Return a @ b in int32 with wrap-around; a and b hold integers up to ±255 in float32."""
    terms = _EXACT_TERMS
    y = xp.asarray(xp.matmul(a[..., :terms], _rows(b, 0))).astype(xp.int32)
    for start in range(terms, a.shape[-1], terms):
        y += xp.matmul(a[..., start : start + terms], _rows(b, start)).astype(xp.int32)
    return y


def _rows(b: Array, start: int) -> Array:
    stop = start + _EXACT_TERMS
    return b[start:stop] if b.ndim == 1 else b[..., start:stop, :]


def _subtract_zero_point(
    xp: Xp, x: Array, zero_point: Array | None, dtype: Any, rows: bool = False
) -> Array:
    """Return x - zero_point in a float type; with `rows`, a vector has one zero point per row."""
    y = x.astype(dtype)
    if zero_point is None:
        return y
    if zero_point.dtype != x.dtype:
        raise TypeError(f"zero point: expected {x.dtype} as the tensor, got {zero_point.dtype}")
    y -= _per_row(zero_point, rows).astype(dtype)
    return y


def _per_row(value: Array, rows: bool) -> Array:
    if value.size == 1:
        return value.reshape(())
    return value[:, None] if rows and value.ndim == 1 else value


@op("MatMulInteger", since=10)
def matmul_integer(
    xp: Xp, a: Array, b: Array, a_zero_point: Array | None = None, b_zero_point: Array | None = None
) -> Array:
    """Return (a - a_zero_point) @ (b - b_zero_point) in int32; zero points per row and column."""
    _check_matrices(a, b)
    left = _subtract_zero_point(xp, a, a_zero_point, xp.float32, rows=True)
    return _integer_matmul(xp, left, _subtract_zero_point(xp, b, b_zero_point, xp.float32))


def _check_matrices(a: Array, b: Array) -> None:
    if not a.ndim or not b.ndim or a.shape[-1] != b.shape[-2 if b.ndim > 1 else 0]:
        raise ValueError(f"expected equal inner sizes, got shapes {a.shape} and {b.shape}")


@op("QLinearMatMul", since=(10, 21))
def qlinear_matmul(
    xp: Xp,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
) -> Array:
    """Return the quantised product of two dequantised matrices; scales per row and column."""
    _check_matrices(a, b)
    left = _subtract_zero_point(xp, a, a_zero_point, xp.float32, rows=True)
    right = _subtract_zero_point(xp, b, b_zero_point, xp.float32)
    is_integer = a.dtype.name in RANGE
    product = _integer_matmul(xp, left, right) if is_integer else xp.matmul(left, right)
    scale = _per_row(a_scale, True).astype(xp.float32) * _per_row(b_scale, False).astype(xp.float32)
    scale = scale / _per_row(y_scale, True).astype(xp.float32)
    y = product.astype(xp.float32) * scale
    return _saturate(xp, y, _per_row(y_zero_point, True), y_zero_point.dtype)


def _convolve_integers(
    xp: Xp,
    x: Array,
    w: Array,
    x_zero_point: Array | None,
    w_zero_point: Array | None,
    **attributes: Any,
) -> Array:
    is_exact = prod(w.shape[1:]) <= _EXACT_TERMS
    dtype = xp.float32 if is_exact else xp.float64
    if w_zero_point is not None:
        w_zero_point = _per_channel(w_zero_point, w.ndim)
    x, w = (
        _subtract_zero_point(xp, x, x_zero_point, dtype),
        _subtract_zero_point(xp, w, w_zero_point, dtype),
    )
    y = conv_1(xp, x, w, **attributes)
    # Sums outside int32 wrap around, which only a conversion from int64 guarantees.
    return y.astype(xp.int32) if is_exact else y.astype(xp.int64).astype(xp.int32)


def _per_channel(value: Array, rank: int) -> Array:
    return value.reshape(()) if value.size == 1 else value.reshape((-1,) + (1,) * (rank - 1))


@op("ConvInteger", since=10)
@with_attributes_of(conv_1)
def conv_integer(
    xp: Xp,
    x: Array,
    w: Array,
    x_zero_point: Array | None = None,
    w_zero_point: Array | None = None,
    **window: Any,
) -> Array:
    """Return the convolution of x - x_zero_point with w - w_zero_point in int32."""
    return _convolve_integers(xp, x, w, x_zero_point, w_zero_point, **window)


@op("QLinearConv", since=10)
@with_attributes_of(conv_1)
def qlinear_conv(
    xp: Xp,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    w: Array,
    w_scale: Array,
    w_zero_point: Array,
    y_scale: Array,
    y_zero_point: Array,
    b: Array | None = None,
    **window: Any,
) -> Array:
    """Return the quantised convolution of two dequantised tensors, plus b in x_scale * w_scale."""
    y = _convolve_integers(xp, x, w, x_zero_point, w_zero_point, **window)
    if b is not None:
        y = y + b.reshape((-1,) + (1,) * (y.ndim - 2))
    scale = x_scale.reshape(()) * _per_channel(w_scale, y.ndim - 1) / y_scale.reshape(())
    return _saturate(xp, y.astype(xp.float32) * scale, y_zero_point.reshape(()), y_zero_point.dtype)
