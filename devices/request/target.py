"""What an infer request runs on: the small interface between it and a device, or a whole plan."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from devices.model.tensor_spec import TensorSpec
from devices.plugin.program import ExecutedNode, Value
from devices.request.node_times import NodeTimes


@dataclass(frozen=True, slots=True)
class Answer:
    """What one run of a model on one device gave.

    Attributes
    ----------
    outputs : mapping of str to value
        By name.
    node_times_s : mapping of str to float
        Seconds by executed node; empty where the run was not profiled.
    stage_times_s : mapping of str to float
        Seconds of ``upload``, ``infer`` and ``download``, as far as the device tells.
    """

    outputs: Mapping[str, Value]
    node_times_s: Mapping[str, float] = field(default_factory=dict)
    stage_times_s: Mapping[str, float] = field(default_factory=dict)


class Submission(Protocol):
    """A run that was handed to a target.

    `future` gives an object with `outputs` (values by name) and, as the target has them,
    `node_times_s` and `stage_times_s`, or `stage_runs` (each with `stage` and `node_times_s`).
    """

    @property
    def future(self) -> Future[Any]:
        """What the run will answer."""

    def cancel(self) -> None:
        """Ask the run to stop."""


class RequestTarget(Protocol):
    """What requests run on: a device's compiled model, or a model deployed over many."""

    @property
    def name(self) -> str:
        """The model's name."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The input ports."""

    @property
    def optional_inputs(self) -> tuple[TensorSpec, ...]:
        """Inputs that have a default."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
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

    def submit(
        self, values: Mapping[str, Value], *, profile: bool, timeout_s: float | None
    ) -> Submission:
        """Start a run; may wait where too much is in flight."""

    def executed_nodes(self) -> tuple[ExecutedNode, ...]:
        """Return the runtime model, for the rows of the profile."""
