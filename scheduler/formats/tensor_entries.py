"""Tensors in messages and blobs: element types, the order of bytes, and checks of what was read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec.msgpack import Decoder, encode

from hetero.devices.errors import BlobError
from hetero.devices.model.element_type import DTYPES as ELEMENT_DTYPES
from hetero.scheduler.formats.unpack import unpack

#: Tensor element types, by name; strings go apart.
DTYPES: Final[dict[str, np.dtype]] = {
    dtype.name: dtype for dtype in ELEMENT_DTYPES.values() if dtype != np.dtype(object)
}
#: numpy's own limit.
_MAX_RANK: Final = 64
#: Shape and texts.
_STRINGS: Final = Decoder(tuple[list[int], list[Any]])


def packed_strings(array: np.ndarray) -> bytes:
    """Return a tensor of strings as msgpack; TypeError if it is of objects that are no strings."""
    texts = array.ravel().tolist()
    for text in texts:
        if not isinstance(text, str | bytes):
            raise TypeError(f"a tensor of objects holds strings; got {type(text).__name__}.")
    return encode(
        (array.shape, texts), enc_hook=lambda it: str(it) if isinstance(it, str) else bytes(it)
    )


def little_endian(array: np.ndarray) -> np.ndarray:
    """Return the array with its bytes in the order in which they are written."""
    if array.dtype.byteorder == ">":
        return array.astype(array.dtype.newbyteorder("<"))
    return array


def raw(array: np.ndarray) -> memoryview:
    """Return an array's bytes as they are written."""
    return np.ascontiguousarray(little_endian(array)).reshape(-1).view(np.uint8).data


def shape_of(sizes: Sequence[int], where: str) -> tuple[int, ...]:
    """Return a shape that was read, checked."""
    if len(sizes) > _MAX_RANK or not all(0 <= size < 2**62 for size in sizes):
        raise BlobError(f"{where}: a tensor of shape {str(sizes)[:80]}.")
    return tuple(sizes)


def strings_of(data: memoryview, where: str) -> np.ndarray:
    """Return the read-only tensor of `packed_strings`, checked."""
    sizes, texts = unpack(data, _STRINGS, where)
    shape = shape_of(sizes, where)
    if math.prod(shape) != len(texts):
        raise BlobError(f"{where}: a tensor of strings that do not fill {shape}.")
    if any(not isinstance(text, str | bytes) for text in texts):
        raise BlobError(f"{where}: a tensor of strings that holds something else.")
    array = np.empty(len(texts), object)
    array[:] = texts
    return frozen(array.reshape(shape))


def frozen(array: np.ndarray) -> np.ndarray:
    """Return the array, made read-only."""
    array.setflags(write=False)
    return array
