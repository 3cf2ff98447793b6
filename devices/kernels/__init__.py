"""The numpy kernels: one module per family of operators, all registered in `KERNELS`."""

from importlib import import_module
from pkgutil import walk_packages

from hetero.devices.kernels.registry import ALL, KERNELS, Kernel, KernelRegistry, op

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)  # registers its operators

__all__ = ["ALL", "KERNELS", "Kernel", "KernelRegistry", "op"]
