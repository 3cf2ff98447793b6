"""Kernels and calls that suit only a CPU, one module per family; the kernels are in `FAST`."""

from devices.cpu.fast import (  # noqa: F401 - importing a family registers its kernels
    conv,
    conv_transpose,
    lrn,
    pool,
    prepared_recurrent,
    scale_shift,
    shuffle,
)
from devices.cpu.fast.fast_kernels import FAST

__all__ = ["FAST"]
