"""Kernels of operators: one module per family, all registered in `KERNELS`."""

from importlib import import_module
from pkgutil import walk_packages

from hetero.devices.kernels.registry import ALL, KERNELS, Kernel, KernelRegistry, op

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)  # registers its kernels

__all__ = ["ALL", "KERNELS", "Kernel", "KernelRegistry", "op"]
