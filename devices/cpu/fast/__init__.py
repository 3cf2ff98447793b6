"""Kernels that suit only a CPU, one module per family, all registered in `FAST`."""

from devices.cpu.fast import (  # noqa: F401 - importing a family registers its kernels
    conv,
    shuffle,
)
