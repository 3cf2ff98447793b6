"""Tests of a client's lanes: packed requests have no record unless something unusual occurs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import BlobError, DeadlineError, RequestCancelledError
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler.channels import lane
from hetero.scheduler.channels.channel import SharedChannel
from hetero.scheduler.channels.lane import LaneHead
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.channels.shared_memory import Place, SlotError
from hetero.scheduler.client.deployment import Deployment
from hetero.scheduler.client.deployments import Deployments
from hetero.scheduler.client.remote_tensors import RemoteMemory
from hetero.scheduler.clock import Clock
from hetero.scheduler.types import events
from hetero.scheduler.types.limits import Limits
from hetero.scheduler.types.messages import Dropped, Values
from hetero.scheduler.types.placement import single_placement
from hetero.scheduler.types.plan import Plan
from hetero.scheduler.types.request_record import RequestState
from tests.scheduler.models import build, chain, cut
from tests.scheduler.observers import Notes

X = np.arange(4, dtype=np.float32)
PATIENCE_S = 60.0


class Devices:
    """Channel that records messages; the test replies."""

    address = "client"
    receive_lane = None
    stored_tensor: Any = None

    def __init__(self) -> None:
        self.has_room = True
        self.packed: list[tuple[str, LaneHead, list[np.ndarray]]] = []
        self.messages: list[tuple[str, Any]] = []

    def send(self, address: str, message: Any) -> None:
        self.messages.append((address, message))

    def send_lane(self, address: str, head: LaneHead, timings: bytes, tensors: Any) -> bool:
        parts = lane.pack_message(head, timings, tensors) if self.has_room else None
        if parts is not None:
            data = b"".join(parts)
            head = lane.read_head(data, 0)
            self.packed.append((address, head, lane.read_tensors(data, head)))
        return parts is not None

    def close(self) -> None: ...


class Deployed(Deployment):
    """Deployment without devices."""

    def executed_nodes(self, stage: int) -> Any: ...

    def export(self, stage: int) -> Any: ...

    def _unload(self) -> None: ...


class Client:
    """A deployment on recorded channels, and the replies to it."""

    def __init__(self, plan: Plan | None = None, limits: Limits | None = None) -> None:
        plan = plan or chain("A", "B")[0]
        self.devices, self.shared, self.notes = Devices(), SharedChannel(), Notes()
        self.shared.channel = self.devices
        clock = Clock("test")
        self.deployments: Deployments[Any] = Deployments(
            [], RemoteMemory("memory", Switchboard().connect, clock), clock
        )
        self.deployment = Deployed(
            "key",
            single_placement(plan),
            {},
            limits or Limits(),
            self.deployments,
            connect=lambda receive: self.shared.connect("key", receive),
            addresses={name: f"at {name}" for name in plan.devices},
        )
        self.deployment.use_lanes(self.shared)
        self.runner = self.deployment._runner
        self.machine = self.runner.machine

    def answer(
        self,
        number: int,
        outputs: list[np.ndarray],
        *,
        attempt: int = 1,
        stage: int = 1,
        stages: tuple[int, ...] = (0, 1),
    ) -> bytes:
        """Deliver a packed result; return its bytes."""
        head = LaneHead(
            *(lane.TO_CLIENT, 0, 0, lane.lane_key("key"), number, attempt, stage, 0, 0, 0)
        )
        timings = [StageTiming(s, "", 0.0, 1.0, 1.5, 0.0, 0.5, 0.0, {}, 16) for s in stages]
        place = Place("1-2-3-4", 1, 2, 3, 4)
        parts = lane.pack_message(
            head, b"".join(map(lane.pack_timing, timings)), outputs, lambda flat: place
        )
        assert parts is not None
        data = b"".join(parts)
        self.shared.receive_lane(data, 0)
        return data

    @property
    def holds_nothing(self) -> bool:
        """Return whether no request is counted or stored."""
        in_flight = self.deployments.in_flight
        return (
            self.runner.counts() == (0, 0)
            and not (self.runner._calls or self.machine._live or self.machine._direct)
            and in_flight.nbytes == in_flight.num_running == 0
            and all(way.num_running == 0 for way in self.machine._routes.states)
        )


@pytest.fixture
def client():
    submission = Client()
    yield submission
    submission.deployment.close()


def test_plain_request_runs_without_a_record(client):
    submission = client.deployment.submit({"x": X})
    ((to, head, tensors),) = client.devices.packed
    assert (to, head.stage, head.input_mask, head.kind) == ("at A", 0, 1, lane.TO_STAGE)
    assert (head.request_id, head.attempt, head.route) == (submission.request_id, 1, 0)
    np.testing.assert_array_equal(tensors[0], X)
    assert client.machine.state(submission.request_id) is RequestState.DIRECT
    assert client.runner.counts() == (0, 1)
    client.answer(submission.request_id, [X + 2])
    answer = submission.future.result(0)
    np.testing.assert_array_equal(answer.outputs["t1"], X + 2)
    assert [(run.stage, run.device) for run in answer.stage_timings] == [(0, "A"), (1, "B")]
    story = [line.event for line in submission.story()]
    assert story == ["submitted with 16 bytes", "started", "answered"]
    assert client.devices.messages == []
    assert client.holds_nothing


def test_full_channel_falls_back_to_messages(client):
    client.devices.has_room = False
    submission = client.deployment.submit({"x": X})
    ((to, values),) = client.devices.messages
    assert (to, type(values)) == ("at A", Values)
    assert values.task.request.id == submission.request_id
    client.answer(submission.request_id, [X])
    assert submission.future.result(0)


@pytest.mark.parametrize(
    "request_", [Request(priority=1), Request(resident_outputs=("t1",)), Request(profile=True)]
)
def test_request_with_options_uses_messages(client, request_):
    client.deployment.submit({"x": X}, request_)
    assert client.devices.packed == []
    assert client.devices.messages


def test_request_with_own_deadline_has_record_and_uses_lanes(client):
    submission = client.deployment.submit({"x": X}, Request(timeout_s=0.05))
    assert client.machine.state(submission.request_id) is RequestState.RUNNING
    assert len(client.devices.packed) == 1
    with pytest.raises(DeadlineError):
        submission.future.result(PATIENCE_S)


def test_request_without_a_record_expires():
    client = Client(limits=Limits(timeout_s=0.05))
    submission = client.deployment.submit({"x": X})
    assert client.machine.state(submission.request_id) is RequestState.DIRECT
    with pytest.raises(DeadlineError):
        submission.future.result(PATIENCE_S)
    assert isinstance(client.devices.messages[0][1], Dropped)
    assert client.holds_nothing
    client.deployment.close()


def test_duplicate_result_is_dropped(client):
    submission = client.deployment.submit({"x": X})
    for value in (X, X + 1):
        client.answer(submission.request_id, [value])
    np.testing.assert_array_equal(submission.future.result(0).outputs["t1"], X)
    assert submission.story()[-1].event == "PartArrived came late and was dropped"
    client.answer(submission.request_id + 1, [X])  # an unknown request
    assert client.holds_nothing


def test_lost_device_causes_a_replay(client):
    submission = client.deployment.submit({"x": X})
    now_s = client.runner.now_s()
    client.runner.handle(events.DeviceLost(now_s, "B", "node", "pulled"))
    assert client.machine.state(submission.request_id) is RequestState.PARKED
    client.runner.handle(events.DeviceReturned(now_s, "B"))
    (_, first, _), (_, again, _) = client.devices.packed
    assert (first.attempt, again.attempt) == (1, 2)
    client.answer(submission.request_id, [X])  # a result of the lost attempt
    assert not submission.future.done()
    client.answer(submission.request_id, [X + 2], attempt=2)
    np.testing.assert_array_equal(submission.future.result(0).outputs["t1"], X + 2)
    assert client.holds_nothing


def test_cancelled_request_is_dropped_on_its_devices(client):
    submission = client.deployment.submit({"x": X})
    assert submission.cancel()
    with pytest.raises(RequestCancelledError):
        submission.future.result(0)
    assert [to for to, message in client.devices.messages if type(message) is Dropped] == [
        "at A",
        "at B",
    ]
    assert client.holds_nothing


def test_outputs_of_several_stages_form_one_result():
    model = build([("Neg", "a", ["x"], "y"), ("Neg", "b", ["y"], "z")], ["y", "z"])
    client = Client(cut(model, ("A", ["a"]), ("B", ["b"]))[0])
    submission = client.deployment.submit({"x": X})
    client.answer(submission.request_id, [-X], stage=0, stages=(0,))
    assert not submission.future.done()
    client.answer(submission.request_id, [X], stage=1, stages=(0, 1))
    assert submission.future.result(0).outputs.keys() == {"y", "z"}
    assert client.holds_nothing
    client.deployment.close()


@pytest.mark.parametrize("damage", ["tensors", "stage", "timing", "bytes"])
def test_damaged_result_raises_a_typed_error(client, damage):
    submission = client.deployment.submit({"x": X})
    number = submission.request_id
    if damage == "tensors":
        client.answer(number, [X, X])
    elif damage == "stage":
        client.answer(number, [X], stage=2)  # the plan has the stages 0 and 1
    elif damage == "timing":
        client.answer(number, [X], stages=(0, 7))
    else:
        other = Client()
        data = other.answer(number, [X])
        other.deployment.close()
        client.shared.receive_lane(data[:-1], 0)
    with pytest.raises(BlobError):
        submission.future.result(0)
    assert client.holds_nothing


def store(client: Client, error: BlobError | None = None) -> list[np.ndarray]:
    """Give the client shared memory, whose contents are zeros or cannot be read; return them."""
    read: list[np.ndarray] = []

    def take(place: Any, nbytes: int) -> np.ndarray:
        if error is not None:
            raise error
        read.append(np.zeros(nbytes, np.uint8))
        return read[-1]

    client.devices.stored_tensor = take
    return read


LARGE = np.zeros(lane.MAX_NBYTES, np.float32)


def test_stored_result_is_delivered_without_a_copy(client):
    stored = store(client)
    submission = client.deployment.submit({"x": X})
    client.answer(submission.request_id, [LARGE])
    (output,) = submission.future.result(0).outputs.values()
    assert np.shares_memory(output, stored[0])


def test_result_whose_memory_is_lost_is_a_lost_message(client):
    store(client, SlotError("the owner has ended"))
    submission = client.deployment.submit({"x": X})
    with pytest.raises(SlotError):  # the channel reports it, and the attempt may be replayed
        client.answer(submission.request_id, [LARGE])
    assert not submission.future.done()


def test_result_at_an_invalid_place_fails_the_request(client):
    store(client, BlobError("no such place"))
    submission = client.deployment.submit({"x": X})
    client.answer(submission.request_id, [LARGE])
    with pytest.raises(BlobError):
        submission.future.result(0)


def test_memory_of_a_late_result_is_released(client):
    stored = store(client)
    submission = client.deployment.submit({"x": X})
    client.deployment.close()
    client.answer(submission.request_id, [LARGE])
    assert len(stored) == 1


def test_message_for_a_closed_deployment_is_dropped(client):
    submission = client.deployment.submit({"x": X})
    client.deployment.close()
    client.answer(submission.request_id, [X])
    with pytest.raises(RequestCancelledError, match="closed"):
        submission.future.result(0)
    with pytest.raises(BlobError):
        client.shared.receive_lane(b"noise", 0)


def test_result_admits_a_waiting_request():
    client = Client(limits=Limits(requests=1))
    first = client.deployment.submit({"x": X})
    second = client.deployment.submit({"x": X}, Request(waits=None))
    assert client.runner.counts() == (1, 1)
    client.answer(first.request_id, [X])
    assert client.runner.counts() == (0, 1)
    client.answer(second.request_id, [X])
    assert second.future.result(PATIENCE_S)
    assert client.holds_nothing
    client.deployment.close()


def test_observers_receive_requests_without_a_record(client):
    client.deployments.observers.append(client.notes)  # type: ignore[attr-defined]  # a list
    submission = client.deployment.submit({"x": X})
    machine = client.deployment._runner.machine
    assert machine.state(submission.request_id) is RequestState.DIRECT  # it has no record
    # For observers it is running, as with a record.
    assert [request.record.state for request in client.deployment.in_flight()] == [
        RequestState.RUNNING
    ]
    client.answer(submission.request_id, [X])
    (request,) = client.notes.requests
    assert (request.record.id, request.record.state) == (
        submission.request_id,
        RequestState.ANSWERED,
    )
    assert len(request.runs) == 2


def interrupted_after(number: int) -> Callable[[FrameType, str, Any], None]:
    """Return a profiler that raises KeyboardInterrupt before or after a call."""
    calls = itertools.count(1)

    def profile(frame: FrameType, event: str, argument: object) -> None:
        if event == "return" and frame.f_code is Deployment.submit.__code__:
            return  # the caller owns the submission now
        if event in ("call", "return", "c_return") and next(calls) == number:
            sys.setprofile(None)
            raise KeyboardInterrupt

    return profile


def test_ctrl_c_during_submit_leaves_nothing_reserved(client):
    client.answer(client.deployment.submit({"x": X}).request_id, [X])
    before = sys.getprofile()
    for number in itertools.count(1):
        submission = None
        sys.setprofile(interrupted_after(number))
        try:
            submission = client.deployment.submit({"x": X})
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(before)
        if submission is not None:
            break
        assert client.holds_nothing, number
    client.answer(submission.request_id, [X])
    assert submission.future.result(0)
    assert number > 40
