"""Value trees: values as msgpack, with the contents of tensors stored separately.

Tensors, numpy scalars, tensors of strings and very large integers are msgpack extensions. The
extension of a tensor holds its element type, shape, location and, if the memory is not in C order,
the order of its axes. The caller defines locations: a frame of a message, a slot of shared memory,
or the bytes themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Meta
from msgspec.msgpack import Decoder, Ext, encode

from hetero.devices.errors import BlobError
from hetero.scheduler.formats.tensor_entries import (
    DTYPES,
    checked_shape,
    little_endian,
    pack_strings,
    read_only,
    unpack_strings,
)

#: Native element type -> its name.
_NAMES: Final[dict[np.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

#: Stores the contents of a C-contiguous numeric array, possibly empty; returns the location.
Place = Callable[[np.ndarray], Any]
#: Returns a number of elements, at least 1, at a location, flat and read-only; raises BlobError.
Contents = Callable[[Any, np.dtype, int], np.ndarray]

#: Maximum nesting depth of values.
_MAX_DEPTH: Final = 32

#: Types of msgpack extensions.
_TENSOR, _SCALAR, _STRINGS, _INTEGER = range(4)


class _Tensor(NamedTuple):
    dtype: str
    sizes: tuple[int, ...]
    place: Any
    order: tuple[int, ...]


_READ_TENSOR: Final = Decoder(_Tensor)
_READ_INTEGER: Final = Decoder(Annotated[str, Meta(max_length=4096)])


def tree_of(value: Any, place: Place, depth: int = 0) -> Any:
    """Encode a value as a tree.

    `depth`: nesting depth of the value.
    Raises TypeError: it is not an ONNX value; BlobError: it is nested too deep.
    """
    if isinstance(value, np.ndarray):
        return _tensor_tree(_TENSOR, value, place)
    if depth > _MAX_DEPTH:
        raise BlobError(f"a value nested deeper than {_MAX_DEPTH} levels cannot be sent.")
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        return _tensor_tree(_SCALAR, np.asarray(value), place)
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**64
        return int(value) if fits else Ext(_INTEGER, encode(str(value)))
    if isinstance(value, list | tuple):
        return [tree_of(item, place, depth + 1) for item in value]
    if isinstance(value, Mapping):
        trees: dict[str | int, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str | int | np.integer):
                raise TypeError(f"expected map keys of str or int, got {key!r}.")
            plain = str(key) if isinstance(key, str) else int(key)
            trees[plain] = tree_of(item, place, depth + 1)
        return trees
    raise TypeError(f"a {type(value).__name__} cannot be sent: it is not an ONNX value.")


def _tensor_tree(tag: int, array: np.ndarray, place: Place) -> Ext:
    name = _NAMES.get(array.dtype)
    if name is not None and array.flags.c_contiguous:  # the common case
        return Ext(tag, encode((name, array.shape, place(array), ())))
    if array.dtype.kind in "OUS":
        return Ext(_STRINGS, pack_strings(array))
    array = little_endian(array)
    name = _NAMES.get(array.dtype)
    if name is None:
        raise TypeError(f"a tensor of dtype {array.dtype} cannot be sent: not an ONNX type.")
    order = _axis_order(array)
    location = place(np.ascontiguousarray(array.transpose(order) if order else array))
    return Ext(tag, encode(_Tensor(name, array.shape, location, order)))


def _axis_order(array: np.ndarray) -> tuple[int, ...]:
    """Return the axes of an array by descending stride; empty for C order.

    BLAS and numpy add in memory order. A tensor that arrived in another order would give different
    last bits than in a model that is not split.
    """
    if array.ndim < 2 or array.flags.c_contiguous or not array.size:
        return ()
    steps = array.strides
    # The stride of an axis with one element has no meaning; such axes come first.
    axes = sorted(
        range(array.ndim),
        key=lambda i: abs(steps[i]) if array.shape[i] > 1 else 2**63,
        reverse=True,
    )
    wide = [axis for axis in axes if array.shape[axis] > 1]
    return () if wide == sorted(wide) else tuple(axes)


def check_nesting(value: Any, depth: int = 0) -> None:
    """Check the nesting depth and the map keys of a value that was read.

    Raises BlobError: it is nested too deep, or a map key is neither str nor int.
    """
    if depth > _MAX_DEPTH + 1:
        raise BlobError(f"message nested deeper than {_MAX_DEPTH} levels.")
    if isinstance(value, dict):
        if invalid := [key for key in value if type(key) not in (str, int)]:
            raise BlobError(f"message with a map key {invalid[0]!r}; expected str or int.")
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        check_nesting(item, depth + 1)


def decode_extension(tag: int, data: memoryview, contents: Contents) -> Any:
    """Decode an extension and validate everything in it.

    Raises BlobError, TypeError, ValueError: it is invalid.
    """
    if tag == _STRINGS:
        return unpack_strings(data, "message")
    if tag == _INTEGER:
        return int(_READ_INTEGER.decode(data))
    if tag not in (_TENSOR, _SCALAR):
        raise BlobError(f"message with an unknown extension {tag}.")
    tensor = _tensor(_READ_TENSOR.decode(data), contents)
    if tag == _TENSOR:
        return tensor
    if tensor.shape:
        raise BlobError("message with a scalar that has dimensions.")
    return tensor[()]


def _tensor(entry: _Tensor, contents: Contents) -> np.ndarray:
    name, sizes, place, order = entry
    dtype = DTYPES.get(name)
    if type(place) is bytes and dtype is not None and not order:  # the common case
        tensor: np.ndarray = np.ndarray(sizes, dtype, place)
        if tensor.nbytes == len(place):
            return tensor
    shape = checked_shape(sizes, "message")
    if dtype is None:
        raise BlobError(f"message with a tensor of type {name!r}.")
    count = math.prod(shape)
    if not count:
        return read_only(np.empty(shape, dtype))
    flat = contents(place, dtype, count)
    if not order:
        return flat.reshape(shape)
    if sorted(order) != list(range(len(shape))):
        raise BlobError(f"message with a tensor {shape} and an invalid axis order {order!r}.")
    return flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
