"""Bindings of reductions, Softmax among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Final

import numpy as np

from devices.interpreter.binding.registry import Call, Scratch, binds, blocks
from devices.kernels.reduction import SHORT_ROW, TINY_ROW

_WIDTHS: Final = (4, 8)


def _has_rows(x: np.ndarray, axes: Sequence[int]) -> bool:
    """Tell whether `axes` is the last one, of floats that lie side by side in memory."""
    return (
        x.ndim > 0
        and [axis % x.ndim for axis in axes] == [x.ndim - 1]
        and x.dtype.kind == "f"
        and x.dtype.itemsize in _WIDTHS
        and bool(x.size)
        and x.flags.c_contiguous
    )


def _greatest(place: np.ndarray, y: np.ndarray, x: np.ndarray) -> list[Call]:
    """Return the calls that put the greatest of each row of x (N, C) into y (N, 1).

    `place` (N) is theirs to write to.
    """
    if x.shape[1] > TINY_ROW:
        return [partial(np.maximum.reduce, x, -1, None, y, True)]
    first = np.arange(0, x.size, x.shape[1])
    return [
        partial(x.argmax, -1, place),
        partial(np.add, place, first, place),
        partial(x.reshape(-1).take, place, None, y.reshape(-1), "clip"),
    ]


def _total(y: np.ndarray, x: np.ndarray) -> list[Call]:
    """Return the call that puts the sum of each row of x (N, C) into y (N, 1)."""
    if x.shape[1] > SHORT_ROW:
        return [partial(np.add.reduce, x, -1, None, y, True)]
    return [partial(np.einsum, "ij->i", x, out=y.reshape(-1))]


@binds("Softmax", 1, over=(0,))
def bind_flattened_softmax(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, axis: int = 1
) -> Sequence[Call] | None:
    """Bind exp(x) / sum(exp(x)) over all axes from `axis` on."""
    if not x.size or not x.flags.c_contiguous:
        return None
    shape = (prod(x.shape[: axis % x.ndim]), -1) if x.ndim else (1, 1)
    return bind_softmax(scratch, y.reshape(shape), x.reshape(shape))


@binds("Softmax", 13, over=(0,))
def bind_softmax(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, axis: int = -1
) -> Sequence[Call] | None:
    """Bind exp(x) / sum(exp(x)) along the last axis."""
    if not _has_rows(x, (axis,)):
        return None
    pieces = blocks(*(a.reshape(-1, x.shape[-1]) for a in (x, y)))
    tops = scratch((len(pieces[0][0]), 1), x.dtype)
    places = scratch((len(tops),), np.int64)
    calls: list[Call] = []
    for at, to in pieces:
        top = tops[: len(at)]
        calls += [
            *_greatest(places[: len(at)], top, at),
            partial(np.subtract, at, top, to),
            partial(np.exp, to, to),
            *_total(top, to),
            partial(np.divide, to, top, to),
        ]
    return calls


@binds("LogSoftmax", 13)
def bind_log_softmax(
    scratch: Scratch, y: np.ndarray, x: np.ndarray, *, axis: int = -1
) -> Sequence[Call] | None:
    """Bind x - log(sum(exp(x))) along the last axis."""
    if not _has_rows(x, (axis,)):
        return None
    pieces = blocks(*(a.reshape(-1, x.shape[-1]) for a in (x, y)))
    tops, powers = (scratch((len(pieces[0][0]), n), x.dtype) for n in (1, x.shape[-1]))
    places = scratch((len(tops),), np.int64)
    calls: list[Call] = []
    for at, to in pieces:
        top, power = tops[: len(at)], powers[: len(at)]
        calls += [
            *_greatest(places[: len(at)], top, at),
            partial(np.subtract, at, top, to),
            partial(np.exp, to, power),
            *_total(top, power),
            partial(np.log, top, top),
            partial(np.subtract, to, top, to),
        ]
    return calls


def _sums(scratch: Scratch, y: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> list[Call]:
    row = prod(x.shape[axis] for axis in axes)
    first = x.ndim - len(axes)
    if x.flags.c_contiguous and axes == tuple(range(first, x.ndim)) and row <= SHORT_ROW:
        return _total(y.reshape(-1, 1), x.reshape(-1, row))
    return [partial(np.add.reduce, x, axes, None, y, True)]


def _means(scratch: Scratch, y: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> list[Call]:
    count = np.asarray(prod(x.shape[axis] for axis in axes), x.dtype)
    return [*_sums(scratch, y, x, axes), partial(np.divide, y, count, y)]


def _tops(scratch: Scratch, y: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> list[Call]:
    if _has_rows(x, axes):
        rows = x.reshape(-1, x.shape[-1])
        return _greatest(scratch((len(rows),), np.int64), y.reshape(-1, 1), rows)
    return [partial(np.maximum.reduce, x, axes, None, y, True)]


def _bottoms(scratch: Scratch, y: np.ndarray, x: np.ndarray, axes: tuple[int, ...]) -> list[Call]:
    return [partial(np.minimum.reduce, x, axes, None, y, True)]


def _bind_reduction(
    op_type: str,
    axes_input_since: int,
    calls: Callable[[Scratch, np.ndarray, np.ndarray, tuple[int, ...]], list[Call]],
) -> None:
    def over(
        scratch: Scratch, y: np.ndarray, x: np.ndarray, axes: Sequence[int] | None
    ) -> Sequence[Call] | None:
        if not axes or x.dtype.kind != "f" or x.dtype.itemsize not in _WIDTHS or not x.size:
            return None
        along = tuple(sorted({axis % x.ndim for axis in axes}))
        kept = tuple(1 if axis in along else n for axis, n in enumerate(x.shape))
        return calls(scratch, y.reshape(kept), x, along)

    def with_attribute(
        scratch: Scratch, y: np.ndarray, x: np.ndarray, *,
        axes: Sequence[int] | None = None, keepdims: int = 1,
    ) -> Sequence[Call] | None:  # fmt: skip
        return over(scratch, y, x, axes)

    def with_input(
        scratch: Scratch, y: np.ndarray, x: np.ndarray, axes: np.ndarray | None = None, *,
        keepdims: int = 1, noop_with_empty_axes: int = 0,
    ) -> Sequence[Call] | None:  # fmt: skip
        constant = axes is not None and not axes.flags.writeable
        return over(scratch, y, x, axes.tolist()) if axes is not None and constant else None

    binds(op_type, 1)(with_attribute)
    binds(op_type, axes_input_since)(with_input)


_bind_reduction("ReduceMax", 18, _tops)
_bind_reduction("ReduceMin", 18, _bottoms)
_bind_reduction("ReduceSum", 13, _sums)
_bind_reduction("ReduceMean", 18, _means)


@binds("GlobalAveragePool", 1)
def bind_global_average_pool(
    scratch: Scratch, y: np.ndarray, x: np.ndarray
) -> Sequence[Call] | None:
    """Bind the mean of each channel's plane."""
    if x.dtype.kind != "f" or x.dtype.itemsize not in _WIDTHS or not x.size:
        return None
    count = np.asarray(prod(x.shape[2:]), x.dtype)
    if x.flags.c_contiguous:
        rows = x.reshape(*x.shape[:2], -1)
        sums: Call = partial(np.einsum, "...i->...", rows, out=y.reshape(x.shape[:2]))
    else:
        sums = partial(np.add.reduce, x, tuple(range(2, x.ndim)), None, y, True)
    return [sums, partial(np.divide, y, count, y)]
