"""The messages between a deployment's client and its devices.

Each says by its task or request to which attempt it belongs; what comes twice or late changes
nothing. They are tuples because several are made for each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from devices.plugin.program import Value
from devices.request.answer import StageRun
from devices.request.joined_rows import RowLayout
from devices.request.request import Request


class Task(NamedTuple):
    """One stage of one attempt of one request."""

    request: Request
    stage: int


class Values(NamedTuple):
    """To a device: inputs of a task, and how the stages before it went."""

    task: Task
    tensors: Mapping[str, Value]
    runs: tuple[StageRun, ...] = ()


class Outputs(NamedTuple):
    """To the client: a stage ended that gives outputs of the model, or nothing to any stage.

    In place of an output that its request keeps comes what it is: element type and shape.
    """

    task: Task
    tensors: Mapping[str, Value]
    runs: tuple[StageRun, ...] = ()


class Failure(NamedTuple):
    """To the client: a task raised, or cannot be run where it was sent."""

    task: Task
    error: BaseException


class Dropped(NamedTuple):
    """To a device: nobody waits for the attempt any more."""

    request: Request


class Keep(NamedTuple):
    """To a device: hold a client's tensors, by key, over what it held there.

    It answers the client with `Values` of the task, without tensors, or with a `Failure`.
    """

    task: Task
    client: str
    tensors: Mapping[str, Value]


class Give(NamedTuple):
    """To a device: send what it keeps, input name -> key, as `Values` of a task to an address.

    Where it has not got that, the client is told of a `Failure`. It lets go of `free` besides.
    """

    task: Task
    client: str
    address: str
    keys: Mapping[str, str]
    free: tuple[str, ...] = ()


class Join(NamedTuple):
    """To a device: hold tensors made of rows of others that it keeps, by key.

    For each it is said how rows lie, and of which keys they are which. It answers the client with
    `Values` of the task, without tensors, or with a `Failure`.
    """

    task: Task
    client: str
    made: Mapping[str, tuple[RowLayout, tuple[tuple[str, tuple[int, ...]], ...]]]


class Free(NamedTuple):
    """To a device: let go of what it keeps under keys."""

    keys: tuple[str, ...]


Message = Values | Outputs | Failure | Dropped | Keep | Give | Join | Free


def output_key(request: Request, name: str) -> str:
    """Return the key of an output that an attempt keeps: no other has it."""
    return f"{request.deployment}/{request.id}/{request.attempt}/{name}"
