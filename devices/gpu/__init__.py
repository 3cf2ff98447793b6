"""The GPU device: the shared kernels on CuPy's arrays."""
