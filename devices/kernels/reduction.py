"""Reductions, arg-reductions and cumulative operators.

Each reduction has two signatures: `axes` is an attribute, and since opset 18 (ReduceSum: 13) an
input.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, Final

from hetero.devices.kernels.axes import axes_of, axis_of
from hetero.devices.kernels.element_types import Array, Xp, in_float32, is_float
from hetero.devices.kernels.registry import op

#: Greatest length of a row whose sum is computed as a product with ones.
_SHORT_ROW: Final = 4096

#: Reduces an array over axes (None: all); the last argument is whether to keep them with size 1.
_Reduce = Callable[[Xp, Array, tuple[int, ...] | None, bool], Array]


def _reduction(op_type: str, axes_input_since: int = 18) -> Callable[[_Reduce], _Reduce]:
    """Register a reduction in both signatures."""

    def register(reduce: _Reduce) -> _Reduce:
        def with_attribute(
            xp: Xp, data: Array, *, axes: tuple[int, ...] | None = None, keepdims: int = 1
        ) -> Array:
            if axes is not None:
                axes = axes_of(axes, data.ndim) or None
            return reduce(xp, data, axes, bool(keepdims))

        def with_input(
            xp: Xp,
            data: Array,
            axes: Array | None = None,
            *,
            keepdims: int = 1,
            noop_with_empty_axes: int = 0,
        ) -> Array:
            numbers = () if axes is None else axes_of(axes.tolist(), data.ndim)
            default = () if noop_with_empty_axes else None
            return reduce(xp, data, numbers or default, bool(keepdims))

        op(op_type, since=1)(in_float32(with_attribute))
        op(op_type, since=axes_input_since, host=(1,))(in_float32(with_input))
        return reduce

    return register


@_reduction("ReduceSum", axes_input_since=13)
def reduce_sum(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    """Return the sum; 0 if there are no elements."""
    if axes == (data.ndim - 1,) and data.ndim > 1 and data.shape[-1] <= _SHORT_ROW:
        # A product with ones is 2 to 6 times faster, but less accurate for long rows.
        has_blas = data.dtype.kind == "f" and data.itemsize >= 4
        if has_blas and data.strides[-1] == data.itemsize:
            total = xp.matmul(data, xp.ones((data.shape[-1], 1), data.dtype))
            return total if keepdims else total[..., 0]
    return xp.sum(data, axis=axes, keepdims=keepdims, dtype=data.dtype)


@_reduction("ReduceMean")
def reduce_mean(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    """Return the mean, NaN if there are no elements; means of integers truncate towards zero."""
    total = reduce_sum(xp, data, axes, keepdims)
    count = data.size if axes is None else prod(data.shape[axis] for axis in axes)
    if is_float(data):
        return total / data.dtype.type(count)
    if count == 0:
        raise ValueError(f"expected elements for the mean of {data.dtype}, got none")
    return (xp.sign(total) * (xp.absolute(total) // count)).astype(data.dtype)


@_reduction("ReduceProd")
def reduce_prod(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    """Return the product; 1 if there are no elements."""
    return xp.prod(data, axis=axes, keepdims=keepdims, dtype=data.dtype)


@_reduction("ReduceMax")
def reduce_max(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    """Return the greatest element; the least value of the type if there are none."""
    if not data.size:
        return xp.full_like(reduce_sum(xp, data, axes, keepdims), _extremes(xp, data)[0])
    return xp.max(data, axis=axes, keepdims=keepdims)


@_reduction("ReduceMin")
def reduce_min(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    """Return the least element; the greatest value of the type if there are none."""
    if not data.size:
        return xp.full_like(reduce_sum(xp, data, axes, keepdims), _extremes(xp, data)[1])
    return xp.min(data, axis=axes, keepdims=keepdims)


def _extremes(xp: Xp, data: Array) -> tuple[Any, Any]:
    if data.dtype.kind == "b":
        return False, True
    if is_float(data):
        return -xp.inf, xp.inf
    limits = xp.iinfo(data.dtype)
    return limits.min, limits.max


def _to_float(xp: Xp, data: Array) -> Array:
    return data if is_float(data) else data.astype(xp.float64)


def _sum_of(op_type: str, term: Callable[[Xp, Array], Array], name: str | None = None) -> None:
    """Register the sum of a function of the elements, or the function `name` of that sum."""

    @_reduction(op_type)
    def reduce(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
        total = reduce_sum(xp, term(xp, data), axes, keepdims)
        return total if name is None else getattr(xp, name)(total).astype(data.dtype)


_sum_of("ReduceL1", lambda xp, data: xp.absolute(data))
_sum_of("ReduceSumSquare", lambda xp, data: xp.square(data))
_sum_of("ReduceL2", lambda xp, data: xp.square(_to_float(xp, data)), "sqrt")
# The result for no elements is minus infinity.
_sum_of("ReduceLogSum", _to_float, "log")


@_reduction("ReduceLogSumExp")
def reduce_log_sum_exp(xp: Xp, data: Array, axes: tuple[int, ...] | None, keepdims: bool) -> Array:
    """Return the logarithm of the sum of exponentials; minus infinity if there are none."""
    real = _to_float(xp, data)
    # The greatest element, if finite, is subtracted so that no exponential overflows.
    top = reduce_max(xp, real, axes, True)
    top = xp.where(xp.isfinite(top), top, top.dtype.type(0))
    result = xp.log(reduce_sum(xp, xp.exp(real - top), axes, keepdims))
    result = result + top.reshape(result.shape)
    return result.astype(data.dtype)


def _arg(op_type: str, name: str) -> None:
    """Register the index of an extreme along an axis, the first or last if several are equal."""

    @op(op_type, since=1, additions={"select_last_index": 12})
    def arg(
        xp: Xp, data: Array, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0
    ) -> Array:
        find = getattr(xp, name)
        axis = axis_of(axis, max(data.ndim, 1))
        if data.ndim and data.shape[axis] == 0:
            raise ValueError(f"expected elements along axis {axis}, got shape {data.shape}")
        if select_last_index and data.ndim:
            index = data.shape[axis] - 1 - find(xp.flip(data, axis), axis=axis)
        else:
            index = find(data, axis=axis)
        index = xp.asarray(index, dtype=xp.int64)
        return xp.expand_dims(index, axis) if keepdims and data.ndim else index


_arg("ArgMax", "argmax")
_arg("ArgMin", "argmin")


def _cumulative(op_type: str, since: int, name: str, start: int) -> None:
    """Register a cumulative reduction along an axis, whose first value is `start`."""

    @op(op_type, since=since, host=(1,))
    @in_float32
    def cumulative(xp: Xp, x: Array, axis: Array, *, exclusive: int = 0, reverse: int = 0) -> Array:
        if axis.size != 1:
            raise ValueError(f"axis: expected a scalar, got shape {axis.shape}")
        along = axis_of(int(axis.item()), x.ndim)
        if reverse:
            x = xp.flip(x, along)
        y = getattr(xp, name)(x, axis=along, dtype=x.dtype)
        if exclusive:
            shifted = xp.full_like(y, start)
            first = (slice(None),) * along
            shifted[(*first, slice(1, None))] = y[(*first, slice(None, -1))]
            y = shifted
        return xp.flip(y, along) if reverse else y


_cumulative("CumSum", 11, "cumsum", 0)
_cumulative("CumProd", 26, "cumprod", 1)
