"""Kernels that suit only a CPU, one module per family, all registered in `FAST`."""
