"""Kernels with their decisions taken beforehand, one module per family, all in `BINDINGS`.

A binding belongs to a kernel and to arrays that stay where they are: it returns the calls, without
arguments, that compute the kernel's result into `y` whenever they are made.
"""

from devices.interpreter.binding import (
    activation,
    elementwise,
    movement,
    normalise,
    product,
    quantize,
    reduce,
    resize,
)
from devices.interpreter.binding.registry import BINDINGS, Binding, Call, Scratch

__all__ = [
    "BINDINGS",
    "Binding",
    "Call",
    "Scratch",
    "activation",
    "elementwise",
    "movement",
    "normalise",
    "product",
    "quantize",
    "reduce",
    "resize",
]
