"""Registry of deployments: device events, lost tensors, and the load."""

from __future__ import annotations

from typing import Any

import pytest

from hetero.devices.errors import ClusterError, DeadlineError, DeviceLostError, HeteroError
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.error_messages import (
    cluster_error,
    copy_error,
    failure_event,
    lost_error,
)
from hetero.scheduler.observe.load import DeploymentLoad, Load
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.request_record import RequestRecord
from tests.support.manual_clock import ManualClock


class Deployment:
    """Deployment that records the devices whose tensors are lost."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.lost: list[str] = []

    def tensors_lost(self, device: str) -> None:
        self.lost.append(device)

    def in_flight(self) -> list[Any]:
        return [f"{self.key} request"]

    def current_load(self) -> DeploymentLoad:
        return DeploymentLoad(self.key, 1, 2)


class Observer:
    """Observer that records the events of devices, then fails."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def device(self, event: Any) -> None:
        self.events.append(event)
        raise ValueError


@pytest.mark.parametrize(
    ("event", "is_observed", "lost_before", "lost_after"),
    [
        # Requests are replayed in between, with the tensors of other devices.
        (ev.DeviceLost(1.0, "A", "n", "killed"), True, False, True),
        (ev.DeviceLost(1.0, "A", "n", "cut", on_the_way=True), True, True, False),
        (ev.DeviceLost(1.0, "A", "n", "cut", may_live=True), True, False, True),
        (ev.DeviceRemoved(1.0, "A", "n", "left"), True, False, True),
        (ev.DeviceReturned(1.0, "A"), True, False, False),
        (ev.DeviceEnded(1.0, "A"), False, False, False),
        (ev.DeviceSteady(1.0, "A"), False, False, False),
    ],
)
def test_tensors_are_lost_with_their_device(event, is_observed, lost_before, lost_after):
    observers: list[Any] = [Observer(), Observer()]
    memory: Any = None
    deployments = Deployments[Deployment](observers, memory, ManualClock())
    both = [Deployment("a"), Deployment("b")]
    for deployment in both:
        deployments.add(deployment)
    deployments.notify(event)
    assert [observer.events for observer in observers] == [[event] * is_observed] * 2
    assert [deployment.lost for deployment in both] == [["A"] * lost_before] * 2
    deployments.fail_lost_tensors(event)
    assert [deployment.lost for deployment in both] == [["A"] * (lost_before + lost_after)] * 2


def test_registry_lists_open_deployments():
    memory: Any = None
    deployments = Deployments[Deployment]([], memory, ManualClock())
    first, second = Deployment("a"), Deployment("b")
    for deployment in (first, second, first):
        deployments.add(deployment)
    assert (len(deployments), list(deployments)) == (2, [first, second])
    assert deployments.requests_in_flight() == ["a request", "b request"]
    deployments.in_flight.count(record(), 30, 1)
    devices: Any = {"A": object()}
    loads = (DeploymentLoad("a", 1, 2), DeploymentLoad("b", 1, 2))
    assert deployments.load(devices) == Load(loads, devices, 30)
    for deployment in (first, first):
        deployments.discard(deployment)
    assert list(deployments) == [second]
    assert [next(deployments.request_ids) for _ in range(2)] == [1, 2]


def record() -> RequestRecord:
    request = RequestRecord(ev.Submitted(0.0, 7, 1, 9.0), 7, 9.0, attempt=2)
    request.note(1.5, "lost")
    return request


@pytest.mark.parametrize("kind", [DeviceLostError, ClusterError, DeadlineError, HeteroError])
def test_errors_of_losses_carry_the_history(kind):
    error = kind("gone", number=3)
    error.__cause__ = cause = OSError("why")
    failure = failure_event(record(), error)
    assert failure.request_id == 7
    assert type(failure.error) is kind
    assert failure.error.__cause__ is cause
    data = failure.error.data
    if kind is HeteroError:
        assert failure.error is error
    else:
        assert failure.error is not error
        assert data == {"number": 3, "story": record().lines()}


def test_errors_of_unavailable_devices_name_them():
    lost = lost_error(record(), ev.DeviceLost(1.0, "A", "node-1", "killed."))
    removed = lost_error(record(), ev.DeviceRemoved(1.0, "B", "node-2", "left"))
    assert [error.data for error in (lost, removed)] == [
        {"device": "A", "node": "node-1", "attempt": 2, "request_id": 7},
        {"device": "B", "node": "node-2", "attempt": 2, "request_id": 7},
    ]
    prefix = "request 7, attempt 2: device"
    assert str(lost).startswith(f"{prefix} A on node node-1 is gone: killed. A device whose")
    assert str(removed).startswith(f"{prefix} B on node node-2 is gone: left. It does not return")
    gone = cluster_error(record(), ClusterError("the head is gone", address="here"))
    assert str(gone) == "request 7, attempt 2: the head is gone"
    assert gone.data["address"] == "here"


def test_typed_errors_are_copied():
    error = HeteroError("bad", stage=1)
    error.__cause__ = OSError()
    copy: Any = copy_error(error)
    assert copy is not error
    assert (type(copy), copy.message, copy.data) == (HeteroError, "bad", {"stage": 1})
    assert copy.__cause__ is error.__cause__
    foreign = ValueError("bad")
    assert copy_error(foreign) is foreign
