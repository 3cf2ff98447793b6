"""Calls: what is left of a node once its shapes and its place in memory are known.

Most kernels' calls are recorded. A kernel that is made of calls itself has a maker of them in
`CALL_MAKERS`. Copies are calls, by runs of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np

#: A call without arguments: part of a node's work.
Call = Callable[[], Any]

#: Bytes that a place starts at a multiple of: a line of the cache, and the widest vector.
ALIGNMENT: Final = 64


class Scratch:
    """Memory that one node needs to itself while it runs: bytes of `memory`, then new ones.

    `nbytes` tells how much was asked for.
    """

    def __init__(self, memory: np.ndarray | None = None) -> None:
        self._memory = memory
        self.nbytes = 0

    def __call__(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an array of its own for each call; its elements are anything."""
        offset = self.nbytes
        self.nbytes += -(-prod(shape) * np.dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        if self._memory is None or self.nbytes > self._memory.size:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._memory, offset)


#: Kernel function -> what makes its calls: called as ``make(scratch, y, *inputs, **attributes)``
#: with arrays whose shapes and types are final and whose elements are not there yet, it returns the
#: calls that make `y` of them, or None if it has none for such arrays.
CALL_MAKERS: Final[dict[Callable[..., Any], Callable[..., Sequence[Call] | None]]] = {}


def copy_call(y: np.ndarray, x: np.ndarray) -> Call:
    """Return the call that copies x into y, by the runs of memory that both consist of.

    Copied as single items, short runs take numpy half the time that they take as rows.
    """
    order = sorted(range(y.ndim), key=lambda axis: -abs(y.strides[axis]))
    y, x = y.transpose(order), x.transpose(order)
    axis, size = x.ndim, x.itemsize
    while axis and (x.shape[axis - 1] == 1 or x.strides[axis - 1] == y.strides[axis - 1] == size):
        axis -= 1
        size *= x.shape[axis]
    if not x.size or size == x.itemsize or x.dtype != y.dtype:
        return partial(np.copyto, y, x)
    shape, run = (*x.shape[:axis], -1), np.dtype((np.void, size))
    to, at = (a.reshape(shape, copy=False).view(run)[..., 0] for a in (y, x))
    return partial(np.copyto, to, at)
