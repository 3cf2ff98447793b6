"""The emulated device's array namespace: what CuPy has, on arrays that the host cannot reach."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.emulated_gpu.array import WAITS, DeviceArray, unwrapped, wrapped
from tests.emulated_gpu.cupy_names import CUPY, IN_PLACE_UFUNCS, LACKING, WAITING

#: Functions that take a host's array or numbers to the device.
_UPLOADS: Final = frozenset({"array", "asarray"})


class DeviceNamespace:
    """CuPy's names, of numpy's functions."""

    def __init__(self, module: Any = np, prefix: str = "") -> None:
        self._module = module
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if not self._prefix and name not in CUPY:
            raise AttributeError(f"CuPy's namespace has no {name!r}; add it to CUPY if it has")
        found = getattr(self._module, name)
        if not self._prefix and name in ("linalg", "fft", "random"):
            return DeviceNamespace(found, f"{name}.")
        if name == "RandomState":
            return lambda *seed: _RandomState(found(*seed))
        if not callable(found) or isinstance(found, type):
            return found
        return _Function(f"{self._prefix}{name}", found)


class _Function:
    """A function of the namespace: all that it is given is on the device already."""

    def __init__(self, name: str, function: Any) -> None:
        self._name = name
        self._function = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if extra := LACKING.get(self._name, set()) & keywords.keys():
            raise TypeError(f"CuPy's {self._name} takes no {', '.join(sorted(extra))}")
        if self._name in _UPLOADS and isinstance(args[0], np.ndarray | np.generic):
            args = (DeviceArray(np.array(args[0])), *args[1:])
        if self._name in WAITING:
            WAITS[self._name] += 1
        if self._name == "repeat" and isinstance(args[1], DeviceArray):
            raise ValueError("all elements of `repeats` must be given on the host")
        given = {key: unwrapped(value) for key, value in keywords.items()}
        on_host = [unwrapped(arg) for arg in args]
        if self._name == "power":  # numpy takes a root for a lone 0.5, whose power of -inf is NaN
            on_host = [array.copy() for array in np.broadcast_arrays(*on_host)]
        result = self._function(*on_host, **given)
        out = keywords.get("out")
        return out if isinstance(out, DeviceArray) else wrapped(result)

    def at(self, array: DeviceArray, index: Any, *values: Any) -> None:
        """Apply a ufunc where an index says, repeated ones too."""
        if self._name not in IN_PLACE_UFUNCS:
            raise NotImplementedError(f"`cupy.{self._name}.at` is not supported yet")
        self._function.at(unwrapped(array), unwrapped(index), *map(unwrapped, values))

    def reduce(self, array: DeviceArray, **keywords: Any) -> Any:
        """Reduce along an axis."""
        return wrapped(self._function.reduce(unwrapped(array), **keywords))


class _RandomState:
    """A generator whose draws are on the device."""

    def __init__(self, state: np.random.RandomState) -> None:
        self._state = state

    def uniform(self, low: float, high: float, size: Any) -> Any:
        return wrapped(np.asarray(self._state.uniform(low, high, size)))

    def normal(self, mean: float, scale: float, size: Any) -> Any:
        return wrapped(np.asarray(self._state.normal(mean, scale, size)))


#: The array namespace of an emulated GPU.
DEVICE: Final = DeviceNamespace()
