"""Calls: what is left of a node once its shapes and its place in memory are known.

Most kernels' calls are recorded. Kernels that are made of calls themselves, or whose calls suit one
processor, have a maker of calls in `CALL_MAKERS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from devices.kernels import KERNELS, KernelRegistry

#: A call without arguments: part of a node's work.
Call = Callable[[], Any]

#: Bytes that a place starts at a multiple of: a line of the cache, and the widest vector.
_ALIGNMENT: Final = 64

#: Called as ``make(scratch, y, *inputs, **attributes)``: see `makes_calls`.
MakeCalls = Callable[..., Sequence[Call] | None]


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


@dataclass(frozen=True, slots=True)
class CallMaker:
    """What makes the calls of one kernel; see `makes_calls`."""

    make: MakeCalls
    over: tuple[int, ...] = ()
    any_order: bool = False
    many: bool = False


#: Kernel function -> what makes its calls.
CALL_MAKERS: Final[dict[Callable[..., Any], CallMaker]] = {}


def makes_calls(
    op_type: str,
    *since: int,
    domain: str = "",
    over: tuple[int, ...] = (),
    any_order: bool = False,
    many: bool = False,
    registry: KernelRegistry = KERNELS,
) -> Callable[[MakeCalls], MakeCalls]:
    """Register the decorated function as what makes the calls of an operator's kernels.

    It is called as ``make(scratch, y, *inputs, **attributes)`` with numpy arrays whose shapes and
    types are final and whose elements are not there yet, and returns the calls that make `y` of
    them, or None if it has none for such arrays.

    Parameters
    ----------
    op_type : str
        The operator's name in the specification.
    *since : int
        The opsets that its kernels are registered since.
    domain : str
        The operator's domain.
    over : tuple of int
        Positions of inputs that `y` may lie over: the calls read no element of them after they
        wrote the one at the same place.
    any_order : bool
        Whether `y` may have its axes in another order in memory than in its shape.
    many : bool
        Whether, in place of `y`, it is given a tuple of the outputs that the node names, None where
        it leaves one out; for kernels of several outputs.
    registry : KernelRegistry
        Where the kernels are registered.

    Raises
    ------
    ValueError
        No kernel is registered so, or its calls are made already.
    """

    def register(function: MakeCalls) -> MakeCalls:
        for version in since:
            kernel = registry.find(domain, op_type, version)
            if kernel is None or kernel.since != version:
                raise ValueError(f"{op_type} has no kernel since opset {version} to make calls of")
            maker = CallMaker(function, over, any_order, many)
            if CALL_MAKERS.setdefault(kernel.function, maker).make is not function:
                raise ValueError(
                    f"the calls of {op_type}'s kernel since opset {version} are made twice"
                )
        return function

    return register
