"""Softmax, LogSoftmax and Hardmax: along one axis since opset 13, before over a 2-D view."""

from __future__ import annotations

from math import prod

from hetero.devices.kernels.axes import axis_of
from hetero.devices.kernels.element_types import Array, Kernel, Xp, in_float32
from hetero.devices.kernels.reduction import reduce_max, reduce_sum
from hetero.devices.kernels.registry import op


def softmax(xp: Xp, x: Array, axis: int) -> Array:
    """Return exponentials divided by their sum along an axis."""
    # The greatest element is subtracted so that no exponential overflows.
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


def _register(op_type: str, function: Kernel) -> None:
    """Register a function along one axis since opset 13, before over all axes from `axis` on."""

    def kernel_over_trailing_axes(xp: Xp, x: Array, *, axis: int = 1) -> Array:
        axis = axis_of(axis, x.ndim)
        rows = x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))
        return function(xp, rows, 1).reshape(x.shape) if x.size else xp.empty_like(x)

    def kernel_along_axis(xp: Xp, x: Array, *, axis: int = -1) -> Array:
        axis = axis_of(axis, x.ndim)
        return function(xp, x, axis) if x.size else xp.empty_like(x)

    op(op_type, since=(1, 11))(in_float32(kernel_over_trailing_axes))
    op(op_type, since=13)(in_float32(kernel_along_axis))


_register("Softmax", softmax)
_register("LogSoftmax", _log_softmax)
_register("Hardmax", _hardmax)
