"""Array-like objects that support a single protocol."""

from __future__ import annotations


class OnlyArray:
    """Array-like with ``__array__``, which shares its memory like a tensor of PyTorch."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class OnlyDLPack:
    """Array-like with DLPack only."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()
