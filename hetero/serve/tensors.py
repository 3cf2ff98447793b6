"""Tensors as the protocol's bytes and JSON, and back, with every length and value checked."""

from __future__ import annotations

import math
import struct
from typing import Any, Final

import numpy as np

from hetero.serve.datatypes import DATATYPES
from hetero.serve.errors import refused

#: Dimensions that numpy's arrays can have.
_MOST_DIMENSIONS: Final = 64
#: Kind of a dtype -> kinds of what JSON may give for it; ml_dtypes' are V.
_GIVEN: Final = {"b": "b", "i": "iu", "u": "iu", "f": "fiu", "V": "fiu"}


def dtype_of(name: str, datatype: object) -> np.dtype:
    """Return the dtype of a datatype that input `name` was given with."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise refused(
            f"input {name!r}: datatype {datatype!r} is not one of {', '.join(DATATYPES)}."
        )
    return dtype


def check_shape(name: str, shape: object) -> tuple[int, ...]:
    """Return the shape that input `name` was given with."""
    if not isinstance(shape, list | tuple) or any(
        type(size) is not int or size < 0 for size in shape
    ):
        raise refused(f"input {name!r}: shape {_short(shape)}: wanted a list of sizes >= 0.")
    if len(shape) > _MOST_DIMENSIONS:
        raise refused(f"input {name!r} has {len(shape)} dimensions; at most {_MOST_DIMENSIONS}.")
    return tuple(shape)


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: object) -> np.ndarray:
    """Return the tensor that nested or flat JSON data is.

    Raises
    ------
    ProtocolError
        The data is ragged, has another number of elements than the shape, or values that the
        datatype does not have.
    """
    dtype = dtype_of(name, datatype)
    if not isinstance(data, list):
        raise refused(f"input {name!r}: data is {_short(data)}; wanted a list.")
    if dtype.hasobject:
        array = np.array([*map(_text, _flat(name, data, len(shape)))], dtype=object)
    else:
        array = _numbers(name, datatype, dtype, data)
    _check_count(name, shape, array.size)
    if array.ndim > 1 and array.shape != shape:
        raise refused(
            f"input {name!r}: nested data of shape {list(array.shape)}, but its shape says "
            f"{list(shape)}."
        )
    return array.reshape(shape)


def _numbers(name: str, datatype: str, dtype: np.dtype, data: list[Any]) -> np.ndarray:
    try:
        read = np.array(data)
        if read.dtype.kind == "f" and dtype.kind in "iu" and dtype.itemsize == 8:
            # Of whole numbers on both sides of 2**63 numpy makes floats.
            read = np.array(data, dtype=object)
            whole = all(type(value) is int for value in read.flat)
            read = np.array(data, dtype=dtype) if whole else np.array(data)
    except (ValueError, OverflowError) as error:
        raise refused(f"input {name!r}: data is not a {datatype} array: {error}.") from error
    if read.size and read.dtype.kind not in _GIVEN[dtype.kind]:
        raise refused(
            f"input {name!r} is {datatype}, but its data has values such as {_short(read.flat[0])}."
        )
    if dtype.kind in "iu" and read.size and read.dtype != dtype:
        limits = np.iinfo(dtype)
        low, high = read.min(), read.max()
        if int(low) < limits.min or int(high) > limits.max:
            raise refused(
                f"input {name!r}: {datatype} holds {limits.min} to {limits.max}; data has "
                f"{low} to {high}."
            )
    try:
        with np.errstate(over="raise"):
            return read.astype(dtype)
    except FloatingPointError as error:
        raise refused(f"input {name!r}: data has values too large for {datatype}.") from error


def _flat(name: str, data: list[Any], rank: int) -> list[Any]:
    """Return the elements of a list that is nested `rank` deep at most, as all its rows are."""
    for _ in range(rank - 1):
        nested = [isinstance(row, list) for row in data]
        if not any(nested):
            break
        if not all(nested) or len({len(row) for row in data}) > 1:
            raise refused(f"input {name!r}: data is not an array: its rows differ.")
        data = [item for row in data for item in row]
    if bad := next((item for item in data if not isinstance(item, str)), None):
        raise refused(f"input {name!r} is BYTES: wanted strings, got {_short(bad)}.")
    return data


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise refused(f"an element of BYTES is {_short(value)}; wanted a string.")
    return value


def from_binary(
    name: str, datatype: str, shape: tuple[int, ...], data: memoryview | bytes
) -> np.ndarray:
    """Return the tensor of raw bytes, little-endian and row-major, without a copy if aligned.

    Raises
    ------
    ProtocolError
        There are more or fewer bytes than the shape says, or strings that are not UTF-8.
    """
    dtype = dtype_of(name, datatype)
    if dtype.hasobject:
        array = _strings(name, data)
        _check_count(name, shape, array.size)
        return array.reshape(shape)
    if len(data) != math.prod(shape) * dtype.itemsize:
        raise refused(
            f"input {name!r}: {datatype} of shape {list(shape)} takes "
            f"{math.prod(shape) * dtype.itemsize} bytes, got {len(data)}."
        )
    if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise refused(f"input {name!r}: a BOOL is a byte 0 or 1, got others.")
    array = np.frombuffer(data, dtype) if len(data) else np.empty(0, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def _strings(name: str, data: memoryview | bytes) -> np.ndarray:
    """Return the strings of the binary form: each behind its length in 4 bytes."""
    found: list[str] = []
    at, data = 0, bytes(data)
    while at < len(data):
        end = at + 4
        if end <= len(data):
            end += struct.unpack_from("<I", data, at)[0]
        if end > len(data):
            raise refused(
                f"input {name!r}: its string {len(found)} goes on beyond the {len(data)} bytes."
            )
        try:
            found.append(data[at + 4 : end].decode())
        except UnicodeDecodeError as error:
            raise refused(f"input {name!r}: its string {len(found)} is not UTF-8.") from error
        at = end
    return np.array(found, dtype=object)


def to_binary(array: np.ndarray) -> memoryview | bytes:
    """Return a tensor's raw bytes, those of its memory where they are dense."""
    if array.dtype.hasobject:
        texts = [_bytes(value) for value in array.flat]
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    if not array.size:
        return b""
    dense = np.ascontiguousarray(array)
    return dense.reshape(-1).view(np.uint8).data


