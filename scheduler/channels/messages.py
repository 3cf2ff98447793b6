"""The messages between a deployment's client and its devices.

Each says by its task or request to which attempt it belongs; what comes twice or late changes
nothing. They are tuples because several are made for each request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from devices.plugin.program import Value
from devices.request.answer import StageRun
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
    """To the client: a stage ended that gives outputs of the model, or nothing to any stage."""

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


Message = Values | Outputs | Failure | Dropped
