"""Observers: each ended request is reported once, with times on one clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import HeteroError
from hetero.devices.plugin.program import Value
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.observe.observer import DeviceEvent, ObservedRequest
from hetero.scheduler.types import events
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.messages import Failure, Message, Outputs, Values
from hetero.scheduler.types.placement import single_placement
from hetero.scheduler.types.request_record import RequestState
from tests.scheduler.models import chain
from tests.scheduler.observers import Notes

X = {"x": np.zeros(2, np.float32)}


class Devices:
    """Channel to devices that respond at once with the last stage's result."""

    address = "client"

    def __init__(self, receive: Receiver, reply: Callable[[Values], Message]) -> None:
        self._receive = receive
        self._reply = reply

    def send(self, address: str, message: Message) -> None:
        if isinstance(message, Values):
            self._receive(self._reply(message))

    def close(self) -> None:
        """Close nothing."""


class Deployed(Deployment):
    """Deployment on these devices."""

    def executed_nodes(self, stage: int) -> Any:
        """Not used."""

    def export(self, stage: int) -> Any:
        """Not used."""

    def _unload(self) -> None:
        """Close nothing."""


def deployed(
    notes: Notes, reply: Callable[[Values], Message], limits: Limits, **options: Any
) -> Deployed:
    plan, _ = chain("NEAR", "FAR")
    clock = Clock("test")
    return Deployed(
        "test",
        single_placement(plan),
        {},
        limits,
        Deployments([notes], RemoteMemory("memory", Switchboard().connect, clock), clock),
        connect=lambda receive: Devices(receive, reply),
        addresses={"NEAR": "near", "FAR": "far"},
        **options,
    )


def answer(values: Values) -> Outputs:
    runs = (StageTiming(0, "NEAR", 0.0, 1.0, 2.0), StageTiming(1, "FAR", 0.5, 1003.0, 1004.0))
    (name,) = (o for o in chain("NEAR", "FAR")[0].output_names)
    tensors: Mapping[str, Value] = {name: values.tensors["x"]}
    return Outputs(values.task, tensors, runs)


def test_device_times_are_converted_to_the_clients_clock():
    notes = Notes()
    offsets = {"near": 0.0, "far": 1000.0}
    deployment = deployed(notes, answer, Limits(), clock_offset_s=offsets.__getitem__)
    runs = deployment.submit(X).future.result(60).stage_timings
    deployment.close()
    assert [(r.started_s, r.ended_s, r.queued_s) for r in runs] == [(1, 2, 0), (3, 4, 0.5)]
    assert [request.runs for request in notes.requests] == [runs]


def test_every_ended_request_is_observed_once():
    notes = Notes()
    requests: list[Request] = []

    def hold(values: Values) -> Message:
        requests.append(values.task.request)
        if len(requests) % 2:
            return Failure(values.task, HeteroError("no"))
        return answer(values)

    deployment = deployed(notes, hold, Limits(remembered=1))
    for count in range(4):
        submitted = deployment.submit(X)
        if count % 2:
            submitted.future.result(60)
        else:
            with pytest.raises(HeteroError):
                submitted.future.result(60)
    deployment.close()
    records = [request.record for request in notes.requests]
    assert [r.id for r in records] == [request.id for request in requests]
    assert [r.state for r in records] == [RequestState.FAILED, RequestState.ANSWERED] * 2
    for record in records:
        assert record.admitted_s is not None
        assert record.ended_s is not None
        assert record.submitted.now_s <= record.admitted_s <= record.ended_s


def test_requests_that_end_together_are_all_observed():
    notes = Notes()
    deployment = deployed(notes, lambda values: Outputs(values.task, {}), Limits(remembered=1))
    submitted = [deployment.submit(X) for _ in range(3)]
    deployment.close()
    assert {s.request_id for s in submitted} == {r.record.id for r in notes.requests}
    assert {r.record.state for r in notes.requests} == {RequestState.CANCELLED}


class FailingObserver(Notes):
    """An observer that always raises."""

    def ended(self, request: ObservedRequest) -> None:
        raise OSError(28, "No space left on device")

    ran = ended

    def device(self, event: DeviceEvent) -> None:
        raise OSError(28, "No space left on device")


def test_failing_observer_does_not_block_callers(caplog):
    failing, notes = FailingObserver(), Notes()
    deployment = deployed(failing, answer, Limits())
    deployment._deployments.observers.append(notes)
    assert deployment.submit(X).future.result(60)
    refusing = deployed(failing, lambda values: Failure(values.task, HeteroError("no")), Limits())
    with pytest.raises(HeteroError, match="no"):
        refusing.submit(X).future.result(60)
    refusing._deployments.notify(events.DeviceReturned(0.0, "NEAR"))
    deployment.close()
    refusing.close()
    assert len(notes.requests) == len(notes.ran_stages) == 1
    assert {record.message for record in caplog.records} == {"observer FailingObserver failed"}
