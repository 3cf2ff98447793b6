"""A call for an inference: what REST and gRPC requests both become."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from hetero.serve.errors import refused
from hetero.serve.regions import Place

#: The level of a request that names none; 1 is the highest.
USUAL_LEVEL: Final = 100


@dataclass(frozen=True, slots=True)
class WantedOutput:
    """An output that a call asks for.

    `binary`: whether as raw bytes; None leaves it to the call.
    `place`: where in the client's memory it is written to.
    """

    name: str
    binary: bool | None = None
    place: Place | None = None


@dataclass(frozen=True, slots=True)
class InferCall:
    """A call for an inference, with its tensors read.

    `outputs`: those that are wanted; empty means all.
    `binary`: whether outputs come as raw bytes where they do not say.
    `timeout_s`: seconds until the answer must be there; None leaves it to the model.
    `priority`: as `hetero.InferRequest.priority`: the greatest goes first.
    """

    inputs: Mapping[str, np.ndarray]
    outputs: tuple[WantedOutput, ...] = ()
    id: str = ""
    binary: bool = False
    timeout_s: float | None = None
    priority: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)


def place_of(parameters: Mapping[str, Any]) -> Place | None:
    """Return where in a client's memory a tensor is; None where it is in the request."""
    name = parameters.get("shared_memory_region")
    if name is None:
        return None
    if not isinstance(name, str):
        raise refused(f"parameter shared_memory_region is {name!r}; wanted a name.")
    nbytes = _whole(parameters, "shared_memory_byte_size", 0)
    return Place(name, nbytes, _whole(parameters, "shared_memory_offset", 0))


def wanted_output(name: str, parameters: Mapping[str, Any]) -> WantedOutput:
    """Return the output that a call asks for by name, with parameters."""
    if parameters.get("classification"):
        raise refused("parameter classification: not here; take the largest of the output.", 501)
    return WantedOutput(name, flag_of(parameters, "binary_data"), place_of(parameters))


def flag_of(parameters: Mapping[str, Any], name: str) -> bool | None:
    """Return a parameter that is true or false; None where it is not given."""
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise refused(f"parameter {name} is {value!r}; wanted true or false.")
    return value


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Return the seconds of the parameter ``timeout``, which is in microseconds; 0 is none."""
    return _whole(parameters, "timeout", 0) / 1e6 or None


def priority_of(parameters: Mapping[str, Any]) -> int:
    """Return the priority of the parameter ``priority``, whose level 1 is the highest."""
    level = _whole(parameters, "priority", 0)
    return USUAL_LEVEL - level if level else 0


def refuse_sequences(parameters: Mapping[str, Any]) -> None:
    """Raise ProtocolError where a request is to be one of a sequence."""
    if parameters.get("sequence_id"):
        raise refused(
            "sequence_id: models here keep nothing between requests. Leave it out, and give "
            "what the model remembers as inputs.",
            501,
        )


def _whole(parameters: Mapping[str, Any], name: str, least: int) -> int:
    value = parameters.get(name, least)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if type(value) is not int or value < least:
        raise refused(f"parameter {name} is {value!r}; wanted a whole number >= {least}.")
    return value
