"""The interpreter: a graph run node by node with kernels on arrays, then bound to its shapes."""
