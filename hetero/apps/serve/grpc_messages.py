"""gRPC's inference messages as calls, and answers as messages.

Raw tensors are cut out of a request's bytes, and put behind an answer's, without protobuf, which
would copy each of them twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from hetero.apps.serve.datatypes import DATATYPES
from hetero.apps.serve.errors import refused
from hetero.apps.serve.inference_request import Document, InferCall, Input, Output, read_call
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.shared_memory import Regions
from hetero.apps.serve.tensors import Raw, from_raw, from_values, row_of, to_raw, to_values

MESSAGES: Final = proto_file("open_inference.proto").messages
#: Tags of raw_input_contents and raw_output_contents: fields 7 and 6, of bytes behind a length.
_RAW_INPUT: Final = 7 << 3 | 2
_RAW_OUTPUT: Final = bytes([6 << 3 | 2])


class Message(NamedTuple):
    """A message whose raw tensors are beside it."""

    head: Any
    raws: Sequence[Raw] = ()

    def SerializeToString(self) -> bytes:  # noqa: N802 - as protobuf's messages have it
        """Return the bytes of an answer."""
        parts: list[Raw] = [self.head.SerializeToString()]
        for raw in self.raws:
            parts += [_RAW_OUTPUT, _varint(len(raw)), raw]
        return b"".join(parts)


def read_message(data: bytes) -> Message:
    """Return the ModelInferRequest of its bytes; ValueError if they are none."""
    view = memoryview(data)
    heads: list[memoryview] = []
    raws: list[memoryview] = []
    at = 0
    try:
        while at < len(data):
            began = at
            tag, at = _read_varint(data, at)
            length, end = _read_varint(data, at) if tag & 7 in (0, 2) else (0, at)
            at = end + (length if tag & 7 == 2 else {0: 0, 1: 8, 5: 4}[tag & 7])
            if at > len(data):
                raise ValueError("a field goes on beyond the message's end")
            if tag == _RAW_INPUT:
                raws.append(view[end:at])
            else:
                heads.append(view[began:at])
    except LookupError as error:
        raise ValueError("the bytes are no message") from error
    return Message(MESSAGES["ModelInferRequest"].FromString(b"".join(heads)), raws)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends: 7 bits a byte, the lowest first."""
    value = shift = 0
    while data[at] > 127:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return value | data[at] << shift, at + 1


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def read_call_of(message: Message, regions: Regions) -> InferCall:
    """Return the call of a ModelInferRequest; `InferCall.binary` says that it came as raw bytes."""
    head, raws = message
    document = {
        "id": head.id,
        "parameters": _parameters(head.parameters),
        "inputs": [
            {
                "name": entry.name,
                "shape": list(entry.shape),
                "datatype": entry.datatype,
                "parameters": _parameters(entry.parameters),
            }
            for entry in head.inputs
        ],
        "outputs": [
            {"name": entry.name, "parameters": _parameters(entry.parameters)}
            for entry in head.outputs
        ],
    }
    contents = {entry.name: entry for entry in head.inputs}
    left = iter(raws)

    def tensor(entry: Input) -> np.ndarray:
        own = contents[entry.name]
        if not raws:
            return from_contents(own)
        if own.HasField("contents"):
            raise refused(f"input {entry.name!r} has contents beside raw_input_contents.")
        if (raw := next(left, None)) is None:
            raise refused(f"raw_input_contents has {len(raws)} tensors; {entry.name!r} has none.")
        return from_raw(entry.name, entry.datatype, entry.shape, raw)

    try:
        read = msgspec.convert(document, Document)
    except msgspec.ValidationError as error:
        raise refused(f"the message: {error}.") from error
    call = read_call(read, tensor, regions)
    if next(left, None) is not None:
        raise refused(f"raw_input_contents has {len(raws)} tensors; fewer inputs are given.")
    return call._replace(binary=bool(raws))


def write_answer(model: str, version: str, call: InferCall, outputs: Sequence[Output]) -> Message:
    """Return the ModelInferResponse: of raw bytes if the request was, or a type has no other."""
    head = MESSAGES["ModelInferResponse"](model_name=model, model_version=version, id=call.id)
    raws: list[Raw] = []
    is_raw = call.binary or any(not DATATYPES[output.datatype].contents for output in outputs)
    for name, datatype, array, _, parameters in outputs:
        entry = head.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if parameters is not None:
            for key, value in parameters.items():
                field = "string_param" if isinstance(value, str) else "int64_param"
                setattr(entry.parameters[key], field, value)
        if is_raw:
            raws.append(b"" if parameters is not None else to_raw(array))
        elif parameters is None:
            getattr(entry.contents, DATATYPES[datatype].contents).extend(to_values(array))
    return Message(head, raws)


def from_contents(entry: Any) -> np.ndarray:
    """Return the tensor that a message's typed contents are; ProtocolError if they are not."""
    contents = entry.contents
    field = row_of(entry.name, entry.datatype).contents
    if not field:
        raise refused(f"input {entry.name!r}: {entry.datatype} is for raw_input_contents.")
    if others := [given.name for given, _ in contents.ListFields() if given.name != field]:
        raise refused(f"input {entry.name!r} is {entry.datatype}: wanted {field}, got {others[0]}.")
    values = list(getattr(contents, field))
    if entry.datatype == "BYTES":
        try:
            values = [text.decode() for text in values]
        except UnicodeDecodeError as error:
            raise refused(f"input {entry.name!r} has a string that is not UTF-8.") from error
    return from_values(entry.name, entry.datatype, entry.shape, values)


def _parameters(given: Any) -> dict[str, Any]:
    """Return parameters as JSON would have them."""
    return {
        key: getattr(value, chosen)
        for key, value in given.items()
        if (chosen := value.WhichOneof("parameter_choice"))
    }
