"""Calls: what is left of a node once its shapes and its place in memory are known.

Most kernels' calls are recorded. A kernel that is made of calls itself has a maker of them in
`CALL_MAKERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Final

import numpy as np

#: A call without arguments: part of a node's work.
Call = Callable[[], Any]

#: Bytes that a place starts at a multiple of: a line of the cache, and the widest vector.
_ALIGNMENT: Final = 64


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
        self.nbytes += -(-prod(shape) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
        if self._memory is None or self.nbytes > self._memory.size:
            return np.empty(shape, dtype)
        return np.ndarray(shape, dtype, self._memory, offset)


#: Kernel function -> what makes its calls: called as ``make(scratch, y, *inputs, **attributes)``
#: with arrays whose shapes and types are final and whose elements are not there yet, it returns the
#: calls that make `y` of them, or None if it has none for such arrays.
CALL_MAKERS: Final[dict[Callable[..., Any], Callable[..., Sequence[Call] | None]]] = {}
