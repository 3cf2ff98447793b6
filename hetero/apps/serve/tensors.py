"""Tensors in the protocol's encodings: raw bytes, JSON and typed gRPC contents.

Numbers are decoded in chunks: a thread that decodes a large tensor then holds Python's lock for
milliseconds only, and the list of a chunk's elements takes a megabyte, not sixteen times the body.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

import ml_dtypes
import msgspec
import numpy as np
import orjson

from hetero.apps.serve.errors import ProtocolError, protocol_error
from hetero.devices.model.tensor_spec import TensorSpec

Raw = bytes | memoryview
#: Elements that are decoded or encoded at once.
_CHUNK: Final = 2**15
#: Strings of one tensor: each takes some 60 bytes of memory, and 3 or 4 of a body.
MAX_STRINGS: Final = 2**18
#: Bytes of JSON numbers and of white space; without them an array of numbers is its layout.
_NUMBER_BYTES: Final = bytes(set(range(256)) - set(b'[],"{}:'))
_LAYOUT_BYTES: Final = b"[] \t\r\n"
_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*"')


class Datatype(NamedTuple):
    """A datatype of the protocol.

    `dtype`: numpy's; arrays of strings hold objects.
    `element`: the type of an element in JSON; a float may be written as an integer.
    `contents`: gRPC's field for typed elements; empty if there are only raw bytes.
    """

    dtype: np.dtype
    element: type
    contents: str


_ROWS: tuple[tuple[str, Any, type, str], ...] = (
    ("BOOL", np.bool_, bool, "bool_contents"),
    ("UINT8", np.uint8, int, "uint_contents"),
    ("UINT16", np.uint16, int, "uint_contents"),
    ("UINT32", np.uint32, int, "uint_contents"),
    ("UINT64", np.uint64, int, "uint64_contents"),
    ("INT8", np.int8, int, "int_contents"),
    ("INT16", np.int16, int, "int_contents"),
    ("INT32", np.int32, int, "int_contents"),
    ("INT64", np.int64, int, "int64_contents"),
    ("FP16", np.float16, float, ""),
    ("FP32", np.float32, float, "fp32_contents"),
    ("FP64", np.float64, float, "fp64_contents"),
    ("BF16", ml_dtypes.bfloat16, float, ""),  # Triton's addition
    ("BYTES", object, str, "bytes_contents"),
)
DATATYPES: Final = {
    name: Datatype(np.dtype(dtype), element, contents) for name, dtype, element, contents in _ROWS
}
#: numpy's dtype -> the protocol's name.
NAMES: Final = {datatype.dtype: name for name, datatype in DATATYPES.items()}


def find_datatype(name: str, datatype: str) -> Datatype:
    """Return the datatype that input `name` has in a request."""
    if (row := DATATYPES.get(datatype)) is None:
        raise protocol_error(
            f"input {name!r}: datatype {datatype!r}; expected one of {', '.join(DATATYPES)}."
        )
    return row


def datatype_of(port: TensorSpec) -> str:
    """Return the protocol's name of a port's element type.

    Sequences, maps, complex numbers, 4-bit and 8-bit floats have none.
    """
    if port.dtype is None or (name := NAMES.get(port.dtype)) is None:
        raise protocol_error(
            f"{port.name!r} is {port}: the protocol has only tensors of {', '.join(DATATYPES)}. "
            "Add a Cast (or SequenceAt) to the model, so that its inputs and outputs are of these.",
            501,
        )
    return name


def decode_json(name: str, datatype: str, shape: Sequence[int], data: Raw) -> np.ndarray:
    """Return the tensor of nested or flat JSON data; the data has to be valid JSON."""
    data, row, count = bytes(data), find_datatype(name, datatype), math.prod(shape)
    if row.element is str:
        _check_string_count(name, max(count, (data.count(b'"') - data.count(b'\\"')) // 2))
        layout = _STRING.sub(b"", data).translate(None, _NUMBER_BYTES)
    else:
        layout = data.translate(None, _NUMBER_BYTES)
    is_flat = _has_layout(layout, [count])
    if not is_flat and not _has_layout(layout, shape):
        raise protocol_error(
            f"input {name!r}: expected data with the {count} {datatype} elements of shape "
            f"{list(shape)}, flat or nested."
        )
    if row.element is str:
        return _decode_json_strings(name, shape, data, 1 if is_flat else len(shape))
    numbers = data.translate(None, _LAYOUT_BYTES)
    if not count:
        numbers = numbers.strip(b",")
    return _fill(name, datatype, shape, _json_chunks(numbers, row.element))


def _has_layout(layout: bytes, shape: Sequence[int]) -> bool:
    """Return whether brackets and commas are those of nested data of a shape."""
    if not shape:
        return False
    length = max(shape[-1] - 1, 0) + 2
    for size in reversed(shape[:-1]):
        length = size * length + max(size - 1, 0) + 2
    if length != len(layout):  # sizes may be enormous
        return False
    expected = b"[" + b"," * max(shape[-1] - 1, 0) + b"]"
    for size in reversed(shape[:-1]):
        expected = b"[" + b",".join([expected] * size) + b"]"
    return layout == expected


def _json_chunks(numbers: bytes, element: type) -> Iterator[list[Any]]:
    """Yield the elements of comma-separated JSON numbers in chunks."""
    start, step = 0, 8 * _CHUNK
    while start < len(numbers):
        end = numbers.find(b",", start + step)
        end = len(numbers) if end < 0 else end
        yield _decoder(element, 1).decode(b"[" + numbers[start:end] + b"]")
        start = end + 1


@cache
def _decoder(element: type, depth: int) -> msgspec.json.Decoder[list[Any]]:
    expected: Any = element
    for _ in range(depth):
        expected = list[expected]
    return msgspec.json.Decoder(expected)


def _decode_json_strings(name: str, shape: Sequence[int], data: bytes, depth: int) -> np.ndarray:
    try:
        texts = _decoder(str, depth).decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise protocol_error(f"input {name!r}: data is not a BYTES array: {error}.") from error
    return np.array(texts, object).reshape(shape)


def _check_string_count(name: str, count: int) -> None:
    if count > MAX_STRINGS:
        raise protocol_error(
            f"input {name!r} has {count} strings, expected at most {MAX_STRINGS}.", 413
        )


def decode_values(
    name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]
) -> np.ndarray:
    """Return the tensor of a flat sequence of elements, such as a field of typed contents."""
    dtype, count = find_datatype(name, datatype).dtype, math.prod(shape)
    if len(values) != count:
        raise protocol_error(
            f"input {name!r} has {len(values)} elements, expected {count} of shape {list(shape)}."
        )
    if dtype.hasobject:
        _check_string_count(name, count)
        try:
            texts = [text if isinstance(text, str) else text.decode() for text in values]
        except UnicodeDecodeError as error:
            raise protocol_error(f"input {name!r} has a string that is not UTF-8.") from error
        return _reshape(name, np.array(texts, dtype), shape)
    chunks = (values[start : start + _CHUNK] for start in range(0, count, _CHUNK))
    return _fill(name, datatype, shape, chunks)


def _fill(
    name: str, datatype: str, shape: Sequence[int], chunks: Iterator[Sequence[Any]]
) -> np.ndarray:
    """Return a tensor of numbers that come in chunks; ProtocolError if one is out of range."""
    dtype = DATATYPES[datatype].dtype
    array, start = np.empty(math.prod(shape), dtype), 0
    try:
        with np.errstate(over="raise"):
            for chunk in chunks:
                array[start : start + len(chunk)] = np.array(chunk, dtype)
                start += len(chunk)
        if start != len(array):
            raise ValueError(f"{start} elements, expected {len(array)}")
        if dtype.kind == "V" and not np.isfinite(array).all():  # bfloat16 raises no overflow
            raise OverflowError("a value is out of range")
    except (msgspec.MsgspecError, ValueError, ArithmeticError) as error:
        reason = f"{error}".partition(" - at ")[0]
        raise protocol_error(
            f"input {name!r}: data is not a {datatype} array: {reason}."
        ) from error
    return array.reshape(shape)


def decode_raw(name: str, datatype: str, shape: Sequence[int], data: Raw) -> np.ndarray:
    """Return the tensor of raw bytes, little-endian and row-major; aligned ones are not copied."""
    dtype = find_datatype(name, datatype).dtype
    if dtype.hasobject:
        _check_string_count(name, math.prod(shape))
        return _reshape(name, _decode_raw_strings(name, bytes(data), math.prod(shape)), shape)
    nbytes = math.prod(shape) * dtype.itemsize
    if len(data) != nbytes:
        raise protocol_error(
            f"input {name!r}: {len(data)} bytes, expected {nbytes} for {datatype} of shape "
            f"{list(shape)}."
        )
    if dtype.kind == "b" and nbytes and np.frombuffer(data, np.uint8).max() > 1:
        raise protocol_error(f"input {name!r}: a BOOL is a byte 0 or 1, got another.")
    array = np.frombuffer(data, dtype) if nbytes else np.empty(0, dtype)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def _decode_raw_strings(name: str, data: bytes, count: int) -> np.ndarray:
    """Return strings from raw bytes: each is preceded by its length in 4 bytes."""
    texts: list[str] = []
    at = 0
    while at < len(data):
        end = at + 4
        if end <= len(data):
            end += struct.unpack_from("<I", data, at)[0]
        if end > len(data) or len(texts) == count:
            raise protocol_error(
                f"input {name!r}: string {len(texts)} exceeds the {len(data)} bytes, or the "
                f"{count} elements of its shape."
            )
        try:
            texts.append(data[at + 4 : end].decode())
        except UnicodeDecodeError as error:
            raise protocol_error(f"input {name!r}: string {len(texts)} is not UTF-8.") from error
        at = end
    return np.array(texts, dtype=object)


def _reshape(name: str, array: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    if math.prod(shape) != array.size:
        raise protocol_error(
            f"input {name!r} has {array.size} elements, expected {math.prod(shape)} of shape "
            f"{list(shape)}."
        )
    return array.reshape(shape)


def encode_raw(array: np.ndarray) -> Raw:
    """Return a tensor's raw bytes: a view of its memory if it is dense."""
    if array.dtype.hasobject:
        texts = _to_bytes(array)
        return b"".join(part for text in texts for part in (struct.pack("<I", len(text)), text))
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def encode_json(name: str, array: np.ndarray) -> bytes:
    """Return a tensor's elements as a flat JSON array."""
    flat: Any = array.reshape(-1)
    if array.dtype.hasobject:
        try:
            flat = [text.decode() for text in _to_bytes(array)]
        except UnicodeDecodeError as error:
            raise _not_in_json(name, "bytes that are not UTF-8") from error
    elif array.dtype.kind in "fV":
        flat = flat.astype(np.float32) if array.dtype.itemsize < 4 else flat
        if not np.isfinite(flat).all():
            raise _not_in_json(name, "NaN or infinity")
    if not array.dtype.hasobject:
        flat = np.ascontiguousarray(flat)
    chunks = (flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK))
    return b"[" + b",".join(_dump(chunk)[1:-1] for chunk in chunks) + b"]"


def _dump(chunk: Any) -> bytes:
    return orjson.dumps(chunk, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_values(array: np.ndarray) -> list[Any]:
    """Return a tensor's elements, flat; strings as bytes."""
    return _to_bytes(array) if array.dtype.hasobject else array.ravel().tolist()


def _to_bytes(array: np.ndarray) -> list[bytes]:
    return [value if isinstance(value, bytes) else str(value).encode() for value in array.flat]


def _not_in_json(name: str, values: str) -> ProtocolError:
    return protocol_error(
        f"output {name!r} has {values}, which JSON cannot represent. Request it with the "
        "parameter binary_data, or by gRPC."
    )
