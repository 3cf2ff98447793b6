"""The wire codec: values and messages as msgpack with raw aligned segments, and no pickle.

A message is::

    0   4   magic "HTW" and the version's byte
    4   4   length of the head, little-endian
    8   8   offset of the segments, from the start
    16  …   head: msgpack, a tree of tagged values
    …   …   segments: tensor contents, little-endian, each aligned to 64 bytes

The trees are those of `value_tree`, the place of a tensor its offset in the segments. Decoded
tensors are read-only views of the message.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack
import numpy as np

from devices.errors import BlobError
from devices.plugin.remote import RemoteTensor
from scheduler.formats.msgpack_check import unpack
from scheduler.formats.value_tree import TreeReader, TreeWriter

#: Raised whenever the form changes; other versions are refused by name.
VERSION: Final = 3
_MAGIC: Final = b"HTW"
_PREFIX: Final = struct.Struct("<3sBIQ")
_ALIGNMENT: Final = 64


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
    head = msgpack.packb(writer.tree(value))
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
    tree = unpack(view[_PREFIX.size : _PREFIX.size + nbytes], "message's head")
    return _Reader(view[start:], limits).value(tree)


def nbytes_of(value: Any) -> int:
    """Return about how many bytes a value's contents take; strings count their characters."""
    # What is asked most often, first: to ask for an abstract class takes as long as the rest.
    if type(value) is dict:
        value = value.values()
    elif isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return sum(len(item) if isinstance(item, str | bytes) else 8 for item in value.flat)
        return value.nbytes
    elif not isinstance(value, (list, tuple)):
        if isinstance(value, Mapping):
            value = value.values()
        elif isinstance(value, RemoteTensor):
            return value.nbytes
        else:
            return 0 if value is None else 8
    total = 0
    for item in value:
        if type(item) is np.ndarray and not item.dtype.hasobject:
            total += item.nbytes
        else:
            total += nbytes_of(item)
    return total


def _aligned(position: int) -> int:
    return -(-position // _ALIGNMENT) * _ALIGNMENT


class _Writer(TreeWriter):
    """Collects the contents of tensors as segments."""

    def __init__(self, limits: CodecLimits) -> None:
        self.depth = limits.depth
        self._end = 0
        #: (offset from the segments' start, contents)
        self.segments: list[tuple[int, memoryview]] = []

    def place(self, array: np.ndarray) -> int:
        offset = self._end
        if array.size:
            self.segments.append((offset, array.reshape(-1).view(np.uint8).data))
            self._end = _aligned(offset + array.nbytes)
        return offset


class _Reader(TreeReader):
    """Finds the contents of tensors in the segments."""

    def __init__(self, segments: memoryview, limits: CodecLimits) -> None:
        self.depth, self.rank = limits.depth, limits.rank
        self._segments = segments

    def contents(self, place: Any, dtype: np.dtype, count: int) -> np.ndarray:
        if type(place) is not int or place < 0 or place % _ALIGNMENT:
            raise BlobError(f"message with a tensor at {str(place)[:80]}.")
        end = place + count * dtype.itemsize
        if end > self._segments.nbytes:
            raise BlobError(
                f"message is cut short: a tensor of {count} {dtype} ends at {end}, the segments at "
                f"{self._segments.nbytes}."
            )
        return np.frombuffer(self._segments[place:end], dtype)
