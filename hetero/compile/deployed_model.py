"""What the requests of a compiled model run on: its deployment, kept while something uses it.

The compiled model and its requests hold this object, and it holds neither: once the last of them
is gone, the devices give back what they hold.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import replace

from hetero.devices.model.tensor_spec import TensorSpec
from hetero.devices.model.variables import Variable, visible_ports
from hetero.devices.plugin.program import ExecutedNode, Value
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.request.completed_submission import CompletedSubmission
from hetero.devices.request.request import Request
from hetero.devices.request.response import NodeTimes
from hetero.scheduler.executor import Deployment, Submission


class DeployedModel:
    """A deployment as a `hetero.devices.request.target.RequestTarget`.

    `deployment`: closed with this object.
    `optional_inputs`: inputs of the model that are constants to this deployment.
    `variables`: what requests keep between their runs, and callers do not see.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        profiles: bool,
        optional_inputs: tuple[TensorSpec, ...] = (),
        variables: tuple[Variable, ...] = (),
    ) -> None:
        self._deployment = deployment
        self.profiles = profiles
        #: Times of its requests' executed nodes.
        self.node_times = NodeTimes()
        self.name: str = deployment.plan.name
        plan = deployment.plan
        self.inputs, self.outputs = visible_ports(plan.inputs, plan.outputs, variables)
        self.variables = variables
        self.optional_inputs = optional_inputs
        self._required = frozenset(port.name for port in plan.inputs)
        #: Compiles the model again with some of its optional inputs as inputs.
        self.compile_variant: Callable[[frozenset[str]], DeployedModel] | None = None
        self._variants: dict[frozenset[str], DeployedModel] = {}
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, deployment.close_later)
        self._finalizer.atexit = False  # threads and devices end with the process

    @property
    def callback_executor(self) -> Executor:
        """Where requests' callbacks run."""
        return self._deployment.callback_executor

    def submit(
        self, values: Mapping[str, Value], request: Request
    ) -> Submission | CompletedSubmission:
        """Start a request on checked values; devices time nodes by their own PERF_COUNT.

        The first request that gives a set of optional inputs has the model compiled for those.
        """
        if self.optional_inputs and (given := frozenset(values).difference(self._required)):
            with self._lock:
                if given not in self._variants and self.compile_variant is not None:
                    self._variants[given] = self.compile_variant(given)
                variant = self._variants.get(given)
            if variant is not None:  # else this one is closed
                return variant.submit(values, request)
        return self._deployment.submit(values, request)

    def context(self) -> RemoteContext:
        """Return the memory of the device that takes the first inputs."""
        return self._deployment.context()

    def executed_nodes(self, stages: Iterable[int] | None = None) -> tuple[ExecutedNode, ...]:
        """Return what stages, all by default, execute, names behind ``subgraph<i>: ``."""
        rows: list[ExecutedNode] = []
        if stages is None:
            stages = dict.fromkeys(n for route in self._deployment.routes for n in route.stages)
        for stage in stages:
            for node in self._deployment.executed_nodes(stage):
                name = self.executed_name(stage, node.name)
                rows.append(replace(node, name=name, execution_order=len(rows)))
        return tuple(rows)

    def executed_name(self, stage: int, node: str) -> str:
        """Return a node's name in the runtime model."""
        return f"subgraph{stage}: {node}"

    def close(self) -> None:
        """Give back what the devices hold; requests fail from then on."""
        with self._lock:
            variants, self._variants = self._variants, {}
            self.compile_variant = None
        self._finalizer.detach()
        self._deployment.close()
        for variant in variants.values():
            variant.close()
