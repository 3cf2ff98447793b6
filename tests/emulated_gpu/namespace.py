"""The emulated array namespace: the functions that CuPy has, on emulated device arrays."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tests.emulated_gpu.array import DeviceArray, count_wait, unwrap, wrap
from tests.emulated_gpu.cupy_names import (
    CUPY_NAMES,
    IN_PLACE_UFUNCS,
    MISSING_KEYWORDS,
    WAITING_FUNCTIONS,
)
from tests.emulated_gpu.memory import MEMORY

#: Functions that copy host arrays or numbers to the device.
_UPLOADS: Final = frozenset({"array", "asarray"})
#: Namespaces within the namespace.
_NAMESPACES: Final = frozenset({"fft", "lib", "lib.stride_tricks", "linalg", "random"})
#: Types of CuPy's atomic operations, which `at` uses: its errors list them.
_ATOMIC_DTYPES: Final = frozenset({"float32", "float64", "int32", "int64", "uint32", "uint64"})


def is_atomic(dtype: np.dtype) -> bool:
    """Return whether a kernel can reduce arrays of this type; it reduces float16 in float32."""
    return dtype.name in _ATOMIC_DTYPES or dtype.name == "float16"


class DeviceNamespace:
    """A namespace of numpy's functions, restricted to CuPy's names."""

    def __init__(self, module: Any = np, prefix: str = "") -> None:
        self._module = module
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        if not self._prefix and name not in CUPY_NAMES:
            raise AttributeError(
                f"CuPy's namespace has no {name!r}; add it to CUPY_NAMES if it has"
            )
        value = getattr(self._module, name)
        if f"{self._prefix}{name}" in _NAMESPACES:
            return DeviceNamespace(value, f"{self._prefix}{name}.")
        if not callable(value) or isinstance(value, type):
            return value
        return _Function(f"{self._prefix}{name}", value)


class _Function:
    """A function of the namespace; its arrays must be on the device."""

    def __init__(self, name: str, function: Any) -> None:
        self._name = name
        self._function = function

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if extra := MISSING_KEYWORDS.get(self._name, set()) & keywords.keys():
            raise TypeError(f"CuPy's {self._name} takes no {', '.join(sorted(extra))}")
        if self._name in _UPLOADS and not isinstance(args[0], DeviceArray) and np.ndim(args[0]):
            MEMORY.check_not_capturing("a copy from the host")
        if self._name in _UPLOADS and isinstance(args[0], np.ndarray | np.generic):
            args = (DeviceArray(np.array(args[0])), *args[1:])
        if self._name in WAITING_FUNCTIONS:
            count_wait(self._name, None)
        if self._name == "repeat" and isinstance(args[1], DeviceArray):
            raise ValueError("all elements of `repeats` must be given on the host")
        host_keywords = {key: unwrap(value) for key, value in keywords.items()}
        host_args = [unwrap(arg) for arg in args]
        if self._name == "remainder" and host_args[0].dtype.kind == "f":
            x, y = host_args  # CuPy's formula, which gives NaN for an infinite divisor
            return wrap(x - np.floor(x / y) * y)
        if self._name == "power":  # numpy computes a root for a scalar 0.5, and NaN for -inf
            host_args = [array.copy() for array in np.broadcast_arrays(*host_args)]
        result = self._function(*host_args, **host_keywords)
        out = keywords.get("out")
        return out if isinstance(out, DeviceArray) else wrap(result)

    def at(self, array: DeviceArray, index: Any, *values: Any) -> None:
        """Apply a ufunc at indices, also at repeated ones."""
        if self._name not in IN_PLACE_UFUNCS:
            raise NotImplementedError(f"`cupy.{self._name}.at` is not supported yet")
        if array.dtype.name not in _ATOMIC_DTYPES | ({"float16"} if self._name == "add" else set()):
            raise TypeError(f"`cupy.{self._name}.at` does not support {array.dtype}")
        self._function.at(unwrap(array), unwrap(index), *map(unwrap, values))

    def reduce(self, array: DeviceArray, **keywords: Any) -> Any:
        """Reduce an array along an axis with the ufunc."""
        return wrap(self._function.reduce(unwrap(array), **keywords))


#: The array namespace of an emulated GPU.
DEVICE: Final = DeviceNamespace()
