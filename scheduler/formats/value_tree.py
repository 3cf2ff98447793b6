"""Values as trees that msgpack can hold, with the contents of tensors apart.

None, booleans, integers, floats, strings and bytes stand for themselves; all else is an array that
starts with a tag. A tensor's entry names its element type, shape, place and, where it is not C's,
the order of its axes in memory. What a place is, is up to whoever writes and reads: an offset, a
frame, the bytes themselves.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from devices.errors import BlobError
from devices.model.element_type import DTYPES as ELEMENT_DTYPES
from scheduler.formats.tensor_entries import (
    as_before,
    axis_order,
    frozen,
    in_memory_order,
    little_endian,
    shape_of,
    strings_of,
    texts_of,
)

#: Tensor element types, by name; strings go apart.
DTYPES: Final[dict[str, np.dtype]] = {
    dtype.name: dtype for dtype in ELEMENT_DTYPES.values() if dtype != np.dtype(object)
}
#: The reverse; byte orders other than the machine's are not in it.
NAMES: Final[dict[np.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

_LIST, _MAP, TENSOR, _SCALAR, _STRINGS, _INTEGER = range(6)


class TreeWriter(ABC):
    """Turns values into trees."""

    #: Values inside values.
    depth = 32

    @abstractmethod
    def place(self, array: np.ndarray) -> Any:
        """Put the contents of a C-contiguous numeric array, maybe empty, somewhere; say where."""

    def tree(self, value: Any, depth: int = 0) -> Any:
        """Return the tree of a value that lies `depth` values deep.

        Raises TypeError: it is no value of ONNX; BlobError: it is nested too deep.
        """
        if depth > self.depth:
            raise BlobError(f"a value nested deeper than {self.depth} cannot be sent.")
        if isinstance(value, np.generic) and not isinstance(value, str | bytes):
            return self._tensor(_SCALAR, np.asarray(value))
        if value is None or isinstance(value, bool | float | str | bytes):
            return value
        if isinstance(value, int):
            fits = -(2**63) <= value < 2**64
            return int(value) if fits else (_INTEGER, str(value))
        if isinstance(value, np.ndarray):
            return self._tensor(TENSOR, value)
        if isinstance(value, list | tuple):
            return (_LIST, *(self.tree(item, depth + 1) for item in value))
        if isinstance(value, Mapping):
            return (_MAP, *self._pairs(value, depth))
        raise TypeError(f"a {type(value).__name__} cannot be sent: it is no value of ONNX.")

    def _pairs(self, mapping: Mapping[Any, Any], depth: int) -> list[Any]:
        pairs: list[Any] = []
        for key, item in mapping.items():
            if isinstance(key, np.integer):
                key = int(key)
            if not isinstance(key, str | int):
                raise TypeError(f"a map's keys are strings or integers; got {key!r}.")
            pairs += (key, self.tree(item, depth + 1))
        return pairs

    def _tensor(self, tag: int, array: np.ndarray) -> tuple[Any, ...]:
        if array.dtype.kind in "OUS":
            return (_STRINGS, array.shape, texts_of(array))
        name = array.dtype.name
        if name not in DTYPES:
            raise TypeError(f"a tensor of dtype {array.dtype} cannot be sent: ONNX has none.")
        array = little_endian(array)
        order = axis_order(array)
        place = self.place(in_memory_order(array, order))
        return (tag, name, array.shape, place, *((order,) if order else ()))


class TreeReader(ABC):
    """Turns trees back into values, trusting nothing in them."""

    #: Values inside values, and a tensor's dimensions.
    depth = 32
    rank = 64

    @abstractmethod
    def contents(self, place: Any, dtype: np.dtype, count: int) -> np.ndarray:
        """Return the `count` > 0 elements at a place, flat and read-only.

        Raises BlobError: there is no such place, or it does not hold that many.
        """

    def value(self, tree: Any, depth: int = 0) -> Any:
        """Return the value of a tree that lies `depth` values deep.

        Raises BlobError: it is the tree of no value, or of one that is nested too deep.
        """
        if depth > self.depth:
            raise BlobError(f"message nested deeper than {self.depth}.")
        if tree is None or isinstance(tree, bool | int | float | str | bytes):
            return tree
        if not isinstance(tree, list) or not tree or type(tree[0]) is not int:
            raise BlobError("message with a value that has no tag.")
        read = _READERS.get(tree[0])
        if read is None:
            raise BlobError(f"message with an unknown tag {tree[0]}.")
        try:
            return read(self, tree[1:], depth)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            if isinstance(error, BlobError):
                raise
            raise BlobError(f"message with a damaged value: {error}.") from error

    def _list(self, items: list[Any], depth: int) -> list[Any]:
        return [self.value(item, depth + 1) for item in items]

    def _map(self, items: list[Any], depth: int) -> dict[str | int, Any]:
        if len(items) % 2:
            raise BlobError("message with a map of half a pair.")
        pairs = zip(items[::2], items[1::2], strict=True)
        return {_key(key): self.value(item, depth + 1) for key, item in pairs}

    def _tensor(self, items: list[Any], depth: int) -> np.ndarray:
        name, sizes, place, *rest = items
        (order,) = rest or ((),)
        dtype, shape = DTYPES.get(name), shape_of(sizes, self.rank, "message")
        if dtype is None:
            raise BlobError(f"message with a tensor of type {name!r}.")
        count = math.prod(shape)
        if not count:
            return frozen(np.empty(shape, dtype))
        flat = self.contents(place, dtype, count)
        if not order:
            return flat.reshape(shape)
        if sorted(order) != list(range(len(shape))):
            raise BlobError(f"message with a tensor {shape} whose axes lie as {order!r}.")
        return as_before(flat.reshape([shape[axis] for axis in order]), order)

    def _scalar(self, items: list[Any], depth: int) -> np.generic:
        found: Any = self._tensor(items, depth)[()]
        if not isinstance(found, np.generic):
            raise BlobError("message with a scalar that has dimensions.")
        return found

    def _strings(self, items: list[Any], depth: int) -> np.ndarray:
        sizes, texts = items
        return strings_of(shape_of(sizes, self.rank, "message"), texts, "message")

    def _integer(self, items: list[Any], depth: int) -> int:
        (digits,) = items
        if not isinstance(digits, str) or len(digits) > 4096:
            raise BlobError("message with a damaged integer.")
        return int(digits)


_READERS: Final[dict[int, Callable[[TreeReader, list[Any], int], Any]]] = {
    _LIST: TreeReader._list,
    _MAP: TreeReader._map,
    TENSOR: TreeReader._tensor,
    _SCALAR: TreeReader._scalar,
    _STRINGS: TreeReader._strings,
    _INTEGER: TreeReader._integer,
}


def _key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise BlobError(f"message with a map key {key!r}.")
    found: str | int = key
    return found
