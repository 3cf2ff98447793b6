"""The CPU device: numpy kernels, interpreted."""
