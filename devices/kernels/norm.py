"""Normalisations: batch, instance, group, layer, RMS, local response, Lp and mean variance."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from hetero.devices.kernels.axes import axis_of
from hetero.devices.kernels.element_types import Array, Xp, in_float32, to_float32, to_stash_type
from hetero.devices.kernels.reduction import reduce_mean
from hetero.devices.kernels.registry import op

Ints = Sequence[int]


def _per_channel(x: Array, *parameters: Array) -> tuple[Array, ...]:
    """Return parameters of shape (C) so that they broadcast over x (N, C, ...)."""
    channels = x.shape[1] if x.ndim > 1 else 1
    for p in parameters:
        if p.shape != (channels,):
            raise ValueError(
                f"a parameter per channel: expected shape {(channels,)}, got {p.shape}"
            )
    return tuple(p.reshape(-1, *(1,) * (x.ndim - 2)) if x.ndim > 1 else p for p in parameters)


def _batch_norm(
    xp: Xp, x: Array, scale: Array, b: Array, mean: Array, var: Array, *, epsilon: float
) -> Array:
    """Return ``(x - mean) / sqrt(var + epsilon) * scale + b`` in two passes over x."""
    dtype = x.dtype
    x, scale, b, mean, var = to_float32(xp, x, scale, b, mean, var)
    factor = scale / xp.sqrt(var + epsilon)
    offset = b - mean * factor
    factor, offset = (v.astype(x.dtype, copy=False) for v in (factor, offset))
    y = x * factor
    xp.add(y, offset, out=y)
    return y.astype(dtype, copy=False)


def _running_average(old: Array, new: Array, momentum: float) -> Array:
    return (old * momentum + new * (1 - momentum)).astype(old.dtype, copy=False)


@op(
    "BatchNormalization",
    since=(6, 9),
    additions={"training_mode": 14},
    removals={"is_test": 7, "spatial": 9},
)
def batch_normalization(
    xp: Xp,
    x: Array,
    scale: Array,
    b: Array,
    mean: Array,
    var: Array,
    *,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
    training_mode: int = 0,
    n_outputs: int = 1,
    version: int,
) -> Array | tuple[Array, ...]:
    """Normalise each channel by the statistics in the inputs, or in training by the batch's.

    With `spatial` 0, each element of (C, ...) has its own statistics. Before opset 14 a node with
    more than one output is in training, unless `is_test` is set.
    """
    in_training = training_mode if version >= 14 else n_outputs > 1 and not is_test
    if not spatial:
        if in_training:
            raise ValueError("expected one output with spatial=0, which is defined for inference")
        if scale.shape != x.shape[1:]:
            raise ValueError(f"scale: expected shape {x.shape[1:]}, got {scale.shape}")
        return _batch_norm(xp, x, scale, b, mean, var, epsilon=epsilon)
    if not in_training:
        return _batch_norm(xp, x, *_per_channel(x, scale, b, mean, var), epsilon=epsilon)
    (wider,), axes = to_float32(xp, x), (0, *range(2, x.ndim))
    batch_mean, batch_var = xp.mean(wider, axis=axes), xp.var(wider, axis=axes)
    y = _batch_norm(xp, x, *_per_channel(x, scale, b, batch_mean, batch_var), epsilon=epsilon)
    if version < 14:
        batch_mean, batch_var = batch_mean.astype(mean.dtype), batch_var.astype(var.dtype)
    running = (
        _running_average(mean, batch_mean, momentum),
        _running_average(var, batch_var, momentum),
    )
    return (y, *running) if version >= 14 else (y, *running, batch_mean, batch_var)


def _centre(xp: Xp, x: Array) -> tuple[Array, Array, Array]:
    """Return x minus its mean over the last axis, that mean, and the variance."""
    mean = reduce_mean(xp, x, (x.ndim - 1,), True)
    centred = x - mean
    return centred, mean, _mean_square(xp, centred)


def _mean_square(xp: Xp, x: Array) -> Array:
    """Return the mean of squares over the last axis, by one dot product per row."""
    return xp.matmul(x[..., None, :], x[..., :, None])[..., 0] / x.dtype.type(x.shape[-1])


@op("InstanceNormalization", since=6)
@in_float32
def instance_normalization_6(
    xp: Xp, x: Array, scale: Array, b: Array, *, epsilon: float = 1e-5
) -> Array:
    """Normalise each channel of each instance by its own mean and variance."""
    _per_channel(x, scale, b)
    y, _, variance = _centre(xp, x.reshape(*x.shape[:2], prod(x.shape[2:])))
    y *= scale[:, None] / xp.sqrt(variance + epsilon)
    y += b[:, None]
    return y.reshape(x.shape)


def _trailing(x: Array, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape (rows, elements per row) and the statistics' shape, for axes from `axis`."""
    axis = axis_of(axis, x.ndim)
    rows = x.shape[:axis]
    return (prod(rows), prod(x.shape[axis:])), (*rows, *(1,) * (x.ndim - axis))


