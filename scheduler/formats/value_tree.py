"""Values as trees that msgpack can hold, with the contents of tensors apart.

What msgpack has itself stands for itself; a tensor, a scalar of numpy's, strings and an integer of
very many digits are extensions. A tensor's has msgpack of its element type, shape, place and, where
it is not C's, the order of its axes in memory. What a place is, is up to whoever writes and reads:
a frame, a slot of shared memory, the bytes themselves.
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
    frozen,
    little_endian,
    packed_strings,
    shape_of,
    strings_of,
)

#: Names of element types; byte orders other than the machine's are not in it.
_NAMES: Final[dict[np.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

#: Puts the contents of a C-contiguous numeric array, maybe empty, somewhere; says where.
Place = Callable[[np.ndarray], Any]
#: Returns so many elements > 0 at a place, flat and read-only; BlobError where they are not there.
Contents = Callable[[Any, np.dtype, int], np.ndarray]

#: Values inside values.
_DEPTH: Final = 32

#: Types of extensions.
_TENSOR, _SCALAR, _STRINGS, _INTEGER = range(4)


class _Tensor(NamedTuple):
    dtype: str
    sizes: tuple[int, ...]
    place: Any
    order: tuple[int, ...]


_READ_TENSOR: Final = Decoder(_Tensor)
_READ_INTEGER: Final = Decoder(Annotated[str, Meta(max_length=4096)])


def tree_of(value: Any, place: Place, depth: int = 0) -> Any:
    """Return the tree of a value that lies `depth` values deep.

    Raises TypeError: it is no value of ONNX; BlobError: it is nested too deep.
    """
    if isinstance(value, np.ndarray):
        return _tensor_tree(_TENSOR, value, place)
    if depth > _DEPTH:
        raise BlobError(f"a value nested deeper than {_DEPTH} cannot be sent.")
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
                raise TypeError(f"a map's keys are strings or integers; got {key!r}.")
            plain = str(key) if isinstance(key, str) else int(key)
            trees[plain] = tree_of(item, place, depth + 1)
        return trees
    raise TypeError(f"a {type(value).__name__} cannot be sent: it is no value of ONNX.")


def _tensor_tree(tag: int, array: np.ndarray, place: Place) -> Ext:
    name = _NAMES.get(array.dtype)
    if name is not None and array.flags.c_contiguous:  # most by far
        return Ext(tag, encode((name, array.shape, place(array), ())))
    if array.dtype.kind in "OUS":
        return Ext(_STRINGS, packed_strings(array))
    array = little_endian(array)
    name = _NAMES.get(array.dtype)
    if name is None:
        raise TypeError(f"a tensor of dtype {array.dtype} cannot be sent: ONNX has none.")
    order = _axis_order(array)
    placed = place(np.ascontiguousarray(array.transpose(order) if order else array))
    return Ext(tag, encode(_Tensor(name, array.shape, placed, order)))


def _axis_order(array: np.ndarray) -> tuple[int, ...]:
    """Return an array's axes by their steps in memory, longest first; empty for C's own order.

    BLAS and numpy's reductions add in the order in which memory lies: a tensor that arrived in
    another one would give other last bits than in a model that is not cut.
    """
    if array.ndim < 2 or array.flags.c_contiguous or not array.size:
        return ()
    steps = array.strides
    # An axis of one element takes no steps; in front it is out of the others' way.
    axes = sorted(
        range(array.ndim),
        key=lambda i: abs(steps[i]) if array.shape[i] > 1 else 2**63,
        reverse=True,
    )
    wide = [axis for axis in axes if array.shape[axis] > 1]
    return () if wide == sorted(wide) else tuple(axes)


def check_nesting(value: Any, depth: int = 0) -> None:
    """Check the lists and maps of a value that was read.

    Raises BlobError: it is nested too deep, or has a map with other keys than values have.
    """
    if depth > _DEPTH + 1:
        raise BlobError(f"message nested deeper than {_DEPTH}.")
    if isinstance(value, dict):
        if wrong := [key for key in value if type(key) not in (str, int)]:
            raise BlobError(f"message with a map key {wrong[0]!r}.")
        value = value.values()
    elif not isinstance(value, list):
        return
    for item in value:
        check_nesting(item, depth + 1)


def extended(tag: int, data: memoryview, contents: Contents) -> Any:
    """Return the value of an extension, trusting nothing in it.

    Raises BlobError, TypeError, ValueError: it is that of no value.
    """
    if tag == _STRINGS:
        return strings_of(data, "message")
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
    if type(place) is bytes and dtype is not None and not order:  # most by far
        tensor: np.ndarray = np.ndarray(sizes, dtype, place)
        if tensor.nbytes == len(place):
            return tensor
    shape = shape_of(sizes, "message")
    if dtype is None:
        raise BlobError(f"message with a tensor of type {name!r}.")
    count = math.prod(shape)
    if not count:
        return frozen(np.empty(shape, dtype))
    flat = contents(place, dtype, count)
    if not order:
        return flat.reshape(shape)
    if sorted(order) != list(range(len(shape))):
        raise BlobError(f"message with a tensor {shape} whose axes lie as {order!r}.")
    return flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))
