"""What an executor is: devices to ask, plans to deploy, requests to submit and answers to await.

`InProcessExecutor` and `RayExecutor` both are one; the layers above know only these protocols.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from devices.model.model import Model
from devices.plugin.program import ExecutedNode, Payload, Value
from devices.plugin.remote import RemoteContext
from devices.plugin.support import Support
from devices.request.answer import Answer
from devices.request.promise import Promised
from devices.request.request import PLAIN, Request
from scheduler.formats.stage_source import StageSource
from scheduler.observe.load import Load
from scheduler.observe.observer import ObservedRequest
from scheduler.vocabulary.limits import Limits
from scheduler.vocabulary.placement import Placement, Route
from scheduler.vocabulary.plan import Plan
from scheduler.vocabulary.record import StoryLine
from scheduler.vocabulary.rows import DeviceDescriptor


class Remade(NamedTuple):
    """A model that was placed anew: what `Executor.deploy` takes."""

    placement: Placement
    sources: Sequence[StageSource]
    constants: Mapping[str, np.ndarray]


#: Places a model on what is left of its devices: takes the names of those that are gone for good.
Remake = Callable[[Collection[str]], Remade]


@dataclass(slots=True)  # one is made for each request, and freezing it doubles the cost
class Submission:
    """A request that was admitted.

    Attributes
    ----------
    request_id : int
        Its id.
    future : Promised
        Its answer, once it is there.
    cancel : callable
        Cancels it; True if its future now ends with RequestCancelledError.
    waited_s : float
        Seconds until it was admitted.
    story : callable
        Returns what happened to it so far.
    """

    request_id: int
    future: Promised[Answer]
    cancel: Callable[[], bool] = field(repr=False)
    waited_s: float = 0.0
    story: Callable[[], list[StoryLine]] = field(default=list, repr=False)


class Deployment(Protocol):
    """A plan, or a placement, on its devices, ready for requests."""

    @property
    def plan(self) -> Plan:
        """What was deployed; where there are several routes, the first one's."""

    @property
    def imported(self) -> Collection[int]:
        """Stages that were imported from their payloads; the others were compiled."""

    @property
    def routes(self) -> tuple[Route, ...]:
        """The ways that requests take now, with the numbers of their stages; at least one."""

    @property
    def has_route(self) -> bool:
        """Whether there is one without devices that are gone for good."""

    @property
    def callback_executor(self) -> ThreadPoolExecutor:
        """Where requests' callbacks run: never a thread that computes."""

    def submit(self, inputs: Mapping[str, Value], request: Request = PLAIN) -> Submission:
        """Admit a request; block while as many requests or bytes are in flight as may be.

        Parameters
        ----------
        inputs : mapping of str to value
            One for each input of the plan, already checked and converted. The caller must not
            write to the arrays until the answer is there.
        request : Request
            How long it may take, and so on.

        Raises
        ------
        OverloadedError
            There is no room, and `request.waits` is not set or too many callers wait for some.
        DeadlineError
            No room within its `timeout_s`, or none of it is left.
        DeviceLostError
            A device of the plan is gone.
        """

    def context(self) -> RemoteContext:
        """Return the memory of the device that takes the first inputs."""

    def story(self, request_id: int) -> list[StoryLine]:
        """Return what happened to a request so far; empty for one long forgotten."""

    def executed_nodes(self, stage: int) -> tuple[ExecutedNode, ...]:
        """Return a stage's runtime model, in execution order."""

    def export(self, stage: int) -> Payload:
        """Return a stage's device's own form of it.

        Raises
        ------
        UnsupportedOperationError
            If the device has none.
        """

    def close(self) -> None:
        """Cancel what is in flight and unload the stages; again is harmless."""

    def close_later(self) -> None:
        """Close soon, in another thread: for finalizers, which run anywhere, locks held or not."""


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

        Parameters
        ----------
        plan : Plan or Placement
            Its stages name devices of `devices`. A placement has several ways for requests, which
            share its admission; its stages are numbered through all of them.
        sources : sequence of StageSource
            One for each of the placement's stages.
        constants : mapping of str to numpy.ndarray
            Values of the plans' constant outputs.
        limits : Limits, optional
            Bounds of its queues.
        company : collection of str
            Devices that work beside the plan's, as those of another replica do: they have their
            share of their node's cores too.
        remake : callable, optional
            Called where no route is left without devices that are gone for good: requests, those
            in flight included, take the routes of what it returns.
        stateful : bool
            Whether requests go on from what devices keep of earlier ones, so that a device that is
            away is done without at once, not only where it takes long to start.
        """

    def requests_in_flight(self) -> Sequence[ObservedRequest]:
        """Return the requests that have not ended, as far as they have come."""

    def load(self) -> Load:
        """Return what waits and runs now, of what has been started."""

    def close(self) -> None:
        """Close every deployment and stop what this executor started; again is harmless."""
