"""Registry of an executor's open deployments, with the state that they share."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.observe.load import DeploymentLoad, DeviceLoad, Load
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest, Observer
from hetero.scheduler.types import events

_log = logging.getLogger(__name__)


@contextmanager
def observer_errors_logged(observer: Observer) -> Iterator[None]:
    """Log the errors of an observer: no request depends on them."""
    try:
        yield
    except Exception:
        _log.exception("observer %s failed", type(observer).__name__)


class RegisteredDeployment(Protocol):
    """Interface of a registered deployment."""

    key: str

    def tensors_lost(self, device: str) -> None:
        """Fail the requests that wait for a tensor of a lost device."""

    def in_flight(self) -> list[ObservedRequest]:
        """Return the requests that have not ended."""

    def current_load(self) -> DeploymentLoad:
        """Return the numbers of waiting and running requests."""


D = TypeVar("D", bound=RegisteredDeployment)


class Deployments(Generic[D]):
    """Registry of an executor's open deployments, with the state that they share."""

    def __init__(self, observers: Sequence[Observer], memory: RemoteMemory, clock: Clock) -> None:
        #: Observers of requests and devices; the owner of this object adds and removes them.
        self.observers = observers
        #: Ids ascend across all deployments, because they order the devices' queues.
        self.request_ids = itertools.count(1)
        self.in_flight = BytesInFlight()
        #: Clock of deadlines.
        self.clock = clock
        #: Resident tensors of this client.
        self.memory = memory
        self._open: dict[str, D] = {}

    def __iter__(self) -> Iterator[D]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def add(self, deployment: D) -> None:
        """Register a deployment until it is closed."""
        self._open[deployment.key] = deployment

    def discard(self, deployment: D) -> None:
        """Remove a deployment."""
        self._open.pop(deployment.key, None)

    def notify(self, event: DeviceEvent | events.DeviceEnded | events.DeviceSteady) -> None:
        """Notify the observers of a device event, before the deployments handle it."""
        if isinstance(event, events.DeviceEnded | events.DeviceSteady):
            return
        for observer in tuple(self.observers):
            with observer_errors_logged(observer):
                observer.device(event)
        if isinstance(event, events.DeviceLost) and event.on_the_way:
            self._lose_tensors(event.device)  # tensors sent from now on arrive

    def fail_lost_tensors(
        self, event: DeviceEvent | events.DeviceEnded | events.DeviceSteady
    ) -> None:
        """Fail the requests that wait for tensors of a lost device, after the deployments replay.

        Replayed attempts have requested the tensors again by then.
        """
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
        """Return the load of the deployments and of `devices`."""
        loads = tuple(deployment.current_load() for deployment in self)
        return Load(loads, devices, self.in_flight.nbytes)
