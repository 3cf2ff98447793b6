"""Array namespace of GPU kernels: CuPy's functions, with numpy's results where CuPy's differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class GPUNamespace:
    """The functions of a GPU's array library, with its own ones in their place."""

    #: Function of padded x, w, b or None, window and y that writes a 2-D convolution in which each
    #: group has one input channel; None if the library has none, and the product of columns serves.
    depthwise_convolution: Callable[..., None] | None = None
    #: Function of the projected input and the recurrent product of a step, both (B, 4 * H), and the
    #: cell state (B, H) that returns the output and the new cell state of an LSTM with default
    #: activations; None if the library has none.
    lstm_cell: Callable[..., tuple[Any, Any]] | None = None

    def __init__(self, library: Any) -> None:
        self._library = library
        self.random = _Random(library.asarray)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._library, name)
        setattr(self, name, value)  # later reads find the attribute itself
        return value

    def add_product(self, a: Any, b: Any, y: Any) -> None:
        """Add the matrix product of a and b, in float32 if they are float16, to y."""
        if y.dtype.itemsize == 2:
            product = self.matmul(a.astype(np.float32), b.astype(np.float32))
            y[...] = (product + y).astype(y.dtype)
        else:
            y += self.matmul(a, b)

    def remainder(self, x: Any, y: Any) -> Any:
        """Return the remainder with the divisor's sign; CuPy's is NaN for an infinite divisor."""
        library = self._library
        if x.dtype.kind != "f":
            return library.remainder(x, y)
        rest = library.fmod(x, y)
        rest = library.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
        return library.where(rest == 0, library.copysign(rest, y), rest)


class _Random:
    """Random numbers of numpy, drawn on the host: CuPy draws others from the same seed."""

    def __init__(self, upload: Callable[[np.ndarray], Any]) -> None:
        self._upload = upload

    def RandomState(self, seed: int | None = None) -> _RandomState:  # noqa: N802 - numpy's name
        """Return a generator of arrays on the device."""
        return _RandomState(np.random.RandomState(seed), self._upload)


class _RandomState:
    """A random generator whose arrays are on the device."""

    def __init__(self, state: np.random.RandomState, upload: Callable[[np.ndarray], Any]) -> None:
        self._state = state
        self._upload = upload

    def uniform(self, low: float, high: float, size: Any) -> Any:
        """Draw from the numbers between `low` and `high`."""
        return self._upload(np.asarray(self._state.uniform(low, high, size)))

    def normal(self, mean: float, scale: float, size: Any) -> Any:
        """Draw from a normal distribution."""
        return self._upload(np.asarray(self._state.normal(mean, scale, size)))
