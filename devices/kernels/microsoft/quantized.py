"""Quantised layers: dequantise, run ONNX's operator, quantise the result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import ceil
from typing import Any

from hetero.devices.kernels.activation import leaky_relu, sigmoid
from hetero.devices.kernels.cast import convert
from hetero.devices.kernels.element_types import Array, Kernel, Xp, to_float32
from hetero.devices.kernels.microsoft import MICROSOFT
from hetero.devices.kernels.microsoft.attention import attention
from hetero.devices.kernels.pool import average_pool_1, global_average_pool_1, max_pool_1
from hetero.devices.kernels.quantize import (
    dequantize_10,
    dynamic_quantize,
    matmul_integer,
    quantize_10,
)
from hetero.devices.kernels.recurrent import long_short_term_memory, lstm_7
from hetero.devices.kernels.registry import KERNELS, op, with_attributes_of
from hetero.devices.kernels.slicing import concat

Ints = Sequence[int]
#: Opset of ONNX's QuantizeLinear and DequantizeLinear, which have scales along an axis.
_OPSET = 13


def _floats(xp: Xp, x: Array, scale: Array, zero_point: Array | None, axis: int = 1) -> Array:
    return dequantize_10(xp, x, scale, zero_point, axis=axis, version=_OPSET)


def _quantize(xp: Xp, y: Array, scale: Array, zero_point: Array | None, like: Array) -> Array:
    """Quantise floats to the zero point's type, or without a zero point to `like`'s."""
    if zero_point is None:
        zero_point = xp.zeros((), like.dtype)
    return quantize_10(xp, y, scale, zero_point, version=_OPSET)


op("QuantizeLinear", since=1, domain=MICROSOFT)(quantize_10)
op("DequantizeLinear", since=1, domain=MICROSOFT)(dequantize_10)


def _register_unary(op_type: str, kernel: Kernel, *, exclude: tuple[str, ...] = ()) -> None:
    """Register the quantised form of a kernel of one input."""

    @op(op_type, since=1, domain=MICROSOFT)
    @with_attributes_of(kernel, exclude=exclude)
    def quantized(
        xp: Xp,
        x: Array,
        x_scale: Array,
        x_zero_point: Array | None,
        y_scale: Array,
        y_zero_point: Array | None = None,
        **attributes: Any,
    ) -> Array:
        y = kernel(xp, _floats(xp, x, x_scale, x_zero_point), **attributes)
        return _quantize(xp, y, y_scale, y_zero_point, x)


def _pool(kernel: Kernel) -> Kernel:
    """Add the attribute `channels_last` to a pooling kernel."""

    @with_attributes_of(kernel)
    def pool(xp: Xp, x: Array, *, channels_last: int = 0, **pooling: Any) -> Array:
        return _to_channels_last(
            xp, kernel(xp, _to_channels_first(xp, x, channels_last), **pooling), channels_last
        )

    return pool


def _softmax(xp: Xp, x: Array, *, axis: int = -1, opset: int) -> Array:
    """Return ONNX's Softmax of an opset."""
    kernel = KERNELS.find("", "Softmax", opset)
    if kernel is None:
        raise ValueError(f"opset: expected 1 or more, got {opset}")
    return kernel.function(xp, x, axis=axis)


_register_unary("QLinearAveragePool", _pool(average_pool_1), exclude=("dilations",))
_register_unary("QLinearGlobalAveragePool", _pool(global_average_pool_1))
_register_unary("QLinearLeakyRelu", leaky_relu)
_register_unary("QLinearSigmoid", sigmoid)
_register_unary("QLinearSoftmax", _softmax)


def _register_binary(op_type: str, name: str) -> None:
    """Register the quantised form of a function of two arrays."""

    @op(op_type, since=1, domain=MICROSOFT)
    def quantized(
        xp: Xp,
        a: Array,
        a_scale: Array,
        a_zero_point: Array | None,
        b: Array,
        b_scale: Array,
        b_zero_point: Array | None,
        c_scale: Array,
        c_zero_point: Array | None = None,
    ) -> Array:
        x, y = _floats(xp, a, a_scale, a_zero_point), _floats(xp, b, b_scale, b_zero_point)
        return _quantize(xp, getattr(xp, name)(x, y), c_scale, c_zero_point, a)


_register_binary("QLinearAdd", "add")
_register_binary("QLinearMul", "multiply")


