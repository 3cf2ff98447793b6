"""A call for an inference: what REST and gRPC requests both become, and their answers come of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from msgspec import Meta, Raw, Struct

from hetero.apps.serve.datatypes import NAMES
from hetero.apps.serve.errors import refused
from hetero.apps.serve.shared_memory import Regions
from hetero.apps.serve.tensors import from_raw, to_raw

#: The level of a request that names none; 1 is the highest.
USUAL_LEVEL: Final = 100
Size = Annotated[int, Meta(ge=0)]


class TensorParameters(Struct):
    """What the protocol and its extensions define as parameters of a tensor.

    `binary_data_size`: bytes of an input behind the JSON.
    `binary_data`: whether an output comes as raw bytes; None leaves it to the call.
    """

    binary_data_size: Size | None = None
    binary_data: bool | None = None
    classification: int = 0
    shared_memory_region: str | None = None
    shared_memory_byte_size: Size = 0
    shared_memory_offset: Size = 0

    @property
    def place(self) -> tuple[str, int, int] | None:
        """Region, size and offset in the client's memory; None where it is in the message."""
        if (name := self.shared_memory_region) is None:
            return None
        return name, self.shared_memory_byte_size, self.shared_memory_offset


class CallParameters(Struct):
    """What they define as parameters of a call; `timeout` is in microseconds, 0 is none."""

    binary_data_output: bool = False
    timeout: Size = 0
    priority: Size = 0
    sequence_id: int | str = 0


class WantedOutput(Struct):
    """An output that a call asks for."""

    name: str
    parameters: TensorParameters | None = None


class Input(Struct):
    """A tensor of a call; numpy's arrays have 64 dimensions at most."""

    name: str
    shape: Annotated[list[Size], Meta(max_length=64)]
    datatype: str
    parameters: TensorParameters | None = None
    data: Raw = Raw()


class Document(Struct):
    """A request for an inference as it is written."""

    inputs: list[Input]
    outputs: list[WantedOutput] | None = None
    id: str = ""
    parameters: CallParameters | None = None


class InferCall(NamedTuple):
    """A call for an inference, with its tensors read.

    `outputs`: those that are wanted, by name; empty means all.
    `binary`: whether outputs come as raw bytes where they do not say.
    `timeout_s`: seconds until the answer must be there; None leaves it to the model.
    `priority`: as `hetero.InferRequest.priority`: the greatest goes first.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, TensorParameters]
    id: str
    binary: bool
    timeout_s: float | None
    priority: int


_NO_PARAMETERS: Final = TensorParameters()
_USUAL: Final = CallParameters()


def read_call(
    document: Document, tensor: Callable[[Input], np.ndarray], regions: Regions
) -> InferCall:
    """Return the call that a document is; `tensor` reads inputs that are in it, in their order."""
    parameters = document.parameters or _USUAL
    if parameters.sequence_id:
        raise refused(
            "sequence_id: models here keep nothing between requests. Leave it out, and give "
            "what the model remembers as inputs.",
            501,
        )
    inputs: dict[str, np.ndarray] = {}
    for entry in document.inputs:
        if entry.name in inputs:
            raise refused(f"input {entry.name!r} is given twice.")
        if entry.parameters is not None and (place := entry.parameters.place):
            data = regions.read(*place)
            inputs[entry.name] = from_raw(entry.name, entry.datatype, entry.shape, data)
        else:
            inputs[entry.name] = tensor(entry)
    outputs = {o.name: o.parameters or _NO_PARAMETERS for o in document.outputs or ()}
    if any(wanted.classification for wanted in outputs.values()):
        raise refused("parameter classification: not here; take the largest of the output.", 501)
    level = parameters.priority
    return InferCall(
        inputs,
        outputs,
        document.id,
        parameters.binary_data_output,
        parameters.timeout / 1e6 or None,
        USUAL_LEVEL - level if level else 0,
    )


class Output(NamedTuple):
    """An output to be written: in the client's memory already, as raw bytes, or as elements."""

    name: str
    datatype: str
    array: np.ndarray
    is_binary: bool
    parameters: Mapping[str, Any] | None


def placed(
    call: InferCall, names: Iterable[str], answered: Mapping[str, Any], regions: Regions
) -> Iterator[Output]:
    """Yield outputs as a call wants them; those with a place in the client's memory go there."""
    for name in call.outputs or names:
        array = np.asarray(answered[name])
        wanted = call.outputs.get(name, _NO_PARAMETERS)
        datatype = NAMES[array.dtype]
        if place := wanted.place:
            data = to_raw(array)
            region, _, offset = place
            regions.write(*place, data)
            parameters = {
                "shared_memory_region": region,
                "shared_memory_offset": offset,
                "shared_memory_byte_size": len(data),
            }
            yield Output(name, datatype, array, False, parameters)
        else:
            binary = call.binary if wanted.binary_data is None else wanted.binary_data
            yield Output(name, datatype, array, binary, None)
