"""Values that a user gives for a port: checked, and converted where nothing is lost."""

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
from hetero.devices.request.tensor import Tensor, array_of, as_text

#: Kind of element -> the kinds it may become.
_CASTABLE: Final = {"b": "bif", "i": "if", "f": "fc", "c": "c"}
#: What numpy reads into memory of its own; all else may share its memory with the array.
_ALWAYS_READ: Final = (list, tuple, int, float, complex, str, bytes)


def check_tensor(value: Any, spec: TensorSpec, role: str) -> Value:
    """Return `value` if it fits the port exactly, without any conversion: for shared memory.

    TensorTypeError and TensorShapeError name the port, what it has and what was given.
    """
    if value is not None and not spec.is_tensor:
        return value
    array = value if isinstance(value, np.ndarray | RemoteTensor) else _read(value, spec, role)
    if array.dtype != spec.dtype and not (spec.dtype == object and array.dtype.kind in "UST"):
        raise TensorTypeError(
            f"{role} {spec.name!r} is {spec}, got dtype {array.dtype}; memory that is shared is "
            f"not converted. Give array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    _check_shape(array, spec, role)
    return array


def convert(value: Any, spec: TensorSpec, *, copy: bool) -> Value:
    """Return `value` as a run wants it: native, dense, of the port's type and shape.

    Numbers and lists take the port's type; arrays are cast where the kind of number stays and
    no value becomes another, rounding apart: another integer that holds every value, another
    float or an integer as a float, in which no number becomes infinite.

    An array is whatever has ``__array__``, a buffer, or ``__dlpack__``. With `copy` the result
    shares no memory with `value`.

    Raises TensorTypeError, TensorShapeError: naming the port, what it wants, what was given and
    how to fix it.
    """
    if isinstance(value, Tensor):
        value = value.held()
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
    read = _read(value, spec, "input")
    array = _cast(read, spec, from_array=hasattr(value, "dtype"))
    _check_shape(array, spec, "input")
    # np.ascontiguousarray would make a scalar one-dimensional.
    dense = np.asarray(array, order="C")
    if copy and not isinstance(value, _ALWAYS_READ) and np.may_share_memory(dense, read):
        dense = dense.copy()
    return dense


def _sequence(value: Any, spec: TensorSpec, copy: bool) -> Value:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec.type}, got {type(value).__name__}; give a list.",
            port=spec.name,
        )
    inner = spec.type[len("seq(") : -1]
    return [
        convert(item, TensorSpec(f"{spec.name}[{i}]", inner), copy=copy)
        for i, item in enumerate(value)
    ]


def _read(value: Any, spec: TensorSpec, role: str) -> np.ndarray:
    """Return a value as an array, sharing its memory where it has some."""
    if value is None:
        raise TensorTypeError(
            f"{role} {spec.name!r} wants {spec}, got None; give an array.", port=spec.name
        )
    try:
        return array_of(value)
    except ValueError as error:
        raise TensorShapeError(
            f"{role} {spec.name!r} wants {spec}, got a nested list that is not an array: {error}.",
            port=spec.name,
        ) from error
    except (TypeError, RuntimeError, BufferError) as error:
        raise TensorTypeError(
            f"{role} {spec.name!r} wants {spec}, got a {type(value).__name__} that numpy cannot "
            f"read: {error}. Give a copy in the host's memory.",
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
    got, want = _kind(array.dtype), _kind(dtype)
    if array.size == 0 and not from_array:  # an empty list is of no type
        return array.astype(dtype)
    if want not in _CASTABLE.get(got, ""):
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec}, got dtype {array.dtype}, which would lose what it "
            f"says. If that is meant, give array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if not np.can_cast(array.dtype, dtype) and not _holds(cast, array, want):
        raise TensorTypeError(
            f"input {spec.name!r} wants {spec}, got dtype {array.dtype} with values that "
            f"{dtype} cannot hold. If that is meant, give array.astype({_dtype_text(spec)}).",
            port=spec.name,
        )
    return cast


def _holds(cast: np.ndarray, array: np.ndarray, kind: str) -> bool:
    """Whether a cast to a kind of number kept each value, but for rounding."""
    if kind == "i":
        same_sign = np.array_equal(cast < 0, array < 0)
        return same_sign and np.array_equal(cast.astype(array.dtype), array)
    finite = np.isfinite(cast)
    return bool(finite.all()) or np.array_equal(finite, np.isfinite(array))


def _strings(array: np.ndarray, spec: TensorSpec) -> np.ndarray:
    try:
        if array.dtype.kind in "USTO":
            return as_text(array)
        raise TensorTypeError(f"wanted strings, got {array.dtype}; give an array of str.")
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
            fix = "give it every dimension, as in array.reshape(...) or array[None]"
        elif len(sizes) == len(spec.shape or ()) and prod(sizes) != prod(array.shape):
            fix = "resize what is in it, or give the model other shapes with model.reshape(...)"
        else:
            fix = "reshape it, as in array.reshape(...), or transpose it"
        raise TensorShapeError(
            f"{role} {spec.name!r} wants {spec}, got shape {list(array.shape)}; {fix}.",
            port=spec.name,
        )


def _dtype_text(spec: TensorSpec) -> str:
    assert spec.dtype is not None
    if spec.dtype == object:
        return "object"
    return f"ml_dtypes.{spec.dtype}" if spec.dtype in EXTENDED_DTYPES else f"numpy.{spec.dtype}"
