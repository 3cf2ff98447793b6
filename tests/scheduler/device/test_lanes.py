"""Tests of a device's lanes: packed tasks run once, and their outputs are forwarded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hetero.devices.errors import BlobError, DeviceLostError, InferenceError, KernelError
from hetero.devices.request.request import Request
from hetero.devices.request.response import StageTiming
from hetero.scheduler import DeviceDescriptor
from hetero.scheduler.channels import lane
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.lane import LaneHead
from hetero.scheduler.channels.shared_memory import Place, SlotError
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.formats.stage_source import StageSource
from hetero.scheduler.types.events import Send, StageOpened
from hetero.scheduler.types.messages import Dropped, Failure, Outputs, Task, Values
from tests.scheduler.models import build
from tests.scheduler.plugins import ToyPlugin, ToyProgram

X = np.arange(4, dtype=np.float32)
KEY = "deployment"
PATIENCE_S = 60.0
BEFORE = StageTiming(0, "", 0.0, 1.0, 2.0, 0.1, 0.2, 0.3, {}, 16)


@dataclass
class Notebook:
    """Channel that records messages."""

    address: str = "here"
    receive_lane: Callable[[bytes, int], None] | None = None
    stored_tensor: Any = None
    #: Whether packed messages can be sent.
    has_room: bool = True
    messages: list[tuple[str, Any]] = field(default_factory=list)
    packed: list[tuple[str, LaneHead, list[np.ndarray], list[int]]] = field(default_factory=list)

    def send(self, address: str, message: Any) -> None:
        self.messages.append((address, message))

    def send_lane(self, address: str, head: LaneHead, timings: bytes, tensors: Any) -> bool:
        parts = lane.pack_message(head, timings, tensors) if self.has_room else None
        if parts is not None:
            data = b"".join(parts)
            head = lane.read_head(data, 0)
            stages = [timing.stage for timing in lane.read_timings(lane.slice_timings(data, head))]
            self.packed.append((address, head, lane.read_tensors(data, head), stages))
        return parts is not None

    def close(self) -> None: ...


class Device:
    """Device that runs tasks only in `work`. Its stage 3 adds two inputs for two other stages."""

    def __init__(self, name: str = "add", *, num_streams: int = 1, timeout_s: float = 0.0) -> None:
        self.channel = Notebook()
        self.due: list[Any] = []
        host = DeviceHost(DeviceDescriptor("TOY", "TOY", "0", "local"), ToyPlugin())

        def connect(receive: Receiver) -> Any:
            return self.channel

        self.loop = DeviceLoop(host, connect, lambda loop, due: self.due.append(due))
        model = build([("Add", name, ["a", "b"], "y")], ["y"], inputs=("a", "b"))
        host.load_stage(KEY, 3, StageSource(model), 1)
        sends = {
            0: (Send("next", 4, ("y",), (1,)), Send("other", 5, ("y",), (0,))),
            1: (),
        }
        stage = StageOpened(KEY, 3, ("a", "b"), 1, sends, (), num_streams, "client", timeout_s)
        self.loop.open_stage(stage)

    def receive(
        self,
        tensors: list[np.ndarray],
        positions: int = 0b11,
        *,
        number: int = 1,
        attempt: int = 1,
        stage: int = 3,
        route: int = 0,
        deployment: str = KEY,
    ) -> None:
        """Deliver a packed message."""
        head = LaneHead(
            *(lane.TO_STAGE, 0, 0, lane.lane_key(deployment)),
            *(number, attempt, stage, route, positions, 0),
        )
        place = Place("1-2-3-4", 1, 2, 3, 4)
        parts = lane.pack_message(head, lane.pack_timing(BEFORE), tensors, lambda flat: place)
        assert parts is not None
        self.take(b"".join(parts))

    def take(self, data: bytes) -> None:
        """Deliver bytes."""
        assert self.channel.receive_lane is not None
        self.channel.receive_lane(data, 0)

    def work(self) -> int:
        """Run all started tasks; return their number."""
        num_run = 0
        while self.due:
            self.loop.run(self.due.pop(0))
            num_run += 1
        return num_run

    @property
    def is_idle(self) -> bool:
        status = self.loop.status()
        return status["tasks"] == status["running"] == 0 and not self.loop.host._running


def test_task_forwards_outputs_and_timings():
    device = Device()
    device.receive([X, X + 1])
    assert device.loop.status()["running"] == 1
    assert device.work() == 1
    (to, head, tensors, stages), (other, second, _, _) = device.channel.packed
    assert (to, head.stage, head.input_mask, head.kind) == ("next", 4, 0b10, lane.TO_STAGE)
    assert (other, second.stage, second.input_mask) == ("other", 5, 0b1)
    assert (head.request_id, head.attempt, head.route) == (1, 1, 0)
    np.testing.assert_array_equal(tensors[0], 2 * X + 1)
    assert stages == [0, 3]
    assert device.channel.messages == []
    assert device.is_idle


def test_last_stage_sends_the_result():
    device = Device()
    device.receive([X, X], route=1)
    device.work()
    ((to, head, tensors, stages),) = device.channel.packed
    assert (to, head.kind, head.stage) == ("client", lane.TO_CLIENT, 3)
    assert (tensors, stages) == ([], [0, 3])


def test_duplicate_or_dropped_task_does_not_start():
    device = Device()
    device.receive([X, X])
    device.receive([X, X])
    assert device.work() == 1
    device.receive([X, X])
    device.loop.receive(Values(Task(Request(deployment=KEY, id=1, attempt=1), 3), {"a": X}))
    assert device.work() == 0
    device.receive([X, X], attempt=2)
    assert device.work() == 1
    device.loop.receive(Dropped(Request(deployment=KEY, id=2, attempt=1)))
    device.receive([X, X], number=2)
    assert device.work() == 0
    assert len(device.channel.packed) == 4
    assert device.is_idle


def test_task_dropped_before_its_run_is_skipped(
    monkeypatch,
):
    device = Device()
    device.receive([X, X])
    device.loop.receive(Dropped(Request(deployment=KEY, id=1, attempt=1)))
    runs: list[Any] = []
    monkeypatch.setattr(ToyProgram, "run", lambda *arguments: runs.append(arguments))
    assert device.work() == 1
    assert runs == device.channel.messages == device.channel.packed == []
    assert device.is_idle


def test_stored_input_is_read_without_a_copy():
    device, stored = Device(), np.arange(lane.MAX_NBYTES, dtype=np.float32)
    device.channel.stored_tensor = lambda place, nbytes: stored.view(np.uint8)[:nbytes]
    device.receive([stored, X[:1]])
    assert np.shares_memory(device.due[0].inputs[0], stored)


def test_input_whose_memory_is_lost_is_a_lost_message():
    device = Device()

    def lose(place: Any, nbytes: int) -> Any:
        raise SlotError("the owner has ended")

    device.channel.stored_tensor = lose
    with pytest.raises(SlotError):  # the channel reports it, and the attempt may be replayed
        device.receive([np.zeros(lane.MAX_NBYTES, np.float32), X])
    assert not device.channel.messages
    assert device.is_idle


def test_memory_of_a_misplaced_input_is_released():
    device, read = Device(), []

    def take(place: Any, nbytes: int) -> np.ndarray:
        read.append(nbytes)
        return np.zeros(nbytes, np.uint8)

    device.channel.stored_tensor = take
    device.receive([np.zeros(lane.MAX_NBYTES, np.float32), X], stage=9)
    assert len(read) == len(device.channel.messages) == 1


def test_send_error_fails_the_request(monkeypatch):
    device = Device()
    device.receive([X, X])

    def full(*arguments: Any) -> bool:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(device.channel, "send_lane", full)
    device.work()
    ((to, failure),) = device.channel.messages
    assert (to, type(failure.error)) == ("client", InferenceError)
    assert device.is_idle


def test_complete_message_completes_a_partial_task():
    device = Device(num_streams=2)
    device.receive([X + 1], 0b10)
    device.receive([X, X + 1])
    assert len(device.due) == 1
    device.work()
    assert len(device.channel.packed) == 2
    assert device.is_idle


def test_inputs_from_several_stages_are_joined():
    device = Device()
    device.receive([X + 1], 0b10)
    device.receive([X + 1], 0b10)
    assert not device.due
    device.receive([X], 0b01)
    assert device.work() == 1
    for _, _, tensors, stages in device.channel.packed:
        np.testing.assert_array_equal(tensors[0], 2 * X + 1)
        assert stages == [0, 3]
    assert len(device.channel.packed) == 2
    device.receive([X, X])
    assert device.work() == 0
    assert device.is_idle


def test_timings_of_several_paths_are_forwarded():
    device = Device()
    timings = [StageTiming(stage, "TOY") for stage in range(3)]
    task = Task(Request(deployment=KEY, id=1, attempt=1), 3)
    device.loop.receive(Values(task, {"a": X}, (timings[0], timings[1])))
    device.loop.receive(Values(task, {"b": X}, (timings[0], timings[2])))
    stage = device.loop._machine.stage(KEY, 3)
    assert (device.work(), stage.ewma_s < 60) == (1, True)
    assert [stages for _, _, _, stages in device.channel.packed] == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize(
    ("num_earlier", "expected"),
    [
        (lane.MAX_TIMINGS - 1, [("next", lane.MAX_TIMINGS), ("other", lane.MAX_TIMINGS)]),
        (lane.MAX_TIMINGS, [("client", lane.MAX_TIMINGS + 1), ("next", 0), ("other", 0)]),
    ],
)
def test_many_timings_are_sent_to_the_client_instead(num_earlier, expected):
    device = Device()
    timings = tuple(StageTiming(stage, "TOY") for stage in range(num_earlier))
    task = Task(Request(deployment=KEY, id=1, attempt=1), 3)
    device.loop.receive(Values(task, {"a": X, "b": X}, timings))
    device.work()
    assert [(to, len(stages)) for to, _, _, stages in device.channel.packed] == expected


def test_task_of_a_busy_stage_waits_its_turn():
    device = Device()
    device.receive([X, X], number=5)
    device.receive([X + 1, X], number=7)
    device.receive([X + 2, X], number=6)
    assert len(device.due) == 1
    assert device.work() == 3
    assert [head.request_id for _, head, _, _ in device.channel.packed[::2]] == [5, 6, 7]
    assert device.is_idle


@pytest.mark.parametrize("why", ["no room", "large output"])
def test_outputs_fall_back_to_messages(why, monkeypatch):
    device = Device()
    device.channel.has_room = why != "no room"
    device.receive([X, X])
    if why == "large output":
        monkeypatch.setattr(lane, "MAX_NBYTES", X.nbytes - 1)
    device.work()
    assert device.channel.packed == []
    (to, values), (other, _) = device.channel.messages
    assert (to, other) == ("next", "other")
    assert isinstance(values, Values)
    assert values.task == Task(Request(deployment=KEY, id=1, attempt=1), 4)
    np.testing.assert_array_equal(values.tensors["y"], X + X)
    assert [timing.stage for timing in values.runs] == [0, 3]


def test_result_falls_back_to_a_message():
    device = Device()
    device.channel.has_room = False
    device.receive([X, X], route=1)
    device.work()
    ((to, outputs),) = device.channel.messages
    assert to == "client"
    assert isinstance(outputs, Outputs)
    assert outputs.tensors == {}
    assert [timing.stage for timing in outputs.runs] == [0, 3]


@pytest.mark.parametrize("kind", ["refuse", "fail"])
def test_stage_error_is_sent_once(kind):
    device = Device(kind)
    device.receive([X, X])
    device.work()
    ((to, failure),) = device.channel.messages
    assert to == "client"
    assert isinstance(failure, Failure)
    assert failure.task == Task(Request(deployment=KEY, id=1, attempt=1), 3)
    assert isinstance(failure.error, KernelError if kind == "refuse" else InferenceError)
    assert failure.error.data["request_id"] == 1
    assert failure.error.__traceback__ is None
    assert device.is_idle


def test_dropped_attempt_cancels_its_running_task(
    monkeypatch,
):
    device = Device("sleep_60_")
    device.receive([X, X])
    thread = threading.Thread(target=device.work)
    thread.start()
    while not device.loop.host._running:
        threading.Event().wait(0.001)
    device.loop.receive(Dropped(Request(deployment=KEY, id=2, attempt=1)))
    device.loop.receive(Dropped(Request(deployment=KEY, id=1, attempt=1)))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert device.channel.messages == device.channel.packed == []
    assert device.is_idle


def test_stage_with_a_time_limit_has_a_record():
    device = Device(timeout_s=30.0)
    device.receive([X, X])
    (due,) = device.due
    assert due.tensors.keys() == {"a", "b"}
    assert device.loop.status()["tasks"] == 1
    assert device.work() == 1
    assert [to for to, _ in device.channel.messages] == ["next", "other"]


@pytest.mark.parametrize(("address", "is_lane"), [("next", True), ("here", False)])
def test_only_outputs_that_stay_on_the_device_need_messages(address, is_lane, monkeypatch):
    monkeypatch.setattr(ToyPlugin, "leaves_outputs", True)
    device = Device()
    sends = {0: (Send(address, 4, ("y",), (0,)),)}
    device.loop.open_stage(StageOpened(KEY, 3, ("a", "b"), 1, sends, (), 1, "client", 0.0, 1))
    device.receive([X, X])
    device.work()
    assert [to for to, *_ in device.channel.packed] == (["next"] if is_lane else [])
    assert device.is_idle


def test_message_for_closed_deployment_reports_lost_device():
    device = Device()
    device.loop.close_deployment(KEY)
    device.receive([X, X])
    ((to, failure),) = device.channel.messages
    assert (to, type(failure.error)) == ("client", DeviceLostError)
    assert failure.task.request.id == 1
    assert device.work() == 0
    device.receive([X, X], deployment="unknown")
    assert len(device.channel.messages) == 1


def test_message_for_unknown_stage_reports_lost_device():
    device = Device()
    device.receive([X, X], stage=9)
    ((_, failure),) = device.channel.messages
    assert isinstance(failure.error, DeviceLostError)
    assert failure.task.stage == 9


@pytest.mark.parametrize(
    ("tensors", "positions"), [([X], 0b11), ([X, X, X], 0b111), ([X], 0b100), ([X, X], 0b1)]
)
def test_wrong_input_mask_is_a_typed_error(tensors, positions):
    device = Device()
    device.receive(tensors, positions)
    ((to, failure),) = device.channel.messages
    assert (to, type(failure.error)) == ("client", BlobError)
    assert device.work() == 0
    assert device.is_idle


def test_profiled_stage_uses_messages(monkeypatch):
    device = Device()
    device.loop.host._stages[KEY, 3].profiles = True
    lanes = device.loop._lanes
    assert lanes is not None
    lanes.open(lanes._lanes[lane.lane_key(KEY), 3].description)
    device.receive([X, X])
    device.work()
    (_, values), _ = device.channel.messages
    assert values.runs[-1].node_times_s


@settings(
    deadline=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_damaged_bytes_run_or_raise_or_fail(data):
    device = Device()
    head = LaneHead(lane.TO_STAGE, 0, 0, lane.lane_key(KEY), 1, 1, 3, 0, 0b11, 0)
    parts = lane.pack_message(head, lane.pack_timing(BEFORE), [X, X])
    assert parts is not None
    whole = bytearray(b"".join(parts))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with suppress(BlobError):
        device.take(bytes(whole[: cut if data.draw(st.booleans()) else None]))
    with np.errstate(all="ignore"):
        device.work()
    for _, message in device.channel.messages:
        assert isinstance(message, Failure | Values | Outputs)
    # Partial tasks wait for their other inputs until the client drops the attempt.
    device.loop.close_deployment(KEY)
    assert device.is_idle


def test_task_of_unloaded_stage_reports_lost_device(
    monkeypatch,
):
    device = Device()
    device.receive([X, X])
    device.loop.close_deployment(KEY)
    run = ToyProgram.run

    def never(*arguments: Any) -> Any:
        raise AssertionError(run)

    monkeypatch.setattr(ToyProgram, "run", never)
    assert device.work() == 1
    ((to, failure),) = device.channel.messages
    assert (to, type(failure.error)) == ("client", DeviceLostError)
    assert device.is_idle
