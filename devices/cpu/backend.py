"""What the interpreter computes with: an array namespace, and kernels of the device's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from devices.cpu.fast.registry import FAST
from devices.kernels import KERNELS, Kernel, KernelRegistry


@dataclass(frozen=True, eq=False)
class ArrayBackend:
    """Arrays of one library, and how a device computes with them.

    Attributes
    ----------
    name : str
        The library's, for the runtime model.
    xp : module
        The array namespace that kernels are given: numpy, or one with numpy's API.
    kernels : KernelRegistry
        Kernels of the device's own. One of them replaces the shared kernel of its operator from
        its `since` on, until the shared ones have a newer one.
    """

    name: str
    xp: Any
    kernels: KernelRegistry = field(default_factory=KernelRegistry)

    def find_kernel(self, domain: str, op_type: str, opset: int) -> Kernel | None:
        """Return what computes an operator at this opset, or None."""
        own = self.kernels.find(domain, op_type, opset)
        shared = KERNELS.find(domain, op_type, opset)
        if own is None or shared is None:
            return own or shared
        return own if own.since >= shared.since else shared


#: The host's arrays.
NUMPY: Final = ArrayBackend("numpy", np, FAST)
