"""Interfaces between an infer request and the device or plan that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

import numpy as np

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.request import Request
from hetero.devices.request.response import NodeTimes, Response
from hetero.devices.request.story import StoryLine


class Submission(Protocol):
    """A run that a target has accepted."""

    @property
    def request_id(self) -> int:
        """Number of the request at the target."""

    @property
    def future(self) -> FutureLike[Response]:
        """Future of the response."""

    @property
    def waited_s(self) -> float:
        """Seconds until admission."""

    def story(self) -> Sequence[StoryLine]:
        """Return the history of the run so far; the history does not reference any tensors."""

    def cancel(self) -> object:
        """Cancel the run."""

    def pending_outputs(self) -> Mapping[str, Value]:
        """Return references to the resident outputs of a run in flight, by output name.

        Outputs without a reference are absent.
        """


class RequestTarget(Protocol):
    """A model that requests run on: compiled for one device, or deployed on several."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The input ports."""

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs with a default."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """State variables; their inputs and outputs are not among the ports."""

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """The output ports."""

    @property
    def profiles(self) -> bool:
        """Whether requests time executed nodes (PERF_COUNT)."""

    @property
    def node_times(self) -> NodeTimes:
        """Average node times of all requests."""

    @property
    def callback_executor(self) -> Executor:
        """Executor of callbacks, whose threads never run models."""

    def copy_input(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of a large input, in memory that suits the target."""

    def submit(
        self, values: Mapping[str, Value], request: Request
    ) -> Submission | CompletedSubmission:
        """Start a run, or run it in the calling thread.

        Waits for admission if too many requests are in flight. Writable outputs share no memory
        with the values.
        """

    def executed_name(self, stage: int, node: str) -> str:
        """Return the name in `executed_nodes` of a stage's executed node."""

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the nodes of the runtime model, for the profile."""
