"""Kernels with their decisions taken beforehand, where the recorder cannot: all in `BINDINGS`.

A binding belongs to a kernel and to arrays that stay where they are: it returns the calls, without
arguments, that compute the kernel's result into `y` whenever they are made.
"""

from devices.interpreter.binding import movement
from devices.interpreter.binding.registry import BINDINGS, Binding, Call, Scratch

__all__ = ["BINDINGS", "Binding", "Call", "Scratch", "movement"]
