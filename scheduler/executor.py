"""What an executor is: devices to ask, and plans to deploy.

`InProcessExecutor` and `RayExecutor` both are one; the layers above know only this protocol and the
deployments that it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero.devices.model.model import Model
from hetero.devices.plugin.remote_memory import RemoteContext
from hetero.devices.plugin.support import Support
from hetero.scheduler.client.deployment import Deployment as Deployment
from hetero.scheduler.client.runner import Submission as Submission
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.observe.load import Load
from hetero.scheduler.observe.observer import ObservedRequest
from hetero.scheduler.vocabulary.limits import Limits
from hetero.scheduler.vocabulary.placement import Placement
from hetero.scheduler.vocabulary.plan import Plan
from hetero.scheduler.vocabulary.rows import DeviceDescriptor


class Remade(NamedTuple):
    """A model that was placed anew: what `Executor.deploy` takes."""

    placement: Placement
    sources: Sequence[StageSource]
    constants: Mapping[str, np.ndarray]


#: Places a model on what is left of its devices: takes the names of those that are gone for good.
Remake = Callable[[Collection[str]], Remade]


class Executor(Protocol):
    """Devices and the means to run plans on them."""

    def devices(self, *, wait: bool = True) -> tuple[DeviceDescriptor, ...]:
        """Return every device, and every plugin that is broken, in the plugins' order.

        `wait`: for what nodes that are new have to say.
        """

    def start(self, devices: Collection[str]) -> None:
        """Have devices start that are to be asked or used soon, side by side; returns at once."""

    def query(self, device: str, model: Model, config: Mapping[str, Any] | None = None) -> Support:
        """Ask a device which nodes of `model` it runs; the answer names it as `devices` does."""

    def get_property(self, device: str, name: str) -> Any:
        """Return a property's value on a device."""

    def create_context(self, device: str) -> RemoteContext:
        """Return a device's memory: tensors in its process, for requests on this executor."""

    def deploy(
        self,
        plan: Plan | Placement,
        sources: Sequence[StageSource],
        constants: Mapping[str, np.ndarray] | None = None,
        *,
        limits: Limits | None = None,
        company: Collection[str] = (),
        remake: Remake | None = None,
        stateful: bool = False,
    ) -> Deployment:
        """Compile every stage on its device.

        The devices of one node that the plan uses share the node's cores; other deployments on
        the same devices are not looked at: models that run at the same time compete for them.

        `plan`: its stages name devices of `devices`. A placement has several ways for requests,
            which share its admission; its stages are numbered through all of them.
        `sources`: one for each of the placement's stages.
        `constants`: values of the plans' constant outputs.
        `limits`: bounds of its queues.
        `company`: devices that work beside the plan's, as those of another replica do: they have
            their share of their node's cores too.
        `remake`: called where no route is left without devices that are gone for good: requests,
            those in flight included, take the routes of what it returns.
        `stateful`: whether requests go on from what devices keep of earlier ones, so that a device
            that is away is done without at once, not only where it takes long to start.
        """

    def requests_in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended, as far as they have come."""

    def load(self) -> Load:
        """Return what waits and runs now, of what has been started."""

    def close(self) -> None:
        """Close every deployment and stop what this executor started; again is harmless."""
