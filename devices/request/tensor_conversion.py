"""Checks and lossless conversions of values that a user passes for a port."""

from __future__ import annotations

import copy as copying
from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np

from hetero.devices.errors import TensorShapeError, TensorTypeError
from hetero.devices.model.element_type import EXTENDED_DTYPES
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteTensor
from hetero.devices.request.tensor import Tensor, as_array, as_text

#: Kind of numbers -> the kinds that it may be converted to.
_CASTABLE: Final = {"b": "bif", "i": "if", "f": "fc", "c": "c"}
#: Types that numpy copies; arrays of all other values may share memory with them.
_COPIED_TYPES: Final = (list, tuple, int, float, complex, str, bytes)


def check_tensor(value: Any, spec: TensorSpec, role: str) -> Value:
    """Return `value` if it fits the port without conversion, for shared memory.

    Raises TensorTypeError or TensorShapeError if it does not fit.
    """
    if value is not None and not spec.is_tensor:
        return value
    array = value if isinstance(value, np.ndarray | RemoteTensor) else _read(value, spec, role)
    if array.dtype != spec.dtype and not (spec.dtype == object and array.dtype.kind in "UST"):
        raise TensorTypeError(
            f"{role} {spec.name!r}: expected {spec}, got dtype {array.dtype}. Shared memory cannot "
            f"be converted; pass array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    _check_shape(array, spec, role)
    return array


def convert(value: Any, spec: TensorSpec, *, copy: bool) -> Value:
    """Return `value` as a contiguous array in native byte order, of the port's type and shape.

    Numbers and lists get the port's type. Arrays (objects with ``__array__``, a buffer or
    ``__dlpack__``) are cast if no value changes except by rounding: integers to other integers and
    to floats, floats to other floats. With `copy`, the result shares no memory with `value`.

    Raises TensorTypeError or TensorShapeError if the value does not fit.
    """
    if isinstance(value, Tensor):
        value = value.content()
    if type(value) is np.ndarray:
        dtype = spec.dtype
        if (
            dtype is not None
            and value.dtype == dtype
            and not dtype.hasobject
            and spec.accepts(value.shape)
            and value.flags.c_contiguous
        ):
            return value.copy() if copy else value
    elif isinstance(value, RemoteTensor):
        return check_tensor(value, spec, "input")
    if spec.type.startswith("optional("):
        inner = TensorSpec(spec.name, spec.type[len("optional(") : -1], spec.shape)
        return None if value is None else convert(value, inner, copy=copy)
    if spec.type.startswith("seq("):
        return _sequence(value, spec, copy)
    if not spec.is_tensor or spec.dtype is None:
        return copying.deepcopy(value) if copy else value
    original = _read(value, spec, "input")
    array = _cast(original, spec, from_array=hasattr(value, "dtype"))
    _check_shape(array, spec, "input")
    # np.ascontiguousarray would make a scalar one-dimensional.
    dense = np.asarray(array, order="C")
    if copy and not isinstance(value, _COPIED_TYPES) and np.may_share_memory(dense, original):
        dense = dense.copy()
    return dense


def _sequence(value: Any, spec: TensorSpec, copy: bool) -> Value:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TensorTypeError(
            f"input {spec.name!r}: expected {spec.type} as a list, got {type(value).__name__}.",
            port=spec.name,
        )
    inner = spec.type[len("seq(") : -1]
    return [
        convert(item, TensorSpec(f"{spec.name}[{i}]", inner), copy=copy)
        for i, item in enumerate(value)
    ]


def _read(value: Any, spec: TensorSpec, role: str) -> np.ndarray:
    """Return a value as an array that shares the value's memory if possible."""
    if value is None:
        raise TensorTypeError(
            f"{role} {spec.name!r}: expected an array of {spec}, got None.", port=spec.name
        )
    try:
        return as_array(value)
    except ValueError as error:
        raise TensorShapeError(
            f"{role} {spec.name!r}: expected {spec}, got a nested list of irregular shape: "
            f"{error}.",
            port=spec.name,
        ) from error
    except (TypeError, RuntimeError, BufferError) as error:
        raise TensorTypeError(
            f"{role} {spec.name!r}: expected {spec}, got a {type(value).__name__} that numpy "
            f"cannot read: {error}. Pass a copy in host memory.",
            port=spec.name,
        ) from error


def _cast(array: np.ndarray, spec: TensorSpec, *, from_array: bool) -> np.ndarray:
    dtype = spec.dtype
    assert dtype is not None
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == dtype and dtype.kind != "O":
        return array
    if dtype.kind == "O":
        return _strings(array, spec)
    source, target = _kind(array.dtype), _kind(dtype)
    if array.size == 0 and not from_array:  # an empty list has no element type
        return array.astype(dtype)
    if target not in _CASTABLE.get(source, ""):
        raise TensorTypeError(
            f"input {spec.name!r}: expected {spec}, got dtype {array.dtype}, whose conversion "
            f"would lose information. To convert anyway, pass array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if not np.can_cast(array.dtype, dtype) and not _is_lossless(cast, array, target):
        raise TensorTypeError(
            f"input {spec.name!r}: expected {spec}, got dtype {array.dtype} with values outside "
            f"the range of {dtype}. To convert anyway, pass array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    return cast


def _is_lossless(cast: np.ndarray, array: np.ndarray, kind: str) -> bool:
    """Return whether a cast to a kind of numbers changed no value, except by rounding."""
    if kind == "i":
        has_same_signs = np.array_equal(cast < 0, array < 0)
        return has_same_signs and np.array_equal(cast.astype(array.dtype), array)
    finite = np.isfinite(cast)
    return bool(finite.all()) or np.array_equal(finite, np.isfinite(array))


def _strings(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    try:
        if array.dtype.kind in "USTO":
            return as_text(array)
        raise TensorTypeError(f"expected an array of str, got {array.dtype}.")
    except TensorTypeError as error:
        raise TensorTypeError(f"input {spec.name!r}: {error}", port=spec.name) from error


def _kind(dtype: np.dtype) -> str:
    if dtype in EXTENDED_DTYPES:
        return "i" if dtype.name.startswith(("int", "uint")) else "f"
    return "i" if dtype.kind == "u" else dtype.kind


def _check_shape(array: np.ndarray | RemoteTensor, spec: TensorSpec, role: str) -> None:
    if not spec.accepts(array.shape):
        sizes = [size for size in spec.shape or () if isinstance(size, int)]
        if len(array.shape) != len(spec.shape or ()):
            fix = "Add or remove dimensions, as in array.reshape(...) or array[None]."
        elif len(sizes) == len(spec.shape or ()) and prod(sizes) != prod(array.shape):
            fix = "Resize the data, or set other shapes with model.reshape(...)."
        else:
            fix = "Reshape the array, as in array.reshape(...), or transpose it."
        raise TensorShapeError(
            f"{role} {spec.name!r}: expected {spec}, got shape {list(array.shape)}. {fix}",
            port=spec.name,
        )


def _dtype_text(spec: TensorSpec) -> str:
    assert spec.dtype is not None
    if spec.dtype == object:
        return "object"
    return f"ml_dtypes.{spec.dtype}" if spec.dtype in EXTENDED_DTYPES else f"numpy.{spec.dtype}"
