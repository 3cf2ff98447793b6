"""Softmax, LogSoftmax and Hardmax: along one axis since opset 13, over a 2-D view before."""

from __future__ import annotations

from math import prod

from devices.kernels.axes import axis_of
from devices.kernels.element_types import Array, Kernel, Xp, in_float32
from devices.kernels.reduction import reduce_max, reduce_sum
from devices.kernels.registry import op


def _softmax(xp: Xp, x: Array, axis: int) -> Array:
    # Shifted by the greatest element, so that no exponential overflows.
    y = xp.subtract(x, reduce_max(xp, x, (axis,), True))
    xp.exp(y, out=y)
    y /= reduce_sum(xp, y, (axis,), True)
    return y


def _log_softmax(xp: Xp, x: Array, axis: int) -> Array:
    y = x - reduce_max(xp, x, (axis,), True)
    y -= xp.log(reduce_sum(xp, xp.exp(y), (axis,), True))
    return y


def _hardmax(xp: Xp, x: Array, axis: int) -> Array:
    first = xp.expand_dims(xp.argmax(x, axis=axis), axis)
    positions = xp.arange(x.shape[axis]).reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    return (positions == first).astype(x.dtype)


def _along(xp: Xp, function: Kernel, x: Array, axis: int) -> Array:
    axis = axis_of(axis, x.ndim)
    return function(xp, x, axis) if x.size else xp.empty_like(x)


def _flattened(xp: Xp, function: Kernel, x: Array, axis: int) -> Array:
    """Apply the function to rows that span all axes from `axis` on."""
    axis = axis_of(axis, x.ndim)
    if not x.size:
        return xp.empty_like(x)
    rows = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
    return function(xp, rows, 1).reshape(x.shape)


@op("Softmax", since=(1, 11))
@in_float32
def softmax_1(xp: Xp, x: Array, *, axis: int = 1) -> Array:
    """Return exp(x) / sum(exp(x)) over all axes from `axis` on."""
    return _flattened(xp, _softmax, x, axis)


@op("Softmax", since=13)
@in_float32
def softmax_13(xp: Xp, x: Array, *, axis: int = -1) -> Array:
    """Return exp(x) / sum(exp(x)) along the axis."""
    return _along(xp, _softmax, x, axis)


@op("LogSoftmax", since=(1, 11))
@in_float32
def log_softmax_1(xp: Xp, x: Array, *, axis: int = 1) -> Array:
    """Return log(softmax(x)) over all axes from `axis` on."""
    return _flattened(xp, _log_softmax, x, axis)


@op("LogSoftmax", since=13)
@in_float32
def log_softmax_13(xp: Xp, x: Array, *, axis: int = -1) -> Array:
    """Return log(softmax(x)) along the axis."""
    return _along(xp, _log_softmax, x, axis)


@op("Hardmax", since=(1, 11))
@in_float32
def hardmax_1(xp: Xp, x: Array, *, axis: int = 1) -> Array:
    """Return 1 at the first greatest of the elements from `axis` on, 0 elsewhere."""
    return _flattened(xp, _hardmax, x, axis)


@op("Hardmax", since=13)
@in_float32
def hardmax_13(xp: Xp, x: Array, *, axis: int = -1) -> Array:
    """Return 1 at the first greatest element along the axis, 0 elsewhere."""
    return _along(xp, _hardmax, x, axis)
