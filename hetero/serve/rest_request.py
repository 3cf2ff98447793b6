"""An inference request's body as a call: JSON, and behind it the raw bytes of binary tensors."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import orjson

from hetero.serve.call import (
    InferCall,
    flag_of,
    place_of,
    priority_of,
    refuse_sequences,
    timeout_of,
    wanted_output,
)
from hetero.serve.errors import refused
from hetero.serve.regions import Regions
from hetero.serve.tensors import check_shape, from_binary, from_json

#: zlib's window of each encoding that a body may have.
_WINDOWS: Final = {"gzip": 31, "deflate": 15}


def unpacked(body: bytes, encoding: str, most_nbytes: int) -> bytes:
    """Return a body without its Content-Encoding.

    Raises
    ------
    ProtocolError
        It is damaged, of another encoding, or has more than `most_nbytes` unpacked.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOWS:
        raise refused(f"Content-Encoding {encoding!r}: gzip and deflate are known here.", 415)
    reader = zlib.decompressobj(_WINDOWS[encoding])
    try:
        data = reader.decompress(body, most_nbytes + 1)
    except zlib.error as error:
        raise refused(f"the body is not {encoding}: {error}.") from error
    if len(data) > most_nbytes:
        raise refused(f"the body has more than {most_nbytes} bytes when it is unpacked.", 413)
    if not reader.eof or reader.unused_data:
        raise refused(f"the body is cut off, or has more behind its {encoding} data.")
    return data


def read_infer(body: bytes, json_nbytes: str | None, regions: Regions) -> InferCall:
    """Return the call of an unpacked body.

    `json_nbytes`: the header Inference-Header-Content-Length, where raw bytes follow the JSON.

    Raises
    ------
    ProtocolError
        It is not JSON, or not as the protocol says.
    """
    document, raw = _split(body, json_nbytes)
    parameters = _mapping(document, "parameters")
    refuse_sequences(parameters)
    identity = document.get("id", "")
    if not isinstance(identity, str):
        raise refused(f"id is a {type(identity).__name__}; wanted a string.")
    inputs: dict[str, np.ndarray] = {}
    at = 0
    for entry in _entries(document, "inputs"):
        name = entry["name"]
        if name in inputs:
            raise refused(f"input {name!r} is given twice.")
        own = _mapping(entry, "parameters")
        shape = check_shape(name, entry.get("shape"))
        nbytes = own.get("binary_data_size")
        datatype = entry.get("datatype", "")
        if place := place_of(own):
            inputs[name] = from_binary(name, datatype, shape, regions.read(place))
            continue
        if nbytes is None:
            inputs[name] = from_json(name, datatype, shape, entry.get("data"))
            continue
        if type(nbytes) is not int or not 0 <= nbytes <= len(raw) - at:
            raise refused(
                f"input {name!r}: binary_data_size {nbytes!r}; {len(raw) - at} bytes are left "
                "behind the JSON, whose length Inference-Header-Content-Length says."
            )
        if "data" in entry:
            raise refused(f"input {name!r} has both data and binary_data_size.")
        inputs[name] = from_binary(name, datatype, shape, raw[at : at + nbytes])
        at += nbytes
    if at != len(raw):
        raise refused(f"{len(raw) - at} bytes behind the JSON belong to no input.")
    asked = _entries(document, "outputs") if document.get("outputs") is not None else ()
    outputs = tuple(wanted_output(e["name"], _mapping(e, "parameters")) for e in asked)
    return InferCall(
        inputs, outputs, identity, flag_of(parameters, "binary_data_output") or False,
        timeout_of(parameters), priority_of(parameters), parameters,
    )  # fmt: skip


def _split(body: bytes, json_nbytes: str | None) -> tuple[dict[str, Any], memoryview]:
    """Return the JSON and the raw bytes behind it."""
    length = len(body)
    if json_nbytes is not None:
        if not json_nbytes.isdecimal() or not 0 < int(json_nbytes) <= length:
            raise refused(
                f"Inference-Header-Content-Length is {json_nbytes!r}; wanted the JSON's bytes, "
                f"1 to {length}."
            )
        length = int(json_nbytes)
    view = memoryview(body)
    document = read_json(view[:length])
    return document, view[length:]


def read_json(data: bytes | memoryview) -> dict[str, Any]:
    """Return a JSON object; ProtocolError if the data is none."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise refused(f"the body is not JSON: {error}.") from error
    if not isinstance(document, dict):
        raise refused(f"the body is a JSON {type(document).__name__}; wanted an object.")
    return document


def _entries(document: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = document.get(key)
    if not isinstance(entries, list):
        raise refused(f"{key} is a {type(entries).__name__}; wanted a list of tensors.")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise refused(f"{key}: each tensor is an object with a name.")
    return entries


def _mapping(holder: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = holder.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise refused(f"{key} is a {type(value).__name__}; wanted an object.")
    return value
