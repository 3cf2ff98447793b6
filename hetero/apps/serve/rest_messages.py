"""REST's inference messages: JSON, and behind it the raw bytes of binary tensors; packed or not."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import orjson

from hetero.apps.serve.errors import refused
from hetero.apps.serve.inference_request import Document, InferCall, Input, Output, read_call
from hetero.apps.serve.shared_memory import Regions
from hetero.apps.serve.tensors import Raw, from_json, from_raw, to_json, to_raw

#: zlib's window of each encoding that a body may have.
_WINDOWS: Final = {"gzip": 31, "deflate": 15}
#: Packed bytes that are unpacked at once: while Python puts the pieces together all threads wait.
_PACKED_NBYTES: Final = 65536
#: Quick rather than small: tensors hardly shrink.
_EFFORT: Final = 1
_DOCUMENT: Final = msgspec.json.Decoder(Document)
_OBJECT: Final = msgspec.json.Decoder(dict[str, Any])


def unpacked(body: Raw, encoding: str, most_nbytes: int) -> Raw:
    """Return a body, of a bounded size, without its Content-Encoding; ProtocolError if damaged."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOWS:
        raise refused(f"Content-Encoding {encoding!r}: gzip and deflate are known here.", 415)
    reader = zlib.decompressobj(_WINDOWS[encoding])
    view, pieces, left = memoryview(body), [], most_nbytes + 1
    for at in range(0, len(body), _PACKED_NBYTES):
        try:
            pieces.append(reader.decompress(view[at : at + _PACKED_NBYTES], left))
        except zlib.error as error:
            raise refused(f"the body is not {encoding}: {error}.") from error
        left -= len(pieces[-1])
        if left <= 0:
            raise refused(f"the body has more than {most_nbytes} bytes when it is unpacked.", 413)
        if reader.eof:
            break
    if not reader.eof or reader.unused_data or at + _PACKED_NBYTES < len(body):
        raise refused(f"the body is cut off, or has more behind its {encoding} data.")
    return b"".join(pieces)


def packed(parts: Sequence[Raw], accepted: str) -> tuple[str, Sequence[Raw]]:
    """Return the encoding that a client prefers of those it accepts, and the body in it."""
    best, encoding = 0.0, ""
    for part in accepted.split(","):
        name, _, weight = part.partition(";")
        try:
            weighs = float(weight.replace(" ", "").removeprefix("q=") or 1)
        except ValueError:
            continue
        if name.strip().lower() in _WINDOWS and weighs > best:
            best, encoding = weighs, name.strip().lower()
    if not encoding:
        return "", parts
    writer = zlib.compressobj(_EFFORT, zlib.DEFLATED, _WINDOWS[encoding])
    return encoding, [b"".join([*map(writer.compress, parts), writer.flush()])]


def read_json(data: Raw, decoder: msgspec.json.Decoder[Any] = _OBJECT) -> Any:
    """Return a JSON object, as the decoder has it; ProtocolError if the data is none."""
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise refused(f"the body is not the JSON that is wanted: {error}.") from error


def dump_json(document: Any) -> bytes:
    """Return a document as JSON; arrays are lists."""
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def number_of(header: bytes) -> int:
    """Return the number that a header is, by its first digits where it has very many; else 0."""
    return int(header[:18]) if header.isdigit() else 0


def read_infer(body: Raw, json_nbytes: bytes | None, regions: Regions) -> InferCall:
    """Return the call of an unpacked body; raw bytes follow the JSON where its length is told."""
    length = len(body)
    if json_nbytes is not None:
        length = number_of(json_nbytes)
        if not 0 < length <= len(body):
            raise refused(
                f"Inference-Header-Content-Length is {json_nbytes.decode('latin-1')!r}; wanted the "
                f"JSON's bytes, 1 to {len(body)}."
            )
    raw = memoryview(body)
    document, raw = read_json(raw[:length], _DOCUMENT), raw[length:]

    def tensor(entry: Input) -> np.ndarray:
        nonlocal raw
        name, shape = entry.name, entry.shape
        nbytes = entry.parameters.binary_data_size if entry.parameters else None
        if nbytes is None:
            if not entry.data:
                raise refused(f"input {name!r} has no data.")
            return from_json(name, entry.datatype, shape, memoryview(entry.data))
        if entry.data:
            raise refused(f"input {name!r} has both data and binary_data_size.")
        if nbytes > len(raw):
            raise refused(
                f"input {name!r}: binary_data_size {nbytes}; {len(raw)} bytes are left "
                "behind the JSON, whose length Inference-Header-Content-Length says."
            )
        data, raw = raw[:nbytes], raw[nbytes:]
        return from_raw(name, entry.datatype, shape, data)

    call = read_call(document, tensor, regions)
    if raw:
        raise refused(f"{len(raw)} bytes behind the JSON belong to no input.")
    return call


def write_infer(
    model: str, version: str, id_: str, outputs: Sequence[Output]
) -> tuple[int | None, list[Raw]]:
    """Return the JSON's length where raw bytes follow it, else None; and the body, in parts."""
    entries: list[dict[str, Any]] = []
    raws: list[Raw] = []
    for name, datatype, array, is_binary, parameters in outputs:
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": array.shape}
        if parameters is not None:
            entry["parameters"] = parameters
        elif is_binary:
            raws.append(to_raw(array))
            entry["parameters"] = {"binary_data_size": len(raws[-1])}
        else:
            entry["data"] = to_json(name, array)
        entries.append(entry)
    document: dict[str, Any] = {"model_name": model, "model_version": version}
    if id_:
        document["id"] = id_
    head = dump_json({**document, "outputs": entries})
    return (len(head) if raws else None), [head, *raws]