@op("QLinearConcat", since=1, domain=MICROSOFT)
def qlinear_concat(xp: Xp, y_scale: Array, y_zero_point: Array, *inputs: Array, axis: int) -> Array:
    """Return the quantised Concat of tensors, each with its scale and zero point."""
    floats = [_floats(xp, *inputs[i : i + 3]) for i in range(0, len(inputs), 3)]
    return _quantize(xp, concat(xp, *floats, axis=axis), y_scale, y_zero_point, inputs[0])


@op("NhwcMaxPool", since=1, domain=MICROSOFT)
@with_attributes_of(max_pool_1, exclude=("n_outputs", "storage_order"))
def nhwc_max_pool(xp: Xp, x: Array, **pooling: Any) -> Array:
    """Return MaxPool of x in channels-last layout."""
    return _to_channels_last(xp, max_pool_1(xp, _to_channels_first(xp, x, 1), **pooling), 1)


def _to_channels_first(xp: Xp, x: Array, channels_last: int) -> Array:
    return xp.ascontiguousarray(xp.moveaxis(x, -1, 1)) if channels_last else x


def _to_channels_last(xp: Xp, y: Array, channels_last: int) -> Array:
    return xp.moveaxis(y, 1, -1) if channels_last else y


@op("QLinearWhere", since=1, domain=MICROSOFT)
def qlinear_where(
    xp: Xp,
    condition: Array,
    x: Array,
    x_scale: Array,
    x_zero_point: Array,
    y: Array,
    y_scale: Array,
    y_zero_point: Array,
    z_scale: Array,
    z_zero_point: Array,
) -> Array:
    """Return the quantised Where."""
    a, b = _floats(xp, x, x_scale, x_zero_point), _floats(xp, y, y_scale, y_zero_point)
    return _quantize(xp, xp.where(condition, a, b), z_scale, z_zero_point, x)


