"""The wire codec: values and messages as msgpack with raw aligned segments, and no pickle.

A message is::

    0   4   magic "HTW" and the version's byte
    4   4   length of the head, little-endian
    8   8   offset of the segments, from the start
    16  …   head: msgpack, a tree of tagged values
    …   …   segments: tensor contents, little-endian, each aligned to 64 bytes

A tensor keeps the order of its axes in memory; one in another order than C's says so. In the
head, None, booleans, integers, floats, strings and bytes stand for themselves; all else is
an array that starts with a tag. Decoded tensors are read-only views of the message.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np

from devices.errors import BlobError
from devices.model.tensor_spec import DTYPES
from scheduler.formats.memory_order import as_before, axis_order, in_memory_order
from scheduler.formats.tensor_entries import (
    frozen,
    little_endian,
    shape_of,
    strings_of,
    texts_of,
)

#: Raised whenever the form changes; other versions are refused by name.
VERSION: Final = 3
_MAGIC: Final = b"HTW"
_PREFIX: Final = struct.Struct("<3sBIQ")
_ALIGNMENT: Final = 64

#: Tensor element types, by name; strings go apart.
_DTYPES: Final[dict[str, np.dtype]] = {
    dtype.name: dtype for dtype in DTYPES.values() if dtype != np.dtype(object)
}

_LIST, _MAP, _TENSOR, _SCALAR, _STRINGS, _INTEGER = range(6)


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """What a message may hold at most.

    Attributes
    ----------
    nbytes : int
        Bytes of the whole message.
    depth : int
        Values inside values.
    rank : int
        Dimensions of a tensor; numpy's own limit.
    """

    nbytes: int = 2**40
    depth: int = 32
    rank: int = 64


DEFAULT_LIMITS: Final = CodecLimits()


def encode(value: Any, *, limits: CodecLimits = DEFAULT_LIMITS) -> bytes:
    """Return `value` as a message.

    Parameters
    ----------
    value : object
        A tensor of any ONNX element type (strings as an object array), a number, string or
        bytes, None, a list, a map with string or integer keys, or any nesting of these.
        Tuples come back as lists.
    limits : CodecLimits
        Only `depth` matters here.

    Raises
    ------
    TypeError
        If some value is of none of these kinds.
    BlobError
        If it is nested deeper than `limits.depth`.
    """
    writer = _Writer(limits)
    head = msgpack.packb(writer.tree(value, 0))
    start = _aligned(_PREFIX.size + len(head))
    parts: list[Any] = [_PREFIX.pack(_MAGIC, VERSION, len(head), start), head]
    position = _PREFIX.size + len(head)
    for offset, segment in writer.segments:
        parts += (bytes(start + offset - position), segment)
        position = start + offset + segment.nbytes
    return b"".join(parts)


def decode(data: bytes | bytearray | memoryview, *, limits: CodecLimits = DEFAULT_LIMITS) -> Any:
    """Return the value of a message; tensors are read-only views of `data`.

    Raises
    ------
    BlobError
        If `data` is no message, one of another version, damaged, or over a limit.
    """
    view = memoryview(data).toreadonly()
    if view.nbytes > limits.nbytes:
        raise BlobError(f"message of {view.nbytes} bytes; at most {limits.nbytes} are taken.")
    if view.nbytes < _PREFIX.size:
        raise BlobError(f"message of {view.nbytes} bytes is cut short, or is not one of ours.")
    magic, version, nbytes, start = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise BlobError(f"not a message: it starts with {magic!r}, wanted {_MAGIC!r}.")
    if version != VERSION:
        raise BlobError(
            f"message of version {version}; this program reads version {VERSION}. Run the same "
            "version on every node."
        )
    if start > view.nbytes and start != _aligned(_PREFIX.size + nbytes):
        raise BlobError(f"message of {view.nbytes} bytes is cut short: segments at {start}.")
    if start < _PREFIX.size + nbytes or _PREFIX.size + nbytes > view.nbytes:
        raise BlobError(f"message of {view.nbytes} bytes is cut short: its head has {nbytes}.")
    try:
        tree = msgpack.unpackb(view[_PREFIX.size : _PREFIX.size + nbytes], strict_map_key=True)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise BlobError(f"message with a damaged head: {error}.") from error
    return _Reader(view[start:], limits).value(tree, 0)


def nbytes_of(value: Any) -> int:
    """Return about how many bytes a value's contents take; strings count their characters."""
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return sum(len(item) if isinstance(item, str | bytes) else 8 for item in value.flat)
        return int(value.nbytes)
    if isinstance(value, Mapping):
        return sum(nbytes_of(item) for item in value.values())
    if isinstance(value, list | tuple):
        return sum(nbytes_of(item) for item in value)
    return 0 if value is None else 8


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


