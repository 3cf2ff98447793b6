"""Activation functions."""

from __future__ import annotations

import math

from hetero.devices.kernels.element_types import Array, Xp, check_same_type, in_float32
from hetero.devices.kernels.elementwise import erf_9
from hetero.devices.kernels.registry import op


@op("Relu", since=6)
def relu(xp: Xp, x: Array) -> Array:
    """Return max(0, x)."""
    if x.dtype.kind == "f":
        return xp.clip(x, 0, xp.inf)  # three times faster than `maximum` with a scalar
    return xp.maximum(x, x.dtype.type(0))


@op("LeakyRelu", since=6)
@in_float32
def leaky_relu(xp: Xp, x: Array, *, alpha: float = 0.01) -> Array:
    """Return x, multiplied by alpha where it is negative."""
    if not 0 < alpha <= 1:
        return xp.where(x < 0, x * alpha, x)
    return xp.maximum(x, x * alpha)


def _scale_negatives(xp: Xp, x: Array, slope: Array) -> Array:
    check_same_type(x, slope)
    return xp.where(x < 0, x * slope, x)


@op("PRelu", since=6)
@in_float32
def prelu_6(xp: Xp, x: Array, slope: Array) -> Array:
    """Return x, multiplied by slope where it is negative; slope is a scalar or one per channel."""
    channels = x.shape[1] if x.ndim > 1 else 1
    if slope.size not in (1, channels):
        raise ValueError(f"slope: expected shape (1,) or ({channels},), got {slope.shape}")
    return _scale_negatives(xp, x, slope.reshape((-1,) + (1,) * max(x.ndim - 2, 0)))


@op("PRelu", since=7)
@in_float32
def prelu(xp: Xp, x: Array, slope: Array) -> Array:
    """Return x, multiplied by slope where it is negative; slope broadcasts to x's shape."""
    y = _scale_negatives(xp, x, slope)
    if y.shape != x.shape:
        raise ValueError(f"slope: expected a shape that broadcasts to {x.shape}, got {slope.shape}")
    return y


@op("ThresholdedRelu", since=10)
@in_float32
def thresholded_relu(xp: Xp, x: Array, *, alpha: float = 1.0) -> Array:
    """Return x where x is greater than alpha, 0 elsewhere."""
    return xp.where(x > alpha, x, x.dtype.type(0))


def _exponential(xp: Xp, x: Array, alpha: float, width: float = 1.0) -> Array:
    """Return max(0, x) + alpha * (exp(min(0, x) / width) - 1)."""
    return xp.clip(x, 0, xp.inf) + alpha * (xp.exp(xp.clip(x, -xp.inf, 0) / width) - 1)


@op("Elu", since=6)
@in_float32
def elu(xp: Xp, x: Array, *, alpha: float = 1.0) -> Array:
    """Return x, and alpha * (exp(x) - 1) where it is negative."""
    return _exponential(xp, x, alpha)


@op("Selu", since=6)
@in_float32
def selu(
    xp: Xp, x: Array, *, alpha: float = 1.6732631921768188, gamma: float = 1.0507010221481323
) -> Array:
    """Return gamma * x, and gamma * alpha * (exp(x) - 1) where x is not positive."""
    return gamma * _exponential(xp, x, alpha)


@op("Celu", since=12)
@in_float32
def celu(xp: Xp, x: Array, *, alpha: float = 1.0) -> Array:
    """Return max(0, x) + min(0, alpha * (exp(x / alpha) - 1))."""
    if alpha == 0:
        raise ValueError("alpha: expected a number other than 0, by which Celu divides")
    return _exponential(xp, x, alpha, alpha)


@op("Sigmoid", since=6)
@in_float32
def sigmoid(xp: Xp, x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return 1 / (1 + xp.exp(-x))


@op("HardSigmoid", since=6)
@in_float32
def hard_sigmoid(xp: Xp, x: Array, *, alpha: float = 0.2, beta: float = 0.5) -> Array:
    """Return alpha * x + beta, limited to [0, 1]."""
    return xp.clip(alpha * x + beta, 0, 1)


@op("HardSwish", since=14)
@in_float32
def hard_swish(xp: Xp, x: Array) -> Array:
    """Return x * max(0, min(1, x / 6 + 1/2))."""
    return x * hard_sigmoid(xp, x, alpha=1 / 6, beta=0.5)


@op("Swish", since=24)
@in_float32
def swish(xp: Xp, x: Array, *, alpha: float = 1.0) -> Array:
    """Return x * sigmoid(alpha * x)."""
    return x * sigmoid(xp, alpha * x)


@op("SwiGLU", since=28)
@in_float32
def swiglu(xp: Xp, a: Array, b: Array, *, alpha: float = 1.0) -> Array:
    """Return swish(a) * b for inputs of one shape."""
    if a.shape != b.shape:
        raise ValueError(f"expected gate and value of one shape, got {a.shape} and {b.shape}")
    return swish(xp, a, alpha=alpha) * b


@op("Softplus", since=1)
@in_float32
def softplus(xp: Xp, x: Array) -> Array:
    """Return log(exp(x) + 1)."""
    # An equal form in which exp cannot overflow.
    return xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.absolute(x)))


@op("Softsign", since=1)
@in_float32
def softsign(xp: Xp, x: Array) -> Array:
    """Return x / (1 + |x|)."""
    return x / (1 + xp.absolute(x))


@op("Mish", since=18)
@in_float32
def mish(xp: Xp, x: Array) -> Array:
    """Return x * tanh(log(1 + exp(x)))."""
    # tanh(log(1 + e)) = e (e + 2) / (e (e + 2) + 2), which rounds to 1 long before e = exp(20).
    e = xp.exp(xp.clip(x, -xp.inf, 20))
    w = e * (e + 2)
    return x * (w / (w + 2))


@op("Gelu", since=20, choices={"approximate": ("none", "tanh")})
@in_float32
def gelu(xp: Xp, x: Array, *, approximate: str = "none") -> Array:
    """Return x / 2 * (1 + erf(x / sqrt(2))), or its approximation by tanh."""
    if approximate == "none":
        y = erf_9(xp, x * math.sqrt(0.5))
    else:
        y = xp.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))
    return 0.5 * x * (1 + y)


@op("Shrink", since=9)
@in_float32
def shrink(xp: Xp, x: Array, *, bias: float = 0.0, lambd: float = 0.5) -> Array:
    """Return 0 where |x| is at most lambd, elsewhere x moved towards 0 by `bias`."""
    y = xp.where(x > lambd, x - bias, 0)
    return xp.where(x < -lambd, x + bias, y).astype(x.dtype)
