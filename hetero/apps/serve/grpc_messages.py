"""gRPC's messages for inference, read and written by protobuf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.inference_request import (
    MAX_RANK,
    InputTensor,
    OutputTensor,
    RequestDocument,
)
from hetero.apps.serve.proto_file import proto_file
from hetero.apps.serve.tensors import (
    DATATYPES,
    Raw,
    decode_raw,
    decode_values,
    encode_raw,
    encode_values,
    find_datatype,
)

MESSAGES: Final = proto_file("open_inference.proto").messages
#: Fields of a request, those of its inputs, outputs and contents included.
MAX_FIELDS: Final = 2**16
#: Parameters of a request, an input or an output.
_MAX_PARAMETERS: Final = 256
#: Bytes of a varint, by protobuf's encoding.
_MAX_VARINT_NBYTES: Final = 10
#: protobuf's tags: a field's number and its wire type, length-delimited.
_INPUTS, _OUTPUTS, _RAW_INPUT_CONTENTS = (number << 3 | 2 for number in (5, 6, 7))
_SHAPE, _CONTENTS = (number << 3 | 2 for number in (3, 5))
#: Fields that have fields: tag -> those inside.
_NESTED: Final[Mapping[int, Any]] = {_INPUTS: {_SHAPE: None, _CONTENTS: {}}, _OUTPUTS: {}}


def check_fields(data: bytes, max_nbytes: int) -> None:
    """Raise ProtocolError if a ModelInferRequest would cost protobuf's parser too much.

    The parser has no limits, and holds Python's lock: 20 MB of two-byte fields took it 2.5 seconds
    and 240 MB to 720 MB. This walk over the tags ends at a bound.

    `max_nbytes`: bytes that the message may have without its raw tensors.
    """
    num_fields, encoded_nbytes = 0, len(data)
    pending: list[tuple[int, int, Mapping[int, Any]]] = [(0, len(data), _NESTED)]
    while pending:
        at, end, nested = pending.pop()
        while at < end:
            tag, at = _read_varint(data, at, end)
            num_fields += 1
            if num_fields > MAX_FIELDS:
                raise protocol_error(
                    f"the message has more than {MAX_FIELDS} fields: send tensors as "
                    "raw_input_contents.",
                    413,
                )
            length, wire_type = 0, tag & 7
            if wire_type in (0, 2):
                length, at = _read_varint(data, at, end)
            if wire_type not in (0, 1, 2, 5):
                raise protocol_error(
                    f"the message has wire type {wire_type}, expected 0, 1, 2 or 5."
                )
            after = at + (length if wire_type == 2 else (0, 8, 0, 0, 0, 4)[wire_type])
            if after > end:
                raise protocol_error("the message is truncated: a field exceeds its end.")
            if tag == _RAW_INPUT_CONTENTS and nested is _NESTED:
                encoded_nbytes -= length
            elif tag == _SHAPE and tag in nested and length > MAX_RANK * _MAX_VARINT_NBYTES:
                raise _too_many_dimensions()
            elif nested.get(tag) is not None:
                pending.append((at, after, nested[tag]))
            at = after
    if encoded_nbytes > max_nbytes:
        raise protocol_error(
            f"the message has {encoded_nbytes} bytes without raw tensors, expected at most "
            f"{max_nbytes}: send large tensors as raw_input_contents.",
            413,
        )


def _read_varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a number of 7 bits a byte, the lowest first, and the offset after it."""
    value = 0
    for shift in range(0, 7 * _MAX_VARINT_NBYTES, 7):
        if at >= end:
            raise protocol_error("the message is truncated: a number exceeds its end.")
        byte, at = data[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise protocol_error(f"the message has a number of more than {_MAX_VARINT_NBYTES} bytes.")


def _too_many_dimensions() -> Exception:
    return protocol_error(f"an input has more than {MAX_RANK} dimensions.")


def parse_message(name: str, data: bytes) -> Any:
    """Return a message of the protocol; ProtocolError if the bytes are malformed."""
    try:
        return MESSAGES[name].FromString(data)
    except DecodeError as error:
        raise protocol_error(f"the bytes are no {name}: {error}.") from error


class GrpcMessage:
    """A ModelInferRequest; see `hetero.apps.serve.inference_request.RequestMessage`.

    `max_nbytes`: bytes that it may have without its raw tensors.
    """

    def __init__(self, data: bytes, max_nbytes: int) -> None:
        check_fields(data, max_nbytes)
        message = parse_message("ModelInferRequest", data)
        self.model_name: str = message.model_name
        self.model_version: str = message.model_version
        self.id: str = message.id
        self._inputs = {entry.name: entry for entry in message.inputs}
        self._raws = message.raw_input_contents
        self._num_decoded = 0
        if any(len(entry.shape) > MAX_RANK for entry in message.inputs):
            raise _too_many_dimensions()
        document = {
            "id": message.id,
            "parameters": _parameters(message.parameters),
            "inputs": [
                {
                    "name": entry.name,
                    "shape": list(entry.shape),
                    "datatype": entry.datatype,
                    "parameters": _parameters(entry.parameters),
                }
                for entry in message.inputs
            ],
            "outputs": [
                {"name": entry.name, "parameters": _parameters(entry.parameters)}
                for entry in message.outputs
            ],
        }
        try:
            self.document: RequestDocument = msgspec.convert(document, RequestDocument)
        except msgspec.ValidationError as error:
            raise protocol_error(f"the message: {error}.") from error

    @property
    def wants_raw_outputs(self) -> bool:
        """Whether outputs are raw bytes: they are if inputs are."""
        return bool(self._raws)

    def decode(self, tensor: InputTensor) -> np.ndarray:
        """Return the data of the next input."""
        entry = self._inputs[tensor.name]
        if not self._raws:
            return decode_contents(entry)
        if entry.HasField("contents"):
            raise protocol_error(
                f"input {tensor.name!r} has contents, expected none beside raw_input_contents."
            )
        if self._num_decoded == len(self._raws):
            raise protocol_error(
                f"raw_input_contents has {len(self._raws)} tensors, none for {tensor.name!r}."
            )
        self._num_decoded += 1
        raw = self._raws[self._num_decoded - 1]
        return decode_raw(tensor.name, tensor.datatype, tensor.shape, raw)

    def check_complete(self) -> None:
        """Raise ProtocolError if raw tensors are left."""
        if self._num_decoded < len(self._raws):
            raise protocol_error(
                f"raw_input_contents has {len(self._raws)} tensors, expected {self._num_decoded}."
            )


def write_response(
    model: str, version: str, id_: str, outputs: Sequence[OutputTensor], *, is_raw: bool
) -> Any:
    """Return a ModelInferResponse, raw if requested or if an output has no typed contents."""
    message = MESSAGES["ModelInferResponse"](model_name=model, model_version=version, id=id_)
    is_raw = is_raw or any(not DATATYPES[output.datatype].contents for output in outputs)
    for name, datatype, array, _, location in outputs:
        entry = message.outputs.add(name=name, datatype=datatype, shape=array.shape)
        for key, value in (location or {}).items():
            field = "string_param" if isinstance(value, str) else "int64_param"
            setattr(entry.parameters[key], field, value)
        if is_raw:
            raw: Raw = b"" if location is not None else encode_raw(array)
            message.raw_output_contents.append(bytes(raw))
        elif location is None:
            getattr(entry.contents, DATATYPES[datatype].contents).extend(encode_values(array))
    return message


def decode_contents(entry: Any) -> np.ndarray:
    """Return the tensor of typed contents; ProtocolError if they do not fit its datatype."""
    contents = entry.contents
    field = find_datatype(entry.name, entry.datatype).contents
    if not field:
        raise protocol_error(
            f"input {entry.name!r}: {entry.datatype} has to be in raw_input_contents."
        )
    if others := [other.name for other, _ in contents.ListFields() if other.name != field]:
        raise protocol_error(
            f"input {entry.name!r} is {entry.datatype}: got {others[0]}, expected {field}."
        )
    return decode_values(entry.name, entry.datatype, entry.shape, getattr(contents, field))


def _parameters(parameters: Any) -> dict[str, Any]:
    """Return parameters in JSON's form."""
    if len(parameters) > _MAX_PARAMETERS:
        raise protocol_error(
            f"the message has {len(parameters)} parameters, expected at most {_MAX_PARAMETERS}."
        )
    return {
        key: getattr(value, choice)
        for key, value in parameters.items()
        if (choice := value.WhichOneof("parameter_choice"))
    }