class _Writer:
    """Turns values into a tree, and collects the segments that it points to."""

    def __init__(self, limits: CodecLimits) -> None:
        self._limits = limits
        self._end = 0
        #: (offset from the segments' start, contents)
        self.segments: list[tuple[int, memoryview]] = []

    def tree(self, value: Any, depth: int) -> Any:
        if depth > self._limits.depth:
            raise BlobError(f"a value nested deeper than {self._limits.depth} cannot be sent.")
        if isinstance(value, np.generic) and not isinstance(value, str | bytes):
            return self._tensor(_SCALAR, np.asarray(value))
        if value is None or isinstance(value, bool | float | str | bytes):
            return value
        if isinstance(value, int):
            fits = -(2**63) <= value < 2**64
            return int(value) if fits else [_INTEGER, str(value)]
        if isinstance(value, np.ndarray):
            return self._tensor(_TENSOR, value)
        if isinstance(value, list | tuple):
            return [_LIST, *(self.tree(item, depth + 1) for item in value)]
        if isinstance(value, Mapping):
            return [_MAP, *self._pairs(value, depth)]
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

    def _tensor(self, tag: int, array: np.ndarray) -> list[Any]:
        shape = list(array.shape)
        if array.dtype.kind in "OUS":
            return [_STRINGS, shape, texts_of(array)]
        if array.dtype.name not in _DTYPES:
            raise TypeError(f"a tensor of dtype {array.dtype} cannot be sent: ONNX has none.")
        array = little_endian(array)
        offset, order = self._end, axis_order(array)
        if array.size:
            flat = in_memory_order(array, order).reshape(-1).view(np.uint8)
            self.segments.append((offset, flat.data))
            self._end = _aligned(offset + flat.nbytes)
        return [tag, array.dtype.name, shape, offset, *([list(order)] if order else ())]


class _Reader:
    """Turns a tree back into values, trusting nothing in it."""

    def __init__(self, segments: memoryview, limits: CodecLimits) -> None:
        self._segments = segments
        self._limits = limits
        self._readers: dict[int, Callable[[Sequence[Any], int], Any]] = {
            _LIST: self._list,
            _MAP: self._map,
            _TENSOR: self._tensor,
            _SCALAR: self._scalar,
            _STRINGS: self._strings,
            _INTEGER: self._integer,
        }

    def value(self, tree: Any, depth: int) -> Any:
        if depth > self._limits.depth:
            raise BlobError(f"message nested deeper than {self._limits.depth}.")
        if tree is None or isinstance(tree, bool | int | float | str | bytes):
            return tree
        if not isinstance(tree, list) or not tree or type(tree[0]) is not int:
            raise BlobError("message with a value that has no tag.")
        read = self._readers.get(tree[0])
        if read is None:
            raise BlobError(f"message with an unknown tag {tree[0]}.")
        try:
            return read(tree[1:], depth)
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, BlobError):
                raise
            raise BlobError(f"message with a damaged value: {error}.") from error

    def _list(self, items: Sequence[Any], depth: int) -> list[Any]:
        return [self.value(item, depth + 1) for item in items]

    def _map(self, items: Sequence[Any], depth: int) -> dict[str | int, Any]:
        if len(items) % 2:
            raise BlobError("message with a map of half a pair.")
        pairs = zip(items[::2], items[1::2], strict=True)
        return {_key(key): self.value(item, depth + 1) for key, item in pairs}

    def _tensor(self, items: Sequence[Any], depth: int) -> np.ndarray:
        name, sizes, offset, *rest = items
        (order,) = rest or ((),)
        dtype, shape = _DTYPES.get(name), shape_of(sizes, self._limits.rank, "message")
        if dtype is None or type(offset) is not int or offset < 0 or offset % _ALIGNMENT:
            raise BlobError(f"message with a tensor of type {name!r} at {offset!r}.")
        count = math.prod(shape)
        if not count:
            return frozen(np.empty(shape, dtype))
        end = offset + count * dtype.itemsize
        if end > self._segments.nbytes:
            raise BlobError(
                f"message is cut short: a tensor {shape} of {name} ends at {end}, the segments at "
                f"{self._segments.nbytes}."
            )
        flat = np.frombuffer(self._segments[offset:end], dtype)
        if not order:
            return flat.reshape(shape)
        if sorted(order) != list(range(len(shape))):
            raise BlobError(f"message with a tensor {shape} whose axes lie as {order!r}.")
        return as_before(flat.reshape([shape[axis] for axis in order]), order)

    def _scalar(self, items: Sequence[Any], depth: int) -> np.generic:
        found: Any = self._tensor(items, depth)[()]
        if not isinstance(found, np.generic):
            raise BlobError("message with a scalar that has dimensions.")
        return found

    def _strings(self, items: Sequence[Any], depth: int) -> np.ndarray:
        sizes, texts = items
        return strings_of(shape_of(sizes, self._limits.rank, "message"), texts, "message")

    def _integer(self, items: Sequence[Any], depth: int) -> int:
        (digits,) = items
        if not isinstance(digits, str) or len(digits) > 4096:
            raise BlobError("message with a damaged integer.")
        return int(digits)


def _key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise BlobError(f"message with a map key {key!r}.")
    found: str | int = key
    return found
