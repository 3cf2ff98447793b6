"""Tensors in messages and blobs: what was read, checked; the orders of bytes and of axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from devices.errors import BlobError

#: numpy's own limit.
_MAX_RANK: Final = 64


def texts_of(array: np.ndarray) -> list[str | bytes]:
    """Return a tensor's strings in C order.

    Raises TypeError: it is of objects that are no strings.
    """
    texts = array.ravel().tolist()
    for text in texts:
        if not isinstance(text, str | bytes):
            raise TypeError(f"a tensor of objects holds strings; got {type(text).__name__}.")
    return texts


def little_endian(array: np.ndarray) -> np.ndarray:
    """Return the array with its bytes in the order in which they are written."""
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("<"))
    return array


def raw(array: np.ndarray) -> memoryview:
    """Return an array's bytes as they are written."""
    return np.ascontiguousarray(little_endian(array)).reshape(-1).view(np.uint8).data


def shape_of(sizes: Any, where: str) -> tuple[int, ...]:
    """Return a shape that was read, checked."""
    sound = isinstance(sizes, list) and len(sizes) <= _MAX_RANK
    for size in sizes if sound else ():
        sound = sound and type(size) is int and 0 <= size < 2**62
    if not sound:
        raise BlobError(f"{where}: a tensor of shape {str(sizes)[:80]}.")
    return tuple(sizes)


def strings_of(sizes: Any, texts: Any, where: str) -> np.ndarray:
    """Return a read-only tensor of strings that were read, checked."""
    shape = shape_of(sizes, where)
    if not isinstance(texts, list) or math.prod(shape) != len(texts):
        raise BlobError(f"{where}: a tensor of strings that do not fill {shape}.")
    if any(not isinstance(text, str | bytes) for text in texts):
        raise BlobError(f"{where}: a tensor of strings that holds something else.")
    array = np.empty(len(texts), object)
    array[:] = texts
    return frozen(array.reshape(shape))


def frozen(array: np.ndarray) -> np.ndarray:
    """Return the array, made read-only."""
    array.setflags(write=False)
    return array


def axis_order(array: np.ndarray) -> tuple[int, ...]:
    """Return an array's axes by their steps in memory, longest first; empty for C's own order.

    BLAS and numpy's reductions add in the order in which memory lies: a tensor that arrived in
    another one would give other last bits than in a model that is not cut.
    """
    if array.ndim < 2 or array.flags.c_contiguous or not array.size:
        return ()
    steps = array.strides
    # An axis of one element takes no steps; in front it is out of the others' way.
    axes = sorted(range(array.ndim), key=lambda i: abs(steps[i]) if array.shape[i] > 1 else 2**63,
                  reverse=True)  # fmt: skip
    wide = [axis for axis in axes if array.shape[axis] > 1]
    return () if wide == sorted(wide) else tuple(axes)


def in_memory_order(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return an array's contents C-contiguous, axes as in `order`; no copy where they lie so."""
    return np.ascontiguousarray(array.transpose(order) if order else array)


def as_before(array: np.ndarray, order: Sequence[int]) -> np.ndarray:
    """Return the view with the original's axes: the inverse of `in_memory_order`."""
    return array.transpose(np.argsort(order)) if order else array
