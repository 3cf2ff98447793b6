"""What an infer request runs on: the small interface between it and a device, or a whole plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Protocol

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.request.answered import Answered
from hetero.devices.request.promise import FutureLike
from hetero.devices.request.request import Request
from hetero.devices.request.response import NodeTimes, Response
from hetero.devices.request.story import StoryLine


class Submission(Protocol):
    """A run that was handed to a target."""

    @property
    def request_id(self) -> int:
        """Its number there."""

    @property
    def future(self) -> FutureLike[Response]:
        """What the run will answer."""

    @property
    def waited_s(self) -> float:
        """Seconds until it was admitted."""

    def story(self) -> Sequence[StoryLine]:
        """Return what happened to it so far; what does so holds none of its values."""

    def cancel(self) -> object:
        """Ask the run to stop."""

    def pending_outputs(self) -> Mapping[str, Value]:
        """Return what stands for outputs that devices will keep, by name, while it runs.

        None where nothing stands for them.
        """


class RequestTarget(Protocol):
    """What requests run on: a device's compiled model, or a model deployed over many."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The input ports."""

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that have a default."""

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Pairs of further inputs and outputs that requests keep between their runs."""

    @property
    def outputs(self) -> Sequence[TensorSpec]:
        """The output ports."""

    @property
    def profiles(self) -> bool:
        """Whether requests time their nodes: PERF_COUNT."""

    @property
    def node_times(self) -> NodeTimes:
        """What its requests add their nodes' times to."""

    @property
    def callback_executor(self) -> Executor:
        """Where callbacks run; never a thread that computes."""

    def submit(self, values: Mapping[str, Value], request: Request) -> Submission | Answered:
        """Start a run, or run it in the calling thread; may wait if too much is in flight."""

    def executed_name(self, stage: int, node: str) -> str:
        """Return the name that a stage's executed node has among `executed_nodes`."""

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, for the rows of the profile."""
