"""Messages between the client of a deployment and its devices.

Each message names its attempt by its task or request; duplicates and late messages have no effect.
Messages are tuples, because each request creates several.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hetero.devices.plugin.program import Value
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming


class Task(NamedTuple):
    """One stage of one attempt of one request."""

    request: Request
    stage: int


class Values(NamedTuple):
    """To a device: inputs of a task, with the timings of earlier stages."""

    task: Task
    tensors: Mapping[str, Value]
    runs: tuple[StageTiming, ...] = ()


class Outputs(NamedTuple):
    """To the client: outputs of the model from a stage, with stage timings.

    Outputs that stay resident on the device are not included: the timing of the stage describes
    them, and `bundle_key` identifies their bundle. A stage that also has consumers sends its timing
    with those of later stages.
    """

    task: Task
    tensors: Mapping[str, Value]
    runs: tuple[StageTiming, ...] = ()


class Failure(NamedTuple):
    """To the client: a task raised an error, or cannot run on the device."""

    task: Task
    error: BaseException


class Dropped(NamedTuple):
    """To a device: the attempt is cancelled."""

    request: Request


class StoreTensors(NamedTuple):
    """To a device: store a bundle of resident tensors, replacing the bundle of that key.

    The device replies with `Values` of the task, without tensors, or with a `Failure`.
    """

    task: Task
    client: str
    key: str
    tensors: Mapping[str, Value]


class FetchTensors(NamedTuple):
    """To a device: send resident tensors as `Values` of a task to an address.

    `wanted`: bundle key -> input name -> tensor of the bundle.
    `free`: keys of bundles to free afterwards.
    `awaits`: whether the device waits for missing bundles; otherwise it sends a `Failure` to the
        client.
    """

    task: Task
    client: str
    address: str
    wanted: Mapping[str, Mapping[str, str]]
    free: tuple[str, ...] = ()
    awaits: bool = False


#: Layout of rows, and their origins: bundle key, tensor name and row positions.
RowsOf = tuple[RowLayout, tuple[tuple[str, str, tuple[int, ...]], ...]]


class ConcatTensors(NamedTuple):
    """To a device: build a bundle of resident tensors from rows of other resident tensors.

    The device replies with `Values` of the task, without tensors, or with a `Failure`.
    """

    task: Task
    client: str
    key: str
    made: Mapping[str, RowsOf]


class FreeTensors(NamedTuple):
    """To a device: free resident bundles."""

    keys: tuple[str, ...]


Message = (
    Values | Outputs | Failure | Dropped | StoreTensors | FetchTensors | ConcatTensors | FreeTensors
)


def bundle_key(request: Request, stage: int | str) -> str:
    """Return the key of the resident outputs of a stage; an empty stage gives the common prefix."""
    return f"{request.deployment}/{request.id}/{request.attempt}/{stage}"


def sent_key(request: Request, stage: int) -> str:
    """Return the key of the copies of tensors that a stage sent to other stages."""
    return f"{bundle_key(request, stage)}/sent"
