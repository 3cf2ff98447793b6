"""The registry of bindings: which function binds which kernel to arrays that stay."""

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

#: Called as ``bind(scratch, y, *inputs, **attributes)``: see `binds`.
BindFunction = Callable[..., Sequence[Call] | None]


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
class Binding:
    """How one kernel is bound."""

    bind: BindFunction
    #: Positions of inputs that `y` may lie over: the calls read no element of them after they
    #: wrote the one at the same place.
    over: tuple[int, ...] = ()
    #: Whether `y` may have its axes in any order in memory; otherwise it has them in its own.
    any_order: bool = False
    #: Whether it is given all outputs, in a tuple, None for absent ones.
    many: bool = False


#: Kernel function -> its binding.
BINDINGS: Final[dict[Callable[..., Any], Binding]] = {}


def binds(
    op_type: str,
    *since: int,
    domain: str = "",
    over: tuple[int, ...] = (),
    any_order: bool = False,
    many: bool = False,
    registry: KernelRegistry = KERNELS,
) -> Callable[[BindFunction], BindFunction]:
    """Register the decorated function as the binding of an operator's kernels.

    It is called as ``bind(scratch, y, *inputs, **attributes)`` with numpy arrays whose shapes and
    types are final and whose elements are not there yet, and returns the calls that make `y` of
    them, or None if it has none for such arrays; the kernel itself is then called.

    Parameters
    ----------
    op_type : str
        The operator's name in the specification.
    *since : int
        The opsets that its kernels are registered since.
    domain : str
        The operator's domain.
    over : tuple of int
        Positions of inputs that `y` may lie over.
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
        No kernel is registered so, or it has a binding already.
    """

    def register(function: BindFunction) -> BindFunction:
        for version in since:
            kernel = registry.find(domain, op_type, version)
            if kernel is None or kernel.since != version:
                raise ValueError(f"{op_type} has no kernel since opset {version} to be bound")
            if (
                BINDINGS.setdefault(kernel.function, Binding(function, over, any_order, many)).bind
                != function
            ):
                raise ValueError(f"the kernel of {op_type} since opset {version} is bound twice")
        return function

    return register
