"""Kernels: ONNX operators as pure functions over an array namespace (see `registry`)."""