@op("QGemm", since=1, domain=MICROSOFT)
def qgemm(
    xp: Xp,
    a: Array,
    a_scale: Array,
    a_zero_point: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array,
    c: Array | None = None,
    y_scale: Array | None = None,
    y_zero_point: Array | None = None,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    """Return the quantised product plus c, which has the scale a_scale * b_scale.

    Scales and zero points of b are per column of the product. Without y_scale the result is floats.
    """
    y = matmul_integer(xp, a.T if transA else a, b.T if transB else b, a_zero_point, b_zero_point)
    y = (y if c is None else y + c).astype(xp.float32)
    y = y * (alpha * a_scale * b_scale).astype(xp.float32)
    return y if y_scale is None else _quantize(xp, y, y_scale, y_zero_point, a)


@op("MatMulIntegerToFloat", since=1, domain=MICROSOFT)
def matmul_integer_to_float(
    xp: Xp,
    a: Array,
    b: Array,
    a_scale: Array,
    b_scale: Array,
    a_zero_point: Array | None = None,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Return the product of integers, times both scales, plus the bias."""
    y = matmul_integer(xp, a, b, a_zero_point, b_zero_point).astype(xp.float32)
    y = y * (a_scale * b_scale)
    return y if bias is None else y + bias


@op("DynamicQuantizeMatMul", since=1, domain=MICROSOFT)
def dynamic_quantize_matmul(
    xp: Xp,
    a: Array,
    b: Array,
    b_scale: Array,
    b_zero_point: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Return a, quantised by its range, times integers b, as floats."""
    quantised, a_scale, a_zero_point = dynamic_quantize(xp, a)
    return matmul_integer_to_float(
        xp, quantised, b, a_scale, b_scale, a_zero_point, b_zero_point, bias
    )


def _fake_quantize(xp: Xp, x: Array) -> Array:
    quantised, scale, zero_point = dynamic_quantize(xp, x)
    return _floats(xp, quantised, scale, zero_point)


@op("DynamicQuantizeLSTM", since=1, domain=MICROSOFT)
@with_attributes_of(lstm_7, exclude=("layout",))
def dynamic_quantize_lstm(
    xp: Xp,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    p: Array | None,
    w_scale: Array,
    w_zero_point: Array,
    r_scale: Array,
    r_zero_point: Array,
    *,
    clip: float | None = None,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return LSTM with quantised weights (D, inputs, 4 H) and states quantised at each step."""

    def weights(q: Array, *parameters: Array) -> Array:
        scale, zero_point = (v.reshape(q.shape[0], 1, -1).astype(xp.float32) for v in parameters)
        return ((q.astype(xp.float32) - zero_point) * scale).swapaxes(1, 2)

    return long_short_term_memory(
        xp,
        _fake_quantize(xp, x),
        weights(w, w_scale, w_zero_point),
        weights(r, r_scale, r_zero_point),
        b,
        sequence_lens,
        initial_h,
        initial_c,
        p,
        partial(_fake_quantize, xp),
        clip=clip or None,
        **({"input_forget": 0} | attributes),
    )


@op("QAttention", since=1, domain=MICROSOFT)
@with_attributes_of(attention, exclude=("qkv_hidden_sizes",))
def qattention(
    xp: Xp,
    x: Array,
    weight: Array,
    bias: Array,
    x_scale: Array,
    weight_scale: Array,
    mask_index: Array | None = None,
    x_zero_point: Array | None = None,
    weight_zero_point: Array | None = None,
    past: Array | None = None,
    **attributes: Any,
) -> Any:
    """Return Attention of a quantised input and weights."""
    return attention(
        xp,
        _floats(xp, x, x_scale, x_zero_point),
        _floats(xp, weight, weight_scale, weight_zero_point),
        bias,
        mask_index,
        past,
        **attributes,
    )


def _unpack(xp: Xp, packed: Array, bits: int) -> Array:
    """Unpack numbers of `bits` bits along the last axis of bytes, the lowest bits first."""
    if bits == 8:
        return packed
    shifts = xp.arange(0, 8, bits).astype(xp.uint8)
    parts = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return parts.reshape(*packed.shape[:-1], -1)


@op("MatMulNBits", since=1, domain=MICROSOFT, choices={"bits": (2, 4, 8), "weight_prepacked": (0,)})
def matmul_nbits(
    xp: Xp,
    a: Array,
    b: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Array:
    """Return a times packed weights (N, K) with a scale per block of a row.

    `g_idx` is the block of each of the K columns; `accuracy_level` is a hint.
    """
    dtype, blocks = a.dtype, ceil(K / block_size)
    a, scales, bias = to_float32(xp, a, scales, bias)
    weights = _unpack(xp, b.reshape(N, -1), bits)[:, :K].astype(a.dtype)
    scales = scales.reshape(N, blocks)
    if zero_points is None:
        zeros = xp.full((N, blocks), 1 << (bits - 1), a.dtype)
    elif zero_points.dtype == xp.uint8:
        zeros = _unpack(xp, zero_points.reshape(N, -1), bits)[:, :blocks].astype(a.dtype)
    else:
        zeros = zero_points.reshape(N, blocks).astype(a.dtype)
    block_of = xp.arange(K) // block_size if g_idx is None else g_idx
    weights = (weights - zeros[:, block_of]) * scales[:, block_of]
    y = xp.matmul(a, weights.T)
    return (y if bias is None else y + bias).astype(dtype, copy=False)


@op("GatherBlockQuantized", since=1, domain=MICROSOFT, choices={"bits": (2, 4, 8)})
def gather_block_quantized(
    xp: Xp,
    data: Array,
    indices: Array,
    scales: Array,
    zero_points: Array | None = None,
    *,
    bits: int = 4,
    block_size: int = 128,
    gather_axis: int = 0,
    quantize_axis: int = 1,
) -> Array:
    """Return dequantised slices of data with a scale per block along an axis.

    uint8 data is packed along its last axis unless `bits` is 8.
    """
    is_packed = data.dtype == xp.uint8
    if is_packed:
        data = _unpack(xp, data, bits)
        zero_points = None if zero_points is None else _unpack(xp, zero_points, bits)
    axis = quantize_axis % data.ndim
    data, scales = xp.take(data, indices, gather_axis), xp.take(scales, indices, gather_axis)
    if axis > gather_axis % (data.ndim - indices.ndim + 1):
        axis += indices.ndim - 1
    length = data.shape[axis]

    def spread(values: Array) -> Array:
        whole = xp.repeat(values, block_size, axis=axis)
        return whole[(slice(None),) * axis + (slice(length),)]

    zero: Any = (1 << (bits - 1)) if is_packed else 0
    if zero_points is not None:
        points = xp.take(zero_points, indices, gather_axis)
        zero = spread(points[..., : scales.shape[-1]].astype(xp.float32))
    y = (data.astype(xp.float32) - zero) * spread(scales.astype(xp.float32))
    return convert(xp, y, scales.dtype)
