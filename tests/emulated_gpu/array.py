"""Emulation of a CuPy array, whose elements numpy cannot read.

It is no ndarray: numpy rejects it, it rejects ndarrays, and it has only the attributes of CuPy's
arrays. `WAITS` counts the operations that make the host wait for the device.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from tests.emulated_gpu.memory import MEMORY

#: Operations that made the host wait for the device, by name.
WAITS: Final[Counter[str]] = Counter()
#: Element types of CuPy's kernels.
DTYPES: Final = frozenset(
    np.dtype(name)
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
        "complex64",
        "complex128",
    )
)
#: Attributes and methods of CuPy's arrays that do not copy elements to the host.
_ATTRIBUTES: Final = frozenset(
    "shape dtype ndim size nbytes itemsize strides".split()  # noqa: SIM905
)
_METHODS: Final = frozenset(
    """
    all any argmax argmin argpartition argsort astype clip conj copy cumprod cumsum diagonal dot
    fill flatten max mean min partition prod ravel repeat reshape round searchsorted sort squeeze
    std sum swapaxes take trace transpose var view
    """.split()  # noqa: SIM905
)


class DeviceArray:
    """An array in emulated device memory."""

    __slots__ = ("__weakref__", "_contents", "device")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, contents: np.ndarray) -> None:
        if contents.dtype not in DTYPES:
            raise TypeError(f"CuPy has no arrays of {contents.dtype}")
        self._contents = contents
        self.device = MEMORY.device
        MEMORY.allocate(self, contents)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. Please use `.get()` to "
            "construct a NumPy array explicitly."
        )

    def __array_function__(self, function: Any, *_: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} of a device's array")

    def __getattr__(self, name: str) -> Any:
        if name in _ATTRIBUTES:
            return getattr(self._contents, name)
        if name in _METHODS:
            return _device_method(name, getattr(contents_of(self), name))
        if name in ("T", "real", "imag"):
            return wrap(getattr(contents_of(self), name))
        raise AttributeError(f"CuPy's arrays have no {name!r}")

    @property
    def flags(self) -> Any:
        return _Flags(self._contents)

    def get(self) -> np.ndarray:
        """Copy to the host."""
        return count_wait("get", contents_of(self).copy())

    def item(self, *index: int) -> Any:
        return count_wait("item", contents_of(self).item(*index))

    def tolist(self) -> Any:
        return count_wait("tolist", contents_of(self).tolist())

    def nonzero(self) -> Any:
        return count_wait("nonzero", wrap(contents_of(self).nonzero()))

    def __bool__(self) -> bool:
        return count_wait("bool", bool(contents_of(self)))

    def __int__(self) -> int:
        return count_wait("int", int(contents_of(self)))

    def __float__(self) -> float:
        return count_wait("float", float(contents_of(self)))

    def __index__(self) -> int:
        return count_wait("index", operator.index(contents_of(self)))

    def __len__(self) -> int:
        return len(self._contents)

    def __iter__(self) -> Iterator[Any]:
        return map(wrap, contents_of(self))

    def __repr__(self) -> str:
        return f"DeviceArray({self._contents!r})"

    def __getitem__(self, index: Any) -> Any:
        _count_mask_waits(index)
        return wrap(contents_of(self)[unwrap(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        _count_mask_waits(index)
        contents_of(self)[unwrap(index)] = unwrap(value)


class _Flags:
    """The flags of a CuPy array, which has no `writeable`."""

    def __init__(self, contents: np.ndarray) -> None:
        self.c_contiguous = contents.flags.c_contiguous
        self.f_contiguous = contents.flags.f_contiguous
        self.owndata = contents.flags.owndata


def contents_of(array: DeviceArray) -> np.ndarray:
    """Return an array's elements; ValueError unless its device is current."""
    if array.device != MEMORY.device:
        raise ValueError(f"an array of device {array.device} on device {MEMORY.device}")
    return array._contents


def unwrap(value: Any) -> Any:
    """Replace device arrays in an argument by their elements; TypeError for host arrays."""
    if isinstance(value, DeviceArray):
        return contents_of(value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(map(unwrap, value))
    if isinstance(value, slice):
        return slice(value.start, value.stop, value.step)
    return value


def wrap(result: Any) -> Any:
    """Replace arrays and scalars in a result by device arrays; CuPy has no scalars."""
    if isinstance(result, np.ndarray | np.generic):
        return DeviceArray(np.asarray(result))
    if isinstance(result, tuple | list):
        return tuple(map(wrap, result)) if isinstance(result, tuple) else [*map(wrap, result)]
    return result


def count_wait(operation: str, result: Any) -> Any:
    MEMORY.check_not_capturing(operation)
    WAITS[operation] += 1
    return result


def _count_mask_waits(index: Any) -> None:
    """Count a wait if an index contains a mask, whose sum is a size of the result."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, DeviceArray) and part.dtype == bool:
            count_wait("mask", None)
        elif isinstance(part, list):
            MEMORY.check_not_capturing("a list as an index")


def _device_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        if name == "repeat" and any(isinstance(a, DeviceArray) for a in args):
            raise ValueError("all elements of `repeats` must be given on the host")
        host_keywords = {key: unwrap(value) for key, value in keywords.items()}
        return wrap(function(*map(unwrap, args), **host_keywords))

    return call


_BINARY: Final = "add sub mul truediv floordiv mod pow matmul lshift rshift and or xor".split()  # noqa: SIM905
_OTHERS: Final = "divmod lt le eq ne gt ge neg pos abs invert".split()  # noqa: SIM905


def _operators() -> None:
    """Give the class the operators of arrays."""
    for name in [*_BINARY, *_OTHERS, *(f"r{name}" for name in _BINARY)]:
        setattr(DeviceArray, f"__{name}__", _operator(f"__{name}__"))
    for name in _BINARY:
        if name != "matmul":
            setattr(DeviceArray, f"__i{name}__", _in_place(f"__i{name}__"))


def _operator(name: str) -> Callable[..., Any]:
    def method(self: DeviceArray, *others: Any) -> Any:
        return wrap(getattr(contents_of(self), name)(*map(unwrap, others)))

    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: DeviceArray, other: Any) -> DeviceArray:
        getattr(contents_of(self), name)(unwrap(other))
        return self

    return method


_operators()
