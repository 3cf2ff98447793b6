"""The registry of the CPU's own kernels, which come before the shared ones."""

from __future__ import annotations

from typing import Final

from devices.kernels import KernelRegistry

#: Filled by ``@op(..., registry=FAST)``.
FAST: Final = KernelRegistry()