def to_json(name: str, array: np.ndarray) -> Any:
    """Return a tensor's elements, flat, as JSON has them: an array of numbers, or strings.

    Raises
    ------
    ProtocolError
        JSON has no form for an element: NaN, infinities, bytes that are not UTF-8.
    """
    flat = array.reshape(-1)
    if array.dtype.hasobject:
        try:
            return [_bytes(value).decode() for value in flat]
        except UnicodeDecodeError as error:
            raise _not_in_json(name, "bytes that are not UTF-8") from error
    if array.dtype.kind in "fV":
        flat = flat.astype(np.float32) if array.dtype.itemsize < 4 else flat
        if not np.isfinite(flat).all():
            raise _not_in_json(name, "NaN or infinity")
    return np.ascontiguousarray(flat)


def _not_in_json(name: str, what: str) -> Exception:
    return refused(
        f"output {name!r} has {what}, which JSON cannot say. Ask for it with the parameter "
        "binary_data, or by gRPC."
    )


def _bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


def _check_count(name: str, shape: tuple[int, ...], count: int) -> None:
    if math.prod(shape) != count:
        raise refused(
            f"input {name!r} has {count} elements; its shape {list(shape)} says {math.prod(shape)}."
        )


def _short(value: object) -> str:
    """Return a value as an error shows it."""
    text = repr(value) if not isinstance(value, list | dict) else type(value).__name__
    return text if len(text) <= 60 else f"{text[:57]}..."
