"""Values that are arrays by one protocol alone."""

from __future__ import annotations


class OnlyArray:
    """Something with ``__array__`` that shares its memory, as a tensor of PyTorch."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class OnlyDLPack:
    """Something with DLPack alone."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
