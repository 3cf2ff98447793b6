"""The open deployments of an executor, and what they share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.remote_memory import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.observe.load import DeploymentLoad, DeviceLoad, Load
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest, Observer
from hetero.scheduler.vocabulary import events


class Held(Protocol):
    """What a deployment is here."""

    key: str

    def tensors_lost(self, device: str) -> None:
        """Fail the requests that wait for a tensor of a device that is away."""

    def in_flight(self) -> list[ObservedRequest]:
        """Return the requests that have not ended."""

    def current_load(self) -> DeploymentLoad:
        """Return how many requests wait and are in flight."""


D = TypeVar("D", bound=Held)


class Deployments(Generic[D]):
    """The open deployments of an executor, and what they share."""

    def __init__(self, observers: Sequence[Observer], memory: RemoteMemory, clock: Clock) -> None:
        #: Who is told of their requests, now: the owner adds and removes.
        self.observers = observers
        #: Ascending through all deployments: they order the devices' queues.
        self.request_ids = itertools.count(1)
        self.in_flight = BytesInFlight()
        #: What looks after their deadlines.
        self.clock = clock
        #: What devices keep for this client.
        self.memory = memory
        self._open: dict[str, D] = {}

    def __iter__(self) -> Iterator[D]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, deployment: D) -> None:
        """Hold a deployment until it is closed."""
        self._open[deployment.key] = deployment

    def discard(self, deployment: D) -> None:
        """Let go of a deployment."""
        self._open.pop(deployment.key, None)

    def tell(self, event: DeviceEvent | events.DeviceEnded | events.DeviceSteady) -> None:
        """Tell the observers what became of a device; what follows a loss or return was told."""
        if isinstance(event, events.DeviceEnded | events.DeviceSteady):
            return
        for observer in tuple(self.observers):
            observer.device(event)
        if isinstance(event, events.DeviceLost) and event.on_the_way:
            self._lose_tensors(event.device)  # what is sent from now on comes

    def told(self, event: DeviceEvent | events.DeviceEnded | events.DeviceSteady) -> None:
        """Fail what waits for tensors of a lost device; requests sent again have asked for them."""
        is_lost = isinstance(event, events.DeviceLost) and not event.on_the_way
        if is_lost or isinstance(event, events.DeviceRemoved):
            self._lose_tensors(event.device)

    def _lose_tensors(self, device: str) -> None:
        for deployment in self:
            deployment.tensors_lost(device)

    def requests_in_flight(self) -> list[ObservedRequest]:
        """Return the requests that have not ended."""
        return [request for deployment in self for request in deployment.in_flight()]

    def load(self, devices: Mapping[str, DeviceLoad]) -> Load:
        """Return what waits and runs, on `devices`."""
        loads = tuple(deployment.current_load() for deployment in self)
        return Load(loads, devices, self.in_flight.nbytes)
