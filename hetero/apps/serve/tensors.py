"""Tensors as the protocol's bytes and JSON, and back, with every length and value checked."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np

from hetero.apps.serve.datatypes import DATATYPES, Datatype
from hetero.apps.serve.errors import ProtocolError, refused

Raw = bytes | memoryview


def row_of(name: str, datatype: str) -> Datatype:
    """Return the row of a datatype that input `name` was given with."""
    if (row := DATATYPES.get(datatype)) is None:
        wanted = ", ".join(DATATYPES)
        raise refused(f"input {name!r}: datatype {datatype!r} is not one of {wanted}.")
    return row


@cache
def _decoder(element: type, depth: int) -> msgspec.json.Decoder[list[Any]]:
    wanted: Any = element
    for _ in range(depth):
        wanted = list[wanted]
    return msgspec.json.Decoder(wanted)


def from_json(name: str, datatype: str, shape: Sequence[int], data: Raw) -> np.ndarray:
    """Return the tensor that nested or flat JSON data is."""
    element = row_of(name, datatype).element
    depth = 1
    try:
        try:
            values = _decoder(element, 1).decode(data)
        except msgspec.ValidationError:
            depth = max(1, len(shape))
            values = _decoder(element, depth).decode(data)
    except msgspec.MsgspecError as error:
        raise refused(f"input {name!r}: data is not a {datatype} array: {error}.") from error
    return from_values(name, datatype, shape, values, depth)


def from_values(
    name: str, datatype: str, shape: Sequence[int], values: Sequence[Any], depth: int = 1
) -> np.ndarray:
    """Return the tensor of elements in lists, `depth` deep; ProtocolError as `from_json`."""
    try:
        with np.errstate(over="raise"):
            array = np.array(values, dtype := row_of(name, datatype).dtype)
        if dtype.kind == "V" and not np.isfinite(array).all():  # of bfloat16 nothing is raised
            raise OverflowError("it has values too large")
    except (ValueError, ArithmeticError) as error:
        raise refused(f"input {name!r}: data is not a {datatype} array: {error}.") from error
    if array.ndim != depth or (depth > 1 and array.shape != tuple(shape)):
        raise refused(
            f"input {name!r}: data of shape {list(array.shape)}, but its shape says {list(shape)}."
        )
    return _shaped(name, array, shape)


def from_raw(name: str, datatype: str, shape: Sequence[int], data: Raw) -> np.ndarray:
    """Return the tensor of raw bytes, little-endian and row-major, without a copy if aligned."""
    dtype = row_of(name, datatype).dtype
    if dtype.hasobject:
        return _shaped(name, _strings(name, bytes(data)), shape)
    nbytes = math.prod(shape) * dtype.itemsize
    if len(data) != nbytes:
        raise refused(
            f"input {name!r}: {datatype} of shape {list(shape)} takes {nbytes} bytes, got "
            f"{len(data)}."
        )
    if dtype.kind == "b" and nbytes and np.frombuffer(data, np.uint8).max() > 1:
        raise refused(f"input {name!r}: a BOOL is a byte 0 or 1, got others.")
    array = np.frombuffer(data, dtype) if nbytes else np.empty(0, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def _strings(name: str, data: bytes) -> np.ndarray:
    """Return the strings of the binary form: each behind its length in 4 bytes."""
    found: list[str] = []
    at = 0
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


def _shaped(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if math.prod(shape) != array.size:
        raise refused(
            f"input {name!r} has {array.size} elements; its shape {list(shape)} says "
            f"{math.prod(shape)}."
        )
    return array.reshape(shape)


def to_raw(array: np.ndarray) -> Raw:
    """Return a tensor's raw bytes, those of its memory where they are dense."""
    if array.dtype.hasobject:
        texts = _to_bytes(array)
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def to_json(name: str, array: np.ndarray) -> Any:
    """Return a tensor's elements, flat, as JSON has them: an array of numbers, or strings."""
    if array.dtype.hasobject:
        try:
            return [text.decode() for text in _to_bytes(array)]
        except UnicodeDecodeError as error:
            raise _not_in_json(name, "bytes that are not UTF-8") from error
    flat = array.reshape(-1)
    if array.dtype.kind in "fV":
        flat = flat.astype(np.float32) if array.dtype.itemsize < 4 else flat
        if not np.isfinite(flat).all():
            raise _not_in_json(name, "NaN or infinity")
    return np.ascontiguousarray(flat)


def to_values(array: np.ndarray) -> list[Any]:
    """Return a tensor's elements, flat; strings as bytes."""
    return _to_bytes(array) if array.dtype.hasobject else array.ravel().tolist()


def _to_bytes(array: np.ndarray) -> list[bytes]:
    return [value if isinstance(value, bytes) else str(value).encode() for value in array.flat]


def _not_in_json(name: str, what: str) -> ProtocolError:
    return refused(
        f"output {name!r} has {what}, which JSON cannot say. Ask for it with the parameter "
        "binary_data, or by gRPC."
    )
