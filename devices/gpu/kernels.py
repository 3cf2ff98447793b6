"""What the GPU computes otherwise than the shared kernels do."""

from __future__ import annotations

from typing import Final

from devices.kernels import KernelRegistry, op
from devices.kernels.scatter import scatter_elements_11, scatter_nd_11

GPU_KERNELS: Final = KernelRegistry()

# CuPy's `multiply` has no `at`, so products of updates at one place are another device's.
for _op, _kernel in (("ScatterElements", scatter_elements_11), ("ScatterND", scatter_nd_11)):
    op(
        _op,
        since=11,
        added={"reduction": 16},
        choices={"reduction": ("none", "add", "max", "min")},
        registry=GPU_KERNELS,
    )(_kernel)
