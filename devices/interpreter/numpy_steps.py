"""What numpy's functions do, as steps on a tape."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy._core import umath

from devices.interpreter.calls import Call
from devices.interpreter.stand_in import CannotRecord, StandIn, Tape, real_of, steps_of

#: The ufunc inside `numpy.clip`, which itself takes three times as long to call.
CLIP: Final[Any] = vars(umath)["clip"]


@steps_of(np.clip)
def _clip(tape: Tape, x: Any, low: Any, high: Any, out: Any = None) -> Any:
    return CLIP(x, low, high, out=out) if out is not None else CLIP(x, low, high)


@steps_of(np.where)
def _where(tape: Tape, condition: Any, a: Any, b: Any) -> StandIn:
    real = np.where(real_of(condition), real_of(a), real_of(b))
    to = tape.made(real)
    a, b = (x if isinstance(x, StandIn) else np.asarray(x, real.dtype) for x in (a, b))
    tape.copied(b, to)
    return tape.elementwise(_choosing, a, condition, to)


def _choosing(x: np.ndarray, condition: np.ndarray, y: np.ndarray) -> Call:
    return partial(np.copyto, y, x, where=condition)


@steps_of(np.copyto)
def _copyto(tape: Tape, to: Any, x: Any, casting: str = "same_kind", where: Any = True) -> None:
    x = x if isinstance(x, StandIn) else np.asarray(x, to.dtype)
    if where is True:
        tape.copied(x, to)
    else:
        tape.elementwise(_choosing, x, where, to)


@steps_of(np.einsum)
def _sums(tape: Tape, subscripts: str, x: StandIn, out: Any = None) -> StandIn:
    """Record the one sum that kernels leave to `einsum`: that of short rows."""
    if subscripts != "...i->..." or out is not None:
        raise CannotRecord
    to = tape.made(np.einsum(subscripts, x.real))
    return tape.step(_summing, x, to, lead=to.ndim)


def _summing(x: np.ndarray, y: np.ndarray) -> Call:
    return partial(np.einsum, "...i->...", x, out=y)


@steps_of(np.argmax)
def _argmax(tape: Tape, x: StandIn, axis: Any = None, keepdims: bool = False) -> StandIn:
    to = tape.made(np.argmax(x.real, axis, keepdims=keepdims))
    if axis not in (-1, x.ndim - 1):
        raise CannotRecord
    tape.step(_finding, x, to[..., 0] if keepdims else to, lead=x.ndim - 1)
    return to


def _finding(x: np.ndarray, y: np.ndarray) -> Call:
    return partial(x.argmax, -1, y)


@steps_of(np.take)
def _take(tape: Tape, x: Any, indices: Any, axis: Any = None) -> StandIn:
    # In range they are the same for `clip`, which alone writes without a copy of its own.
    known = not isinstance(indices, StandIn) and np.min(indices, initial=0) >= 0
    indices = indices if isinstance(indices, StandIn) else np.asarray(indices)
    to = tape.made(real_of(x).take(real_of(indices), axis))
    return tape.step(partial(_taking, axis, "clip" if known else "raise"), x, indices, to)


def _taking(axis: Any, mode: Any, x: np.ndarray, indices: np.ndarray, y: np.ndarray) -> Call:
    return partial(x.take, indices, axis, y, mode)


@steps_of(np.take_along_axis)
def _take_along_rows(tape: Tape, x: StandIn, indices: Any, axis: int) -> StandIn:
    """Record the taking of one element of each row, found by `argmax`."""
    if axis % x.ndim != x.ndim - 1 or not x.flags.c_contiguous or indices.shape[-1] != 1:
        raise CannotRecord
    to = tape.made(np.take_along_axis(x.real, indices.real, axis))
    return tape.step(_picking, x, indices, to, lead=x.ndim - 1)


def _picking(x: np.ndarray, indices: np.ndarray, y: np.ndarray) -> Call:
    flat, places, to = (a.reshape(-1, copy=False) for a in (x, indices, y))
    return partial(_pick, flat, np.arange(0, x.size, x.shape[-1]), places, to)


def _pick(flat: np.ndarray, first: np.ndarray, places: np.ndarray, y: np.ndarray) -> None:
    flat.take(first + places, None, y, "clip")


@steps_of(np.concatenate)
def _concatenate(tape: Tape, arrays: Sequence[Any], axis: int = 0) -> StandIn:
    to = tape.made(np.concatenate([real_of(x) for x in arrays], axis))
    end = 0
    for x in arrays:
        begin, end = end, end + x.shape[axis]
        part = to[(slice(None),) * (axis % to.ndim) + (slice(begin, end),)]
        tape.copied(x, part)
    return to


@steps_of(np.empty_like)
def _empty_like(tape: Tape, x: StandIn, dtype: Any = None, shape: Any = None) -> StandIn:
    return tape.made(np.empty_like(x.real, dtype, shape=shape))


@steps_of(np.full_like)
def _full_like(tape: Tape, x: StandIn, value: Any, dtype: Any = None) -> StandIn:
    to = tape.made(np.empty_like(x.real, dtype))
    return tape.copied(np.asarray(value, to.dtype), to)


@steps_of(np.ascontiguousarray)
def _contiguous(tape: Tape, x: StandIn) -> StandIn:
    if x.flags.c_contiguous:
        return x
    return tape.copied(x, tape.made(np.ascontiguousarray(x.real)))


@steps_of(np.mean)
def _mean(tape: Tape, x: StandIn, axis: Any = None, keepdims: bool = False) -> StandIn:
    if x.dtype.kind != "f" or x.itemsize < 4:
        raise CannotRecord
    total: StandIn = np.add.reduce(x, axis=axis, keepdims=keepdims)  # type: ignore[call-overload]
    total /= x.dtype.type(x.size // total.size)
    return total


@steps_of(np.zeros_like)
def _zeros_like(tape: Tape, x: StandIn, dtype: Any = None) -> StandIn:
    zeros: StandIn = _full_like(tape, x, 0, dtype)
    return zeros
