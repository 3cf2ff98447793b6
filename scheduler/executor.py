"""Executor protocol: lists and queries devices, and deploys plans on them.

`InProcessExecutor` and `RayExecutor` implement it. The layers above depend only on this protocol
and on the deployments that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.plugin.program import Value
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.scheduler.client.deployment import Deployment as Deployment
from hetero.scheduler.client.request_runner import Submission as Submission
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import ObservedRequest
from hetero.scheduler.processes.memory_use import MemoryUse
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.isolation import RunBounds, RunResult
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.placement import Placement
from hetero.scheduler.types.plan import Plan


class ReplannedModel(NamedTuple):
    """New placement of a replanned model, with its stage sources and constants."""

    placement: Placement
    sources: Sequence[StageSource]
    constants: Mapping[str, np.ndarray]


#: Replans a model without some of its devices; takes the names of the removed devices.
Replan = Callable[[Collection[str]], ReplannedModel]


class Executor(Protocol):
    """Devices, and the deployment of plans on them."""

    def devices(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device, and every broken plugin with its error, in the plugins' order.

        `wait`: whether to wait for new nodes to list their devices.
        """

    def start(self, devices: Collection[str]) -> None:
        """Start devices in parallel before they are used; return without waiting."""

    def add_nodes(self, count: int, is_enough: Callable[[], bool]) -> bool:
        """Request more nodes from the cluster's autoscaler, and wait until there are enough.

        `is_enough`: returns whether the present devices are enough.
        Returns False: the cluster has no autoscaler, or its nodes did not start in time.
        """

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Query a device for the nodes of `model` that it supports.

        The result uses the device's name as in `devices`.
        """

    def run_isolated(
        self,
        device: str,
        model: Model,
        config: Mapping[str, Any],
        inputs: Sequence[Mapping[str, Value]],
        bounds: RunBounds,
    ) -> list[RunResult]:
        """Compile a model on a device in a process of its own; run it for each set of inputs.

        A crash, a hang or an exhausted memory is a result, and does not affect the device.
        """

    def get_property(self, device: str, name: str) -> Any:
        """Return the value of a device's property."""

    def memory_use(self, device: str) -> MemoryUse | None:
        """Return the memory of a device's process; None if the device has no process of its own."""

    def create_context(self, device: str) -> RemoteContext:
        """Create a remote context, which allocates resident tensors in a device's process."""

    def deploy(
        self,
        plan: Plan | Placement,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        limits: Limits | None = None,
        other_devices: Collection[str] = (),
        replan: Replan | None = None,
        stateful: bool = False,
    ) -> Deployment:
        """Compile every stage on its device.

        The plan's devices on one node share the cores of the node in proportion to the work of
        their stages. Other deployments on the same devices are not considered: models that run at
        the same time compete for the cores.

        `plan`: the plan, whose stages use device names of `devices`; or a placement with several
            routes, which share the admission and number their stages consecutively.
        `sources`: one source for each stage of the placement.
        `constants`: values of the plans' constant outputs.
        `limits`: queue limits.
        `other_devices`: devices that run at the same time as the plan's, and therefore also get a
            share of their node's cores.
        `replan`: replans the model; called when every route has an excluded device. Requests,
            including those in flight, then use the routes of the new placement.
        `stateful`: whether requests depend on states of earlier requests. If true, a lost device
            causes replanning at once, not only after its restart takes long.
        """

    def requests_in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended, with their progress."""

    def load(self) -> Load:
        """Return the present load of all deployments and started devices."""

    def close(self) -> None:
        """Close every deployment and stop everything that this executor started; idempotent."""
