"""Kernels that suit only a CPU, one module per family, all registered in `FAST`."""

from devices.cpu.fast import conv as _conv  # noqa: F401 - registers its kernels
