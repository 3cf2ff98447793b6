"""Inference requests: the form that REST and gRPC messages have in common."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple, Protocol

import numpy as np
from msgspec import Meta, Raw, Struct

from hetero.apps.serve.errors import protocol_error
from hetero.apps.serve.shared_memory import Location, SharedMemoryRegions
from hetero.apps.serve.tensors import NAMES, decode_raw, encode_raw, find_datatype

#: Priority level of a request that names none; 1 is the highest.
DEFAULT_LEVEL: Final = 100
#: Dimensions of a tensor; numpy's limit.
MAX_RANK: Final = 64
#: Elements of a tensor; beyond, numpy's sizes in bytes overflow.
MAX_ELEMENTS: Final = 2**58
Size = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class TensorParameters(Struct):
    """Parameters of a tensor that the protocol and its extensions define.

    `binary_data_size`: bytes of an input behind the JSON.
    `binary_data`: whether an output is sent as raw bytes; None takes the request's default.
    """

    binary_data_size: Size | None = None
    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0

    @property
    def location(self) -> Location | None:
        """Location of the tensor in shared memory; None if it is part of the message."""
        if self.shared_memory_region is None:
            return None
        return Location(
            self.shared_memory_region, self.shared_memory_offset, self.shared_memory_byte_size
        )


class RequestParameters(Struct):
    """Parameters of a request; `timeout` is in microseconds, 0 is none."""

    binary_data_output: bool = False
    timeout: Size = 0
    priority: Size = 0
    sequence_id: int | str = 0


class RequestedOutput(Struct):
    """An output that a request asks for."""

    name: str
    parameters: TensorParameters | None = None


class InputTensor(Struct):
    """An input tensor whose data is not decoded; `data` is its JSON, if it has any."""

    name: str
    shape: Annotated[list[Size], Meta(max_length=MAX_RANK)]
    datatype: str
    parameters: TensorParameters | None = None
    data: Raw = Raw()


class RequestDocument(Struct):
    """A request without its tensors' data, as JSON has it."""

    inputs: list[InputTensor]
    outputs: list[RequestedOutput] | None = None
    id: str = ""
    parameters: RequestParameters | None = None


class RequestMessage(Protocol):
    """A request in the encoding of REST or gRPC."""

    document: RequestDocument

    @property
    def wants_raw_outputs(self) -> bool:
        """Whether outputs are raw bytes unless the request says otherwise."""

    def decode(self, tensor: InputTensor) -> np.ndarray:
        """Return the data of an input; called once for each, in the document's order."""

    def check_complete(self) -> None:
        """Raise ProtocolError if the message has data that belongs to no input."""


class InferenceRequest(NamedTuple):
    """A request with its inputs decoded.

    `outputs`: the requested outputs by name; empty requests all.
    `timeout_s`: seconds until the deadline; None takes the model's.
    `priority`: as in `hetero.InferRequest.priority`: the greatest runs first.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, TensorParameters]
    id: str
    wants_raw_outputs: bool
    timeout_s: float | None
    priority: int


_NO_PARAMETERS: Final = TensorParameters()
_NO_REQUEST_PARAMETERS: Final = RequestParameters()


def check_document(document: RequestDocument) -> None:
    """Raise ProtocolError if a request is refused whatever the model is."""
    if (document.parameters or _NO_REQUEST_PARAMETERS).sequence_id:
        raise protocol_error(
            "sequence_id: models keep no state between requests here. Leave it out, and pass the "
            "state as inputs.",
            501,
        )
    names = set[str]()
    for tensor in document.inputs:
        if tensor.name in names:
            raise protocol_error(f"input {tensor.name!r} is repeated.")
        names.add(tensor.name)
    for output in document.outputs or ():
        if output.parameters is not None and output.parameters.classification:
            raise protocol_error(
                "parameter classification is not supported: take the largest elements of the "
                "output.",
                501,
            )
    for tensor in document.inputs:
        if math.prod(filter(None, tensor.shape)) > MAX_ELEMENTS:  # whatever has size 0
            raise protocol_error(f"input {tensor.name!r}: shape {tensor.shape} is too large.")


def decode_request(message: RequestMessage, regions: SharedMemoryRegions) -> InferenceRequest:
    """Return a request with its inputs decoded; its document has to be checked before."""
    document = message.document
    parameters = document.parameters or _NO_REQUEST_PARAMETERS
    inputs: dict[str, np.ndarray] = {}
    for tensor in document.inputs:
        if tensor.parameters is not None and (location := tensor.parameters.location):
            inputs[tensor.name] = _read_shared(tensor, location, regions)
        else:
            inputs[tensor.name] = message.decode(tensor)
    message.check_complete()
    return InferenceRequest(
        inputs,
        {output.name: output.parameters or _NO_PARAMETERS for output in document.outputs or ()},
        document.id,
        message.wants_raw_outputs or parameters.binary_data_output,
        parameters.timeout / 1e6 or None,
        DEFAULT_LEVEL - parameters.priority if parameters.priority else 0,
    )


def _read_shared(
    tensor: InputTensor, location: Location, regions: SharedMemoryRegions
) -> np.ndarray:
    dtype = find_datatype(tensor.name, tensor.datatype).dtype
    nbytes = math.prod(tensor.shape) * dtype.itemsize
    if not dtype.hasobject and location.nbytes != nbytes:  # before that much is read
        raise protocol_error(
            f"input {tensor.name!r}: shared_memory_byte_size {location.nbytes}, expected {nbytes} "
            f"for {tensor.datatype} of shape {tensor.shape}."
        )
    return decode_raw(tensor.name, tensor.datatype, tensor.shape, regions.read(location))


class OutputTensor(NamedTuple):
    """An output tensor to encode.

    `is_raw`: whether it is encoded as raw bytes.
    `location`: its parameters in the response if it is in shared memory already.
    """

    name: str
    datatype: str
    array: np.ndarray
    is_raw: bool
    location: Mapping[str, Any] | None


def requested_outputs(
    request: InferenceRequest,
    names: Iterable[str],
    results: Mapping[str, Any],
    regions: SharedMemoryRegions,
) -> Iterator[OutputTensor]:
    """Yield the requested outputs of results; write those with a location to shared memory."""
    for name in request.outputs or names:
        array = np.asarray(results[name])
        parameters = request.outputs.get(name, _NO_PARAMETERS)
        datatype = NAMES[array.dtype]
        if location := parameters.location:
            data = encode_raw(array)
            regions.write(location, data)
            described = {
                "shared_memory_region": location.region,
                "shared_memory_offset": location.offset,
                "shared_memory_byte_size": len(data),
            }
            yield OutputTensor(name, datatype, array, False, described)
        else:
            is_raw = parameters.binary_data
            is_raw = request.wants_raw_outputs if is_raw is None else is_raw
            yield OutputTensor(name, datatype, array, is_raw, None)
