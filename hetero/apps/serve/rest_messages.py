"""REST messages: JSON, followed by the raw bytes of binary tensors; compressed or not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.inference_request import InputTensor, OutputTensor, RequestDocument
from hetero.apps.serve.tensors import Raw, decode_json, decode_raw, encode_json, encode_raw

#: Content-Encoding -> zlib's window.
_WINDOWS: Final = {"gzip": 31, "deflate": 15}
#: Bytes that are decompressed at once, packed and unpacked.
_PACKED_NBYTES: Final = 2**16
_PART_NBYTES: Final = 2**18
#: zlib's fastest level: tensors hardly shrink.
_LEVEL: Final = 1
#: Braces in a request's JSON, and bytes that are searched for them at once: a parser of many small
#: objects holds Python's lock for seconds.
_MAX_BRACES: Final = 2**16
_SEARCHED_NBYTES: Final = 2**18
_DOCUMENT: Final = msgspec.json.Decoder(RequestDocument)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def decompress(body: Raw, encoding: str, limit: int) -> bytes:
    """Return a body without its Content-Encoding; ProtocolError if it is damaged or too large."""
    if encoding in ("", "identity"):
        return bytes(body)
    if encoding not in _WINDOWS:
        raise protocol_error(
            f"Content-Encoding {encoding!r}: expected one of {', '.join(_WINDOWS)}.", 415
        )
    reader = zlib.decompressobj(_WINDOWS[encoding])
    view, parts, left = memoryview(body), [], limit + 1
    for at in range(0, len(body), _PACKED_NBYTES):
        packed: Raw = view[at : at + _PACKED_NBYTES]
        while packed and left > 0:
            try:
                parts.append(reader.decompress(packed, min(left, _PART_NBYTES)))
            except zlib.error as error:
                raise protocol_error(f"the body is not {encoding}: {error}.") from error
            packed, left = reader.unconsumed_tail, left - len(parts[-1])
        if left <= 0:
            raise protocol_error(
                f"the body has more than {limit} bytes decompressed; send large tensors as raw "
                "bytes (binary_data_size).",
                413,
            )
        if reader.eof:
            break
    if not reader.eof or reader.unused_data or at + _PACKED_NBYTES < len(body):
        raise protocol_error(f"the body is truncated, or has more after its {encoding} data.")
    return b"".join(parts)


def preferred_encoding(accepted: str) -> str:
    """Return the Content-Encoding that a client prefers, by its Accept-Encoding; or none."""
    best, encoding = 0.0, ""
    for part in accepted.split(","):
        name, _, weight = part.partition(";")
        try:
            quality = float(weight.replace(" ", "").removeprefix("q=") or 1)
        except ValueError:
            continue
        if name.strip().lower() in _WINDOWS and quality > best:
            best, encoding = quality, name.strip().lower()
    return encoding


def compress(parts: Sequence[Raw], encoding: str) -> list[Raw]:
    """Return a body in a Content-Encoding."""
    writer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOWS[encoding])
    return [b"".join([*map(writer.compress, parts), writer.flush()])]


def parse_json(data: Raw, decoder: msgspec.json.Decoder[Any] = _OBJECT) -> Any:
    """Return a JSON object; ProtocolError if the data is not what the decoder expects."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise protocol_error(f"the body is not the expected JSON: {error}.") from error


def dump_json(document: Any) -> bytes:
    """Return a document as JSON; arrays become lists."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def parse_number(header: bytes) -> int:
    """Return the number in a header, by its first 18 digits; 0 if it is none."""
    return int(header[:18]) if header.isdigit() else 0


class RestMessage:
    """A REST request for an inference; see `hetero.apps.serve.inference_request.RequestMessage`.

    `json_nbytes`: the header that has the JSON's length if raw bytes follow it.
    `max_json_nbytes`: bytes that the JSON may have.
    """

    wants_raw_outputs = False

    def __init__(self, body: Raw, json_nbytes: bytes | None, max_json_nbytes: int) -> None:
        length = len(body)
        if json_nbytes is not None:
            length = parse_number(json_nbytes)
            if not 0 < length <= len(body):
                raise protocol_error(
                    f"Inference-Header-Content-Length is {json_nbytes[:40].decode('latin-1')!r}; "
                    f"expected the number of bytes of the JSON, 1 to {len(body)}."
                )
        if length > max_json_nbytes:
            raise protocol_error(
                f"the JSON has {length} bytes, expected at most {max_json_nbytes}: send large "
                "tensors as raw bytes (binary_data_size), by gRPC or in shared memory.",
                413,
            )
        view = memoryview(body)
        _check_braces(view[:length])
        self.document: RequestDocument = parse_json(view[:length], _DOCUMENT)
        self._raw = view[length:]

    def decode(self, tensor: InputTensor) -> np.ndarray:
        """Return the data of the next input."""
        name, shape = tensor.name, tensor.shape
        nbytes = tensor.parameters.binary_data_size if tensor.parameters else None
        if nbytes is None:
            if not tensor.data:
                raise protocol_error(f"input {name!r} has no data.")
            return decode_json(name, tensor.datatype, shape, memoryview(tensor.data))
        if tensor.data:
            raise protocol_error(f"input {name!r} has both data and binary_data_size.")
        if nbytes > len(self._raw):
            raise protocol_error(
                f"input {name!r}: binary_data_size {nbytes}, but {len(self._raw)} bytes are left "
                "after the JSON; Inference-Header-Content-Length has to be the JSON's length."
            )
        data, self._raw = self._raw[:nbytes], self._raw[nbytes:]
        return decode_raw(name, tensor.datatype, shape, data)

    def check_complete(self) -> None:
        """Raise ProtocolError if raw bytes are left."""
        if self._raw:
            raise protocol_error(f"{len(self._raw)} bytes after the JSON belong to no input.")


def _check_braces(data: memoryview) -> None:
    """Raise ProtocolError if JSON may have too many objects."""
    if len(data) <= _MAX_BRACES:
        return
    count = 0
    for start in range(0, len(data), _SEARCHED_NBYTES):
        count += bytes(data[start : start + _SEARCHED_NBYTES]).count(b"{")
        if count > _MAX_BRACES:
            raise protocol_error(
                f"the JSON has more than {_MAX_BRACES} braces: send texts as raw bytes "
                "(binary_data_size).",
                413,
            )


def write_response(
    model: str, version: str, id_: str, outputs: Sequence[OutputTensor]
) -> tuple[int | None, list[Raw]]:
    """Return a response's parts, and the JSON's length if raw bytes follow it."""
    entries: list[dict[str, Any]] = []
    raws: list[Raw] = []
    for name, datatype, array, is_raw, location in outputs:
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if location is not None:
            entry["parameters"] = location
        elif is_raw:
            raws.append(encode_raw(array))
            entry["parameters"] = {"binary_data_size": len(raws[-1])}
        else:
            entry["data"] = orjson.Fragment(encode_json(name, array))
        entries.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if id_:
        document["id"] = id_
    head = dump_json({**document, "outputs": entries})
    return (len(head) if raws else None), [head, *raws]
