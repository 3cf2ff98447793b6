"""The messages between a deployment's client and its devices.

Each says by its task or request to which attempt it belongs; what comes twice or late changes
nothing. They are tuples because several are made for each request.
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
    """To a device: inputs of a task, and how the stages before it went."""

    task: Task
    tensors: Mapping[str, Value]
    runs: tuple[StageTiming, ...] = ()


class Outputs(NamedTuple):
    """To the client: a stage ended that gives outputs of the model, or nothing to any stage.

    Outputs that a device keeps are told by its stage's run, in place of them; they are one bundle,
    under `bundle_key`. Where a stage gives no others, its run comes with those of later stages.
    """

    task: Task
    tensors: Mapping[str, Value]
    runs: tuple[StageTiming, ...] = ()


class Failure(NamedTuple):
    """To the client: a task raised, or cannot be run where it was sent."""

    task: Task
    error: BaseException


class Dropped(NamedTuple):
    """To a device: nobody waits for the attempt any more."""

    request: Request


class Keep(NamedTuple):
    """To a device: hold a bundle of a client's tensors, by name, over what it held under the key.

    It answers the client with `Values` of the task, without tensors, or with a `Failure`.
    """

    task: Task
    client: str
    key: str
    tensors: Mapping[str, Value]


class Give(NamedTuple):
    """To a device: send what it keeps as `Values` of a task to an address.

    `wanted`: of bundles, by key, which of its tensors each input is. Where it has not got them, the
    client is told of a `Failure`; with `awaits`, they are sent once it has them. It lets go of the
    bundles in `free` besides.
    """

    task: Task
    client: str
    address: str
    wanted: Mapping[str, Mapping[str, str]]
    free: tuple[str, ...] = ()
    awaits: bool = False


#: How rows lie, and which they are: of a bundle's key, a tensor's name and positions.
RowsOf = tuple[RowLayout, tuple[tuple[str, str, tuple[int, ...]], ...]]


class Join(NamedTuple):
    """To a device: hold a bundle of tensors made of rows of others that it keeps.

    It answers the client with `Values` of the task, without tensors, or with a `Failure`.
    """

    task: Task
    client: str
    key: str
    made: Mapping[str, RowsOf]


class Free(NamedTuple):
    """To a device: let go of the bundles that it keeps under keys."""

    keys: tuple[str, ...]


Message = Values | Outputs | Failure | Dropped | Keep | Give | Join | Free


def bundle_key(request: Request, stage: int | str) -> str:
    """Return the key of what a stage keeps of an attempt; of no stage, what those begin with."""
    return f"{request.deployment}/{request.id}/{request.attempt}/{stage}"


def sent_key(request: Request, stage: int) -> str:
    """Return the key of what a stage of an attempt sent to others."""
    return f"{bundle_key(request, stage)}/sent"
