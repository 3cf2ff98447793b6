"""A device's array, emulated: its elements are out of the host's reach, as CuPy's are.

It is no ndarray. Numpy refuses it, it refuses ndarrays, and it has only what CuPy's arrays have.
What makes the host wait for the device is recorded in `WAITS`, copies to and from it in `COPIES`.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from tests.emulated_gpu.memory import MEMORY

#: What made the host wait for the device, by name.
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
#: Attributes and methods of CuPy's arrays that give no array's elements to the host.
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
    """An array in device memory; `contents` is for the emulation alone."""

    __slots__ = ("__weakref__", "_contents", "device")
    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, contents: np.ndarray) -> None:
        if contents.dtype not in DTYPES:
            raise TypeError(f"CuPy has no arrays of {contents.dtype}")
        self._contents = contents
        self.device = MEMORY.device
        MEMORY.hold(self, contents)

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
            return _on_device(name, getattr(contents_of(self), name))
        if name in ("T", "real", "imag"):
            return wrapped(getattr(contents_of(self), name))
        raise AttributeError(f"CuPy's arrays have no {name!r}")

    @property
    def flags(self) -> Any:
        return _Flags(self._contents)

    def get(self) -> np.ndarray:
        """Copy to the host."""
        return _waited("get", contents_of(self).copy())

    def item(self, *index: int) -> Any:
        return _waited("item", contents_of(self).item(*index))

    def tolist(self) -> Any:
        return _waited("tolist", contents_of(self).tolist())

    def nonzero(self) -> Any:
        return _waited("nonzero", wrapped(contents_of(self).nonzero()))

    def __bool__(self) -> bool:
        return _waited("bool", bool(contents_of(self)))

    def __int__(self) -> int:
        return _waited("int", int(contents_of(self)))

    def __float__(self) -> float:
        return _waited("float", float(contents_of(self)))

    def __index__(self) -> int:
        return _waited("index", operator.index(contents_of(self)))

    def __len__(self) -> int:
        return len(self._contents)

    def __iter__(self) -> Iterator[Any]:
        return map(wrapped, contents_of(self))

    def __repr__(self) -> str:
        return f"DeviceArray({self._contents!r})"

    def __getitem__(self, index: Any) -> Any:
        _note_masks(index)
        return wrapped(contents_of(self)[unwrapped(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        _note_masks(index)
        contents_of(self)[unwrapped(index)] = unwrapped(value)


class _Flags:
    """What CuPy tells of an array's layout; whether it may be written to it does not know."""

    def __init__(self, contents: np.ndarray) -> None:
        self.c_contiguous = contents.flags.c_contiguous
        self.f_contiguous = contents.flags.f_contiguous
        self.owndata = contents.flags.owndata


def contents_of(array: DeviceArray) -> np.ndarray:
    """Return an array's elements, for a kernel that runs on its device."""
    if array.device != MEMORY.device:
        raise ValueError(f"an array of device {array.device} on device {MEMORY.device}")
    return array._contents


def unwrapped(value: Any) -> Any:
    """Return an argument with the elements of device arrays; host arrays are refused."""
    if isinstance(value, DeviceArray):
        return contents_of(value)
    if isinstance(value, np.ndarray):
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(map(unwrapped, value))
    if isinstance(value, slice):
        return slice(value.start, value.stop, value.step)
    return value


def wrapped(result: Any) -> Any:
    """Return a result with arrays on the device; CuPy has no scalars of its own."""
    if isinstance(result, np.ndarray | np.generic):
        return DeviceArray(np.asarray(result))
    if isinstance(result, tuple | list):
        return tuple(map(wrapped, result)) if isinstance(result, tuple) else [*map(wrapped, result)]
    return result


def _waited(what: str, result: Any) -> Any:
    WAITS[what] += 1
    return result


def _note_masks(index: Any) -> None:
    """A mask's number of elements shapes the result: the host waits for it."""
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, DeviceArray) and part.dtype == bool:
            WAITS["mask"] += 1


def _on_device(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **keywords: Any) -> Any:
        if name == "repeat" and any(isinstance(a, DeviceArray) for a in args):
            raise ValueError("all elements of `repeats` must be given on the host")
        given = {key: unwrapped(value) for key, value in keywords.items()}
        return wrapped(function(*map(unwrapped, args), **given))

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
        return wrapped(getattr(contents_of(self), name)(*map(unwrapped, others)))

    return method


def _in_place(name: str) -> Callable[..., Any]:
    def method(self: DeviceArray, other: Any) -> DeviceArray:
        getattr(contents_of(self), name)(unwrapped(other))
        return self

    return method


_operators()