@op("LayerNormalization", since=1)  # ONNX Runtime also has it in operator sets before 17
def layer_normalization_17(
    xp: Xp,
    x: Array,
    scale: Array,
    b: Array | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Array | tuple[Array, ...]:
    """Normalise over the axes from `axis` on; also mean and 1 / deviation, in the stash type."""
    flat, statistics = _trailing(x, axis)
    y, mean, variance = _centre(xp, to_stash_type(xp, x, stash_type).reshape(flat))
    inverse = 1 / xp.sqrt(variance + epsilon)
    y *= inverse
    y = y.reshape(x.shape).astype(x.dtype, copy=False)
    y = _scale_and_shift(xp, y, scale, b)
    if n_outputs == 1:
        return y
    return y, mean.reshape(statistics), inverse.reshape(statistics)


def _scale_and_shift(xp: Xp, y: Array, scale: Array, b: Array | None) -> Array:
    """Return ``y * scale + b`` in y's type; overwrites y."""
    dtype = y.dtype
    y, scale, b = to_float32(xp, y, scale, b)
    xp.multiply(y, scale, out=y)
    if b is not None:
        xp.add(y, b, out=y)
    return y.astype(dtype, copy=False)


@op("RMSNormalization", since=23)
def rms_normalization_23(
    xp: Xp, x: Array, scale: Array, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Array:
    """Divide by the root mean square over the axes from `axis` on, then scale."""
    flat, _ = _trailing(x, axis)
    y = to_stash_type(xp, x, stash_type).reshape(flat)
    y = y / xp.sqrt(_mean_square(xp, y) + epsilon)
    y = y.reshape(x.shape).astype(x.dtype, copy=False)
    return _scale_and_shift(xp, y, scale, None).astype(scale.dtype, copy=False)


@op("GroupNormalization", since=(18, 21), additions={"stash_type": 21})
def group_normalization(
    xp: Xp,
    x: Array,
    scale: Array,
    bias: Array,
    *,
    epsilon: float = 1e-5,
    num_groups: int,
    stash_type: int = 1,
    version: int,
) -> Array:
    """Normalise groups of channels; scale and bias are per channel, before opset 21 per group."""
    if num_groups < 1 or x.shape[1] % num_groups:
        raise ValueError(f"num_groups: expected a divisor of {x.shape[1]}, got {num_groups}")
    size = x.shape[1] // num_groups
    (wider,) = (to_stash_type(xp, x, stash_type),) if version >= 21 else to_float32(xp, x)
    y, _, variance = _centre(xp, wider.reshape(x.shape[0], num_groups, -1))
    y /= xp.sqrt(variance + epsilon)
    if version < 21:
        if scale.shape != (num_groups,) or bias.shape != scale.shape:
            raise ValueError(
                f"scale and bias: expected shape {(num_groups,)}, got {scale.shape} and "
                f"{bias.shape}"
            )
        scale, bias = xp.repeat(scale, size), xp.repeat(bias, size)
    y = y.reshape(x.shape).astype(x.dtype if version >= 21 else y.dtype, copy=False)
    return _scale_and_shift(xp, y, *_per_channel(x, scale, bias)).astype(x.dtype, copy=False)


@op("LRN", since=1)
@in_float32
def lrn_1(
    xp: Xp, x: Array, *, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1.0, size: int
) -> Array:
    """Divide by ``(bias + alpha / size * sum of squares over size channels) ** beta``."""
    if size < 1:
        raise ValueError(f"size: expected a positive number, got {size}")
    channels, before = x.shape[1], (size - 1) // 2
    squares = x * x
    total = squares.copy()
    for shift in range(-before, size - before):
        if shift and abs(shift) < channels:
            low, high = max(0, -shift), channels - max(0, shift)
            total[:, low:high] += squares[:, low + shift : high + shift]
    return x / (bias + alpha / size * total) ** beta


@op("LpNormalization", since=(1, 22), choices={"p": (1, 2)})
@in_float32
def lp_normalization_1(xp: Xp, x: Array, *, axis: int = -1, p: int = 2) -> Array:
    """Divide by the 1- or 2-norm along an axis; the result is zero where the norm is zero."""
    axis = axis_of(axis, x.ndim)
    total = xp.sum(abs(x) if p == 1 else x * x, axis=axis, keepdims=True)
    norm = total if p == 1 else xp.sqrt(total)
    return xp.where(norm == 0, x.dtype.type(0), x / norm)


@op("MeanVarianceNormalization", since=9)
@in_float32
def mean_variance_normalization_9(xp: Xp, x: Array, *, axes: Ints = (0, 2, 3)) -> Array:
    """Return ``(x - mean) / (deviation + 1e-9)`` over `axes`, as the specification's body."""
    axes = tuple(axes)
    centred = x - xp.mean(x, axis=axes, keepdims=True)
    deviation = xp.sqrt(xp.mean(centred * centred, axis=axes, keepdims=True))
    return centred / (deviation + 1e-9)
