"""What the interpreter computes with: an array namespace, and kernels of the device's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import numpy as np

from hetero.devices.kernels import KERNELS, Kernel, KernelRegistry
from hetero.devices.model.model import Node
from hetero.devices.plugin.program import Value


@dataclass(frozen=True, eq=False)
class ArrayBackend:
    """Arrays of one library, and how a device computes with them."""

    #: The library's, for the runtime model.
    name: str
    #: The array namespace that kernels are given: numpy, or one with numpy's API.
    xp: Any
    #: The device's own: each replaces the shared kernel of its operator until that has a newer one.
    kernels: KernelRegistry = field(default_factory=KernelRegistry)

    @property
    def is_on_host(self) -> bool:
        """Whether its arrays are numpy's, which stay where they are from run to run."""
        return self.xp is np

    def find_kernel(self, domain: str, op_type: str, opset: int) -> Kernel | None:
        """Return what computes an operator at this opset, or None."""
        own = self.kernels.find(domain, op_type, opset)
        shared = KERNELS.find(domain, op_type, opset)
        if own is None or shared is None:
            return own or shared
        return own if own.since >= shared.since else shared

    # What a device with memory of its own does otherwise.

    def upload(self, array: np.ndarray) -> Value:
        """Return a host array as the kernels want it."""
        return array

    def function(
        self, kernel: Kernel, keywords: Mapping[str, Any], on_host: bool
    ) -> Callable[..., Any]:
        """Return the kernel as a function of a node's inputs; `on_host`: run there, with numpy."""
        return partial(kernel.function, self.xp, **keywords)

    def host_values(self, nodes: Sequence[Node], constants: Mapping[str, np.ndarray]) -> set[str]:
        """Return what is better computed on the host, of what `nodes` make in this order."""
        return set()

    def finish(self) -> None:
        """Return once everything that this thread began is done."""


#: The host's arrays, and the kernels that every device shares.
NUMPY: Final = ArrayBackend("numpy", np)
