"""The GPU device: the CPU device's kernels on CuPy arrays."""
