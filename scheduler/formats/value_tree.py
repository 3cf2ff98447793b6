"""Values as trees that msgpack can hold, with the contents of tensors apart.

None, booleans, integers, floats, strings, bytes and maps stand for themselves; all else is an array
that starts with a tag. A tensor's entry names its element type, shape, place and, where it is not
C's, the order of its axes in memory. What a place is, is up to whoever writes and reads: an offset,
a frame, the bytes themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from devices.errors import BlobError
from scheduler.formats.tensor_entries import (
    DTYPES,
    frozen,
    little_endian,
    shape_of,
    strings_of,
    texts_of,
)

#: Names of element types; byte orders other than the machine's are not in it.
NAMES: Final[dict[np.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

#: Puts the contents of a C-contiguous numeric array, maybe empty, somewhere; says where.
Place = Callable[[np.ndarray], Any]
#: Returns so many elements > 0 at a place, flat and read-only; BlobError where they are not there.
Contents = Callable[[Any, np.dtype, int], np.ndarray]

#: Values inside values.
_DEPTH: Final = 32

_LIST, TENSOR, _SCALAR, _STRINGS, _INTEGER = range(5)


def tree_of(value: Any, place: Place, depth: int = 0) -> Any:
    """Return the tree of a value that lies `depth` values deep.

    Raises TypeError: it is no value of ONNX; BlobError: it is nested too deep.
    """
    if depth > _DEPTH:
        raise BlobError(f"a value nested deeper than {_DEPTH} cannot be sent.")
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        return _tensor_tree(_SCALAR, np.asarray(value), place)
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        fits = -(2**63) <= value < 2**64
        return int(value) if fits else (_INTEGER, str(value))
    if isinstance(value, np.ndarray):
        return _tensor_tree(TENSOR, value, place)
    if isinstance(value, list | tuple):
        return (_LIST, *(tree_of(item, place, depth + 1) for item in value))
    if isinstance(value, Mapping):
        trees: dict[str | int, Any] = {}
        for key, item in value.items():
            if not isinstance(key, str | int | np.integer):
                raise TypeError(f"a map's keys are strings or integers; got {key!r}.")
            plain = str(key) if isinstance(key, str) else int(key)
            trees[plain] = tree_of(item, place, depth + 1)
        return trees
    raise TypeError(f"a {type(value).__name__} cannot be sent: it is no value of ONNX.")


def _tensor_tree(tag: int, array: np.ndarray, place: Place) -> tuple[Any, ...]:
    if array.dtype.kind in "OUS":
        return (_STRINGS, array.shape, texts_of(array))
    name = array.dtype.name
    if name not in DTYPES:
        raise TypeError(f"a tensor of dtype {array.dtype} cannot be sent: ONNX has none.")
    array = little_endian(array)
    order = _axis_order(array)
    placed = place(np.ascontiguousarray(array.transpose(order) if order else array))
    return (tag, name, array.shape, placed, *((order,) if order else ()))


def _axis_order(array: np.ndarray) -> tuple[int, ...]:
    """Return an array's axes by their steps in memory, longest first; empty for C's own order.

    BLAS and numpy's reductions add in the order in which memory lies: a tensor that arrived in
    another one would give other last bits than in a model that is not cut.
    """
    if array.ndim < 2 or array.flags.c_contiguous or not array.size:
        return ()
    steps = array.strides
    # An axis of one element takes no steps; in front it is out of the others' way.
    axes = sorted(range(array.ndim), key=lambda i: abs(steps[i]) if array.shape[i] > 1 else 2**63,
                  reverse=True)  # fmt: skip
    wide = [axis for axis in axes if array.shape[axis] > 1]
    return () if wide == sorted(wide) else tuple(axes)


def value_of(tree: Any, contents: Contents, depth: int = 0) -> Any:
    """Return the value of a tree that lies `depth` values deep, trusting nothing in it.

    Raises BlobError, TypeError, ValueError, OverflowError: it is the tree of no value, or of one
        that is nested too deep.
    """
    if depth > _DEPTH:
        raise BlobError(f"message nested deeper than {_DEPTH}.")
    if tree is None or isinstance(tree, bool | int | float | str | bytes):
        return tree
    if isinstance(tree, dict):
        return {_key(key): value_of(item, contents, depth + 1) for key, item in tree.items()}
    if not isinstance(tree, list) or not tree or type(tree[0]) is not int:
        raise BlobError("message with a value that has no tag.")
    tag, *items = tree
    if tag == _LIST:
        return [value_of(item, contents, depth + 1) for item in items]
    if tag == TENSOR:
        return _tensor(items, contents)
    if tag == _SCALAR:
        found: Any = _tensor(items, contents)[()]
        if not isinstance(found, np.generic):
            raise BlobError("message with a scalar that has dimensions.")
        return found
    if tag == _STRINGS:
        sizes, texts = items
        return strings_of(sizes, texts, "message")
    if tag == _INTEGER:
        (digits,) = items
        if not isinstance(digits, str) or len(digits) > 4096:
            raise BlobError("message with a damaged integer.")
        return int(digits)
    raise BlobError(f"message with an unknown tag {tag}.")


def _tensor(items: list[Any], contents: Contents) -> np.ndarray:
    name, sizes, place, *rest = items
    (order,) = rest or ((),)
    dtype, shape = DTYPES.get(name), shape_of(sizes, "message")
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


def _key(key: Any) -> str | int:
    if type(key) not in (str, int):
        raise BlobError(f"message with a map key {key!r}.")
    found: str | int = key
    return found
