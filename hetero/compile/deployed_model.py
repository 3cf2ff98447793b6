"""Deployed model: the deployment that the requests of a compiled model run on.

The compiled model and its requests refer to this object, but not vice versa. When the last of them
is garbage-collected, the deployment is closed and the devices release its memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace

import numpy as np

from hetero.compile.autoscaling import Autoscaler
from hetero.compile.memory_recovery import MemoryRecovery, RecoverableSubmission
from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable, visible_ports
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.devices.request.response import NodeTimes
from hetero.devices.request.target import Submission
from hetero.scheduler.executor import Deployment
from hetero.verify.live_samples import LiveSampler


class DeployedModel:
    """A deployment as a `hetero.devices.request.target.RequestTarget`.

    `deployment`: closed with this object.
    `profiles`: whether requests time their executed nodes.
    `optional_inputs`: inputs of the model that are constants in this deployment.
    `variables`: states of requests, which are not visible as ports.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        profiles: bool,
        optional_inputs: tuple[TensorSpec, ...] = (),
        variables: tuple[Variable, ...] = (),
    ) -> None:
        self._lock = threading.Lock()
        self._is_closed = False
        self._finalizer: weakref.finalize[..., DeployedModel] | None = None
        self.deployment = deployment
        self.profiles = profiles
        #: Times of the executed nodes of its requests.
        self.node_times = NodeTimes()
        self.name: str = deployment.plan.name
        plan = deployment.plan
        self.inputs, self.outputs = visible_ports(plan.inputs, plan.outputs, variables)
        self.variables = variables
        self.optional_inputs = optional_inputs
        self._required = frozenset(port.name for port in plan.inputs)
        #: Compiles the model again with some of its optional inputs as inputs.
        self.compile_with_inputs: Callable[[frozenset[str]], DeployedModel] | None = None
        #: Starts and stops further replicas, if ``REPLICAS`` is ``auto`` or a range.
        self.autoscaler: Autoscaler | None = None
        #: Repeats a share of the requests on the reference, if any.
        self.sampler: LiveSampler | None = None
        self._models_by_inputs: dict[frozenset[str], DeployedModel] = {}
        #: Replaces the deployment if a device runs out of memory, if the plan has to fit.
        self.recovery: MemoryRecovery | None = None

    @property
    def deployment(self) -> Deployment:
        """The present deployment; another one after a device ran out of memory."""
        return self._deployment

    @deployment.setter
    def deployment(self, deployment: Deployment) -> None:
        with self._lock:
            is_closed = self._is_closed
            if not is_closed:
                if self._finalizer is not None:
                    self._finalizer.detach()
                self._deployment = deployment
                self._finalizer = weakref.finalize(self, deployment.close_later)
                # At exit, the process ends its threads and devices itself.
                self._finalizer.atexit = False
        if is_closed:  # the user closed the model while another plan was loaded
            deployment.close()

    @property
    def callback_executor(self) -> Executor:
        """Executor of the requests' callbacks."""
        return self.deployment.callback_executor

    def copy_input(self, array: np.ndarray) -> np.ndarray:
        """Return a copy of a large input, in memory that suits the deployment."""
        return self._deployment.copy_input(array)

    def submit(
        self, values: Mapping[str, Value], request: Request
    ) -> Submission | CompletedSubmission:
        """Start a request with checked values.

        The first request with a certain set of optional inputs compiles the model for it.
        """
        if self.optional_inputs and (
            optional_names := frozenset(values).difference(self._required)
        ):
            with self._lock:
                if (
                    optional_names not in self._models_by_inputs
                    and self.compile_with_inputs is not None
                ):
                    self._models_by_inputs[optional_names] = self.compile_with_inputs(
                        optional_names
                    )
                deployed_model = self._models_by_inputs.get(optional_names)
            if deployed_model is not None:  # None if this model is closed
                return deployed_model.submit(values, request)
        deployment = self._deployment
        submission: Submission | CompletedSubmission
        submission = (self.autoscaler or deployment).submit(values, request)
        if self.recovery is not None and not isinstance(submission, CompletedSubmission):
            submission = RecoverableSubmission(
                self, self.recovery, submission, deployment, values, request
            )
        if self.sampler is not None:
            self.sampler.watch(submission, values)
        return submission

    def autoscale(self, autoscaler: Autoscaler) -> None:
        """Route requests by an autoscaler, whose first replica is this deployment."""
        self.autoscaler = autoscaler
        weakref.finalize(self, autoscaler.close_later).atexit = False

    def context(self) -> RemoteContext:
        """Return the memory of the device that receives the first inputs."""
        return self.deployment.context()

    def executed_nodes(self, stages: Iterable[int] | None = None) -> tuple[ExecutedNode, ...]:
        """Return the executed nodes of some or all stages, with names in the runtime model."""
        nodes: list[ExecutedNode] = []
        if stages is None:
            stages = dict.fromkeys(n for route in self.deployment.routes for n in route.stages)
        for stage in stages:
            for node in self.deployment.executed_nodes(stage):
                name = self.executed_name(stage, node.name)
                nodes.append(replace(node, name=name, execution_order=len(nodes)))
        return tuple(nodes)

    def executed_name(self, stage: int, node: str) -> str:
        """Return a node's name in the runtime model."""
        return f"subgraph{stage}: {node}"

    def close(self) -> None:
        """Close the deployment and release the devices' memory; later requests fail."""
        with self._lock:
            self._is_closed = True
            deployed_models, self._models_by_inputs = self._models_by_inputs, {}
            self.compile_with_inputs = None
        if self._finalizer is not None:
            self._finalizer.detach()
        if self.autoscaler is not None:
            self.autoscaler.close()
        self.deployment.close()
        for deployed_model in deployed_models.values():
            deployed_model.close()
