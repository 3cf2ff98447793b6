"""Tensors in messages and blobs: element types, byte order, and validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.msgpack import Decoder, encode

from hetero.devices.errors import BlobError
from hetero.devices.model.element_type import DTYPES as ELEMENT_DTYPES
from hetero.scheduler.formats.unpack import unpack

#: Element types by name, without strings.
DTYPES: Final[dict[str, np.dtype]] = {
    dtype.name: dtype for dtype in ELEMENT_DTYPES.values() if dtype != np.dtype(object)
}
#: Maximum rank of numpy arrays.
_MAX_RANK: Final = 64
#: Shape and elements.
_STRINGS: Final = Decoder(tuple[list[int], list[Any]])


def pack_strings(array: np.ndarray) -> bytes:
    """Encode a tensor of strings as msgpack; raise TypeError for other objects."""
    texts = array.ravel().tolist()
    for text in texts:
        if not isinstance(text, str | bytes):
            raise TypeError(f"expected strings in a tensor of objects, got {type(text).__name__}.")
    return encode(
        (array.shape, texts), enc_hook=lambda it: str(it) if isinstance(it, str) else bytes(it)
    )


def little_endian(array: np.ndarray) -> np.ndarray:
    """Return the array in little-endian byte order."""
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("<"))
    return array


def raw_bytes(array: np.ndarray) -> memoryview:
    """Return the bytes of an array, contiguous and little-endian."""
    return np.ascontiguousarray(little_endian(array)).reshape(-1).view(np.uint8).data


def checked_shape(sizes: Sequence[int], where: str) -> tuple[int, ...]:
    """Return a shape that was read; raise BlobError if it is invalid."""
    if len(sizes) > _MAX_RANK or not all(0 <= size < 2**62 for size in sizes):
        raise BlobError(f"{where}: invalid shape {str(sizes)[:80]} of a tensor.")
    return tuple(sizes)


def unpack_strings(data: memoryview, where: str) -> np.ndarray:
    """Decode the result of `pack_strings` as a read-only tensor; raise BlobError if invalid."""
    sizes, texts = unpack(data, _STRINGS, where)
    shape = checked_shape(sizes, where)
    if math.prod(shape) != len(texts):
        raise BlobError(f"{where}: {len(texts)} strings in a tensor of shape {shape}.")
    if any(not isinstance(text, str | bytes) for text in texts):
        raise BlobError(f"{where}: a tensor of strings contains other values.")
    array = np.empty(len(texts), object)
    array[:] = texts
    return read_only(array.reshape(shape))


def read_only(array: np.ndarray) -> np.ndarray:
    """Make an array read-only and return it."""
    array.setflags(write=False)
    return array
