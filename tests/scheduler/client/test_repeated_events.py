"""Second and third events of one kind in the life of a request."""

from __future__ import annotations

from typing import Any

from hetero.devices.errors import DeviceLostError
from hetero.devices.request.response import StageTiming
from hetero.scheduler import Limits
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.plan import Plan, Stage


def route(*devices: str) -> Route:
    """Return a route of a model with the outputs y and z."""
    stages = tuple(Stage(i, device, (), (), ()) for i, device in enumerate(devices))
    return Route(Plan("m", (), (), stages), tuple(range(len(stages))))


def machine(*routes: Route, **limits: Any) -> ClientMachine:
    m = ClientMachine(Limits(**limits), routes, name="m")
    m.handle(ev.Submitted(0.0, 1, 1, 99.0))
    return m


def part(attempt: int, outputs: dict[str, Any], *runs: tuple[int, str]) -> ev.PartArrived:
    timings = tuple(StageTiming(stage, device) for stage, device in runs)
    return ev.PartArrived(1.0, 1, attempt, outputs, timings)


def test_runs_and_outputs_of_a_lost_route_leave_the_result():
    m = machine(route("A", "B", "B"), route("C", "D", "D"))
    assert m.handle(part(1, {"y": "old", "w": "only old"}, (0, "A"), (1, "B"))) == []
    assert m.handle(ev.DeviceLost(2.0, "B", "n", "killed")) == [
        ev.DropAttempt(1, 1, 0),
        ev.StartAttempt(1, 2, 1),
    ]
    assert m.handle(part(1, {"z": "late"}, (2, "B"))) == []
    assert m.handle(part(2, {"y": "new"}, (0, "C"), (1, "D"))) == []
    (result,) = m.handle(part(2, {"z": "z"}, (2, "D")))
    assert isinstance(result, ev.Deliver)
    assert result.outputs == {"y": "new", "z": "z"}
    assert [(run.stage, run.device) for run in result.runs] == [(0, "C"), (1, "D"), (2, "D")]


def test_runs_of_two_lost_routes_leave_the_result():
    m = machine(route("A", "B"), route("C", "D"))
    for attempt, device in ((1, "A"), (2, "C")):
        assert m.handle(part(attempt, {"w": attempt}, (0, device))) == []
        m.handle(ev.DeviceLost(2.0, device, "n", "killed"))
    assert m.handle(ev.DeviceReturned(3.0, "A"))[-1] == ev.StartAttempt(1, 3, 0)
    (result,) = m.handle(part(3, {"y": 3}, (0, "A"), (1, "B")))
    assert isinstance(result, ev.Deliver)
    assert (result.outputs, [r.device for r in result.runs]) == ({"y": 3}, ["A", "B"])


def test_runs_of_a_longer_lost_route_leave_the_result():
    m = machine(route("A", "B", "B"), route("C", "C"))
    m.handle(part(1, {"w": "old"}, (1, "B"), (2, "B")))
    m.handle(ev.DeviceLost(2.0, "B", "n", "killed"))
    assert m.handle(part(2, {"y": 1, "z": 2}, (0, "C"))) == []  # one of its two stages
    (result,) = m.handle(part(2, {}, (1, "C")))
    assert isinstance(result, ev.Deliver)
    assert [(run.stage, run.device) for run in result.runs] == [(0, "C"), (1, "C")]


def test_repeated_part_counts_once():
    m = machine(route("A", "B"))
    for _ in range(3):
        assert m.handle(part(1, {"y": 1}, (0, "A"))) == []
    (result,) = m.handle(part(1, {"z": 2}, (1, "B")))
    assert isinstance(result, ev.Deliver)
    assert [run.stage for run in result.runs] == [0, 1]


def test_device_that_is_lost_twice_returns_once():
    m = machine(route("A"))
    loss = ev.DeviceLost(1.0, "A", "n", "killed")
    assert m.handle(loss) == [ev.DropAttempt(1, 1)]
    assert m.handle(loss) == []
    assert m.handle(ev.DeviceReturned(2.0, "A")) == [ev.StartAttempt(1, 2)]
    assert m.handle(ev.DeviceReturned(2.5, "A")) == []


def test_second_failure_of_an_ended_attempt_is_dropped():
    m = machine(route("A"), route("B"))
    failure = ev.AttemptFailed(1.0, 1, 1, DeviceLostError("x"))
    assert m.handle(failure) == [ev.DropAttempt(1, 1), ev.StartAttempt(1, 2, 1)]
    assert m.handle(failure) == []
    assert m.handle(failure) == []
    (result,) = m.handle(part(2, {"y": 1}, (0, "B")))
    assert isinstance(result, ev.Deliver)
