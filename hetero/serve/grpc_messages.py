"""gRPC's inference messages as calls, and answers as messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from hetero.serve.call import (
    InferCall,
    place_of,
    priority_of,
    refuse_sequences,
    timeout_of,
    wanted_output,
)
from hetero.serve.datatypes import NAMES
from hetero.serve.errors import refused
from hetero.serve.proto_file import proto_file
from hetero.serve.regions import Regions
from hetero.serve.rest_response import write_place
from hetero.serve.tensors import check_shape, from_binary, from_json, to_binary, to_json

MESSAGES: Final = proto_file("open_inference.proto").messages
#: Datatype -> the field of its elements; FP16 and BF16 are raw bytes only.
CONTENTS: Final = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def read_call(message: Any, regions: Regions) -> InferCall:
    """Return the call of a ModelInferRequest; `InferCall.binary` says that it came as raw bytes.

    Raises
    ------
    ProtocolError
        It is not as the protocol says.
    """
    parameters = _parameters(message.parameters)
    refuse_sequences(parameters)
    raw = list(message.raw_input_contents)
    inputs: dict[str, np.ndarray] = {}
    used = 0
    for entry in message.inputs:
        name, shape = entry.name, check_shape(entry.name, list(entry.shape))
        if name in inputs:
            raise refused(f"input {name!r} is given twice.")
        if place := place_of(_parameters(entry.parameters)):
            inputs[name] = from_binary(name, entry.datatype, shape, regions.read(place))
        elif raw:
            if entry.HasField("contents"):
                raise refused(f"input {name!r} has contents beside raw_input_contents.")
            if used == len(raw):
                raise refused(f"raw_input_contents has {len(raw)} tensors; {name!r} has none.")
            inputs[name] = from_binary(name, entry.datatype, shape, raw[used])
            used += 1
        else:
            inputs[name] = _from_contents(name, entry.datatype, shape, entry.contents)
    if used != len(raw):
        raise refused(f"raw_input_contents has {len(raw)} tensors; {used} inputs are given.")
    outputs = tuple(wanted_output(o.name, _parameters(o.parameters)) for o in message.outputs)
    return InferCall(
        inputs, outputs, message.id, bool(raw), timeout_of(parameters), priority_of(parameters),
        parameters,
    )  # fmt: skip


def write_answer(
    model: str,
    version: str,
    call: InferCall,
    outputs: Sequence[tuple[str, np.ndarray]],
    regions: Regions,
) -> Any:
    """Return the ModelInferResponse: of raw bytes if the request was, or a type has no other."""
    places = {wanted.name: wanted.place for wanted in call.outputs}
    answer = MESSAGES["ModelInferResponse"](model_name=model, model_version=version, id=call.id)
    raw = call.binary or any(NAMES[array.dtype] not in CONTENTS for _, array in outputs)
    for name, array in outputs:
        datatype = NAMES[array.dtype]
        entry = answer.outputs.add(name=name, datatype=datatype, shape=array.shape)
        if place := places.get(name):
            for key, value in write_place(place, array, regions).items():
                field = "string_param" if isinstance(value, str) else "int64_param"
                setattr(entry.parameters[key], field, value)
            if raw:
                answer.raw_output_contents.append(b"")
        elif raw:
            answer.raw_output_contents.append(bytes(to_binary(array)))
        elif datatype == "BYTES":
            entry.contents.bytes_contents.extend(text.encode() for text in to_json(name, array))
        else:
            getattr(entry.contents, CONTENTS[datatype]).extend(array.ravel().tolist())
    return answer


def _from_contents(name: str, datatype: str, shape: tuple[int, ...], contents: Any) -> np.ndarray:
    field = CONTENTS.get(datatype)
    if field is None:
        raise refused(f"input {name!r}: {datatype!r} is for raw_input_contents, or unknown.")
    if others := [set_.name for set_, _ in contents.ListFields() if set_.name != field]:
        raise refused(f"input {name!r} is {datatype}: wanted {field}, got {others[0]}.")
    data = list(getattr(contents, field))
    if datatype == "BYTES":
        try:
            data = [text.decode() for text in data]
        except UnicodeDecodeError as error:
            raise refused(f"input {name!r} has a string that is not UTF-8.") from error
    elif datatype in ("FP32", "FP64"):
        array = np.array(data, np.float32 if datatype == "FP32" else np.float64)
        return from_binary(name, datatype, shape, array.tobytes())  # with NaN, as JSON has not
    return from_json(name, datatype, shape, data)


def _parameters(given: Any) -> Mapping[str, Any]:
    """Return parameters as JSON would have them."""
    return {
        key: getattr(value, chosen)
        for key, value in given.items()
        if (chosen := value.WhichOneof("parameter_choice"))
    }
