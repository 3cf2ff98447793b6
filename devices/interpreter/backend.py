"""Array backends of the interpreter: an array namespace and a device's own kernels."""

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
    """An array library, and the kernels that a device runs on its arrays.

    The base is numpy on the host; devices with their own memory override the methods.
    """

    #: Name of the library, for the runtime model.
    name: str
    #: The array namespace that kernels receive: numpy, or one with numpy's API.
    xp: Any
    #: Kernels of the device, each used instead of a shared kernel that is not newer.
    kernels: KernelRegistry = field(default_factory=KernelRegistry)

    @property
    def is_on_host(self) -> bool:
        """Whether the arrays are numpy's."""
        return self.xp is np

    def find_kernel(self, domain: str, op_type: str, opset: int) -> Kernel | None:
        """Return the kernel of an operator at this opset, or None."""
        own = self.kernels.find(domain, op_type, opset)
        shared = KERNELS.find(domain, op_type, opset)
        if own is None or shared is None:
            return own or shared
        return own if own.since >= shared.since else shared

    def upload(self, array: np.ndarray) -> Value:
        """Return a host array as an array of the library."""
        return array

    def function(
        self, kernel: Kernel, keywords: Mapping[str, Any], on_host: bool
    ) -> Callable[..., Any]:
        """Return the kernel as a function of a node's inputs; `on_host` runs it with numpy."""
        return partial(kernel.function, self.xp, **keywords)

    def host_values(self, nodes: Sequence[Node], constants: Mapping[str, np.ndarray]) -> set[str]:
        """Return the outputs of `nodes`, in topological order, to compute on the host."""
        return set()

    def finish(self) -> None:
        """Wait for the work that this thread started on the device."""


#: numpy on the host, with the shared kernels only.
NUMPY: Final = ArrayBackend("numpy", np)
