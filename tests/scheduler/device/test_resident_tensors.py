"""Resident tensors of a device: by key and client, counted, never for dropped attempts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import DeviceError, DeviceMemoryError, TensorError
from hetero.devices.request.batch_rows import RowLayout
from hetero.devices.request.request import REPLAY, Request
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.device.resident_tensors import ResidentTensors
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.events import Send, StageOpened, TaskRun
from hetero.scheduler.types.messages import (
    ConcatTensors,
    Dropped,
    Failure,
    FetchTensors,
    FreeTensors,
    Message,
    Outputs,
    StoreTensors,
    Task,
    Values,
    bundle_key,
    sent_key,
)
from tests.scheduler.models import chain
from tests.scheduler.plugins import ToyPlugin

X = np.arange(4, dtype=np.float32)
TASK = Task(Request(deployment="memory", id=1), 0)
SENT = Request(deployment="memory", id=2, attempt=1, restore_s=1.0)
TOY = DeviceDescriptor("TOY", "TOY", "0", "here", memory_nbytes=40)


class RecordingChannel:
    """Channel that records sent messages."""

    address = "TOY"

    def __init__(self) -> None:
        self.messages: list[tuple[str, Message]] = []

    def send(self, address: str, message: Message) -> None:
        self.messages.append((address, message))

    def close(self) -> None:
        """Close nothing."""


def test_tensors_are_counted_shared_and_freed_by_key():
    tensors, channel = ResidentTensors(TOY, lambda value: value), RecordingChannel()
    for client, key in (("a", "1"), ("a", "2"), ("b", "3"), ("a", "1")):
        tensors.answer(StoreTensors(TASK, client, key, {"t": X[:2]}), channel.send)
    assert tensors.nbytes == 24
    assert channel.messages[-1] == ("a", Values(TASK, {}))
    tensors.answer(
        FetchTensors(TASK, "a", "other", {"1": {"x": "t"}}, free=("2", "none")), channel.send
    )
    address, values = channel.messages[-1]
    assert address == "other"
    assert isinstance(values, Values)
    assert values.tensors["x"] is not None
    assert tensors.nbytes == 16
    tensors.free_all_of("a")
    assert tensors.nbytes == 8
    tensors.answer(
        FetchTensors(TASK, "a", "other", {"1": {"x": "t"}, "3": {"y": "t"}}), channel.send
    )
    client, failure = channel.messages[-1]
    assert client == "a"
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, TensorError)
    assert failure.error.data["port"] == "x"


def test_awaited_bundle_is_sent_or_dropped_with_its_attempt():
    tensors, channel = ResidentTensors(TOY, lambda value: value), RecordingChannel()
    task = Task(Request(deployment="m", id=1, attempt=1, resident_outputs=("t",)), 2)
    reader = Task(Request(deployment="m", id=2, attempt=1, resident_outputs=("t",)), 2)
    give = FetchTensors(reader, "a", "other", {bundle_key(*task): {"x": "t"}}, awaits=True)

    def come() -> list[FetchTensors]:
        tensors.keep_outputs("a", task, {"t": X[:2]})
        due = tensors.take_awaited(task)
        tensors.free([bundle_key(*task)])
        return due

    tensors.answer(give, channel.send)
    assert not channel.messages
    assert [come(), come()] == [[give], []]
    for over in (reader.request, task.request):
        tensors.answer(give, channel.send)
        tensors.free_attempt(over)
        assert not come()
    tensors.answer(give, channel.send)
    tensors.free_all_of("a")
    assert not come()
    tensors.keep_outputs("a", task, {"t": X[:2]})
    tensors.answer(give, channel.send)  # the tensor is stored already
    assert channel.messages[-1][0] == "other"


def test_rows_of_resident_tensors_are_joined_in_place():
    tensors, channel = (
        ResidentTensors(replace(TOY, memory_nbytes=300), lambda value: value),
        RecordingChannel(),
    )
    a, b = np.arange(12.0).reshape(2, 3, 2), np.arange(100.0, 102).reshape(1, 1, 2)
    tensors.answer(StoreTensors(TASK, "a", "1", {"a": a, "b": b}), channel.send)
    for at_end in (False, True):
        layout = RowLayout(0, 1, 2, at_end)
        parts = (("1", "b", (0,)), ("1", "a", (1, 0)))
        tensors.answer(ConcatTensors(TASK, "a", "3", {"c": (layout, parts)}), channel.send)
        assert channel.messages[-1] == ("a", Values(TASK, {}))
        tensors.answer(FetchTensors(TASK, "a", "other", {"3": {"x": "c"}}), channel.send)
        want = np.zeros((3, 2, 2))
        own = slice(1, None) if at_end else slice(2)
        want[0, 1 if at_end else 0], want[1], want[2] = b[0, 0], a[1, own], a[0, own]
        _, values = channel.messages[-1]
        assert isinstance(values, Values)
        np.testing.assert_array_equal(values.tensors["x"], want)
    for client, row, error in (("b", 0, TensorError), ("a", 5, DeviceError)):
        message = ConcatTensors(TASK, client, "4", {"d": (RowLayout(0), (("1", "a", (row,)),))})
        tensors.answer(message, channel.send)
        to, failure = channel.messages[-1]
        assert to == client
        assert isinstance(failure, Failure)
        assert type(failure.error) is error
    assert tensors.nbytes == a.nbytes + b.nbytes + 96


def test_device_without_shareable_memory_stores_tensors_on_host():
    class Leaving(ToyPlugin):
        leaves_outputs = True

    assert DeviceHost(TOY, Leaving()).place(X) is X


def test_tensors_beyond_memory_are_refused_without_effect():
    tensors, channel = ResidentTensors(TOY, lambda value: value), RecordingChannel()
    tensors.keep("a", "1", {"t": X})
    with pytest.raises(DeviceMemoryError, match="TOY on node here stores 16 bytes"):
        tensors.keep("b", "2", {"t": X, "u": X})
    assert tensors.nbytes == 16
    tensors.keep("a", "1", {"t": X, "u": X})  # the replaced tensor frees its memory
    tensors.answer(StoreTensors(TASK, "b", "3", {"t": X}), channel.send)
    assert isinstance(channel.messages[-1][1], Failure)


@pytest.fixture
def loop():
    """Return a device's loop with one stage, its channel and its started runs."""
    plan, (source,) = chain("TOY")
    host, channel, runs = DeviceHost(TOY, ToyPlugin()), RecordingChannel(), []
    device_loop = DeviceLoop(host, lambda receive: channel, lambda _, due: runs.append(due))
    host.load_stage("d", 0, source, 1)
    (stage,) = plan.stages
    device_loop.open_stage(StageOpened("d", 0, stage.inputs, 0, {}, stage.outputs, client="client"))
    return device_loop, channel, runs, stage.outputs[0]


@pytest.mark.parametrize("dropped", ["before", "while it runs", "after", None])
def test_output_stays_resident_unless_its_attempt_was_dropped(loop, dropped):
    device_loop, channel, runs, name = loop
    request = Request(deployment="d", id=1, attempt=1, resident_outputs=(name,))
    if dropped == "before":
        device_loop.receive(Dropped(request))
    device_loop.receive(Values(Task(request, 0), {"x": X}))
    due: TaskRun
    for due in runs:
        if dropped == "while it runs":
            device_loop.receive(Dropped(request))
        device_loop.run(due)
    if dropped == "after":
        device_loop.receive(Dropped(request))
    assert device_loop.status()["kept_nbytes"] == (0 if dropped else 16)
    if dropped is None:
        ((_, outputs),) = channel.messages
        assert isinstance(outputs, Outputs)
        assert (outputs.tensors, outputs.runs[-1].resident) == ({}, (("float", (4,), (0,)),))
        expected = {bundle_key(request, 0): {"x": name}}
        device_loop.receive(FetchTensors(TASK, "client", "other", expected))
        np.testing.assert_array_equal(channel.messages[-1][1].tensors["x"], X + 1)
        device_loop.close_deployment("d")
        assert device_loop.status()["kept_nbytes"] == 16
        device_loop.client_gone("client")
        assert device_loop.status()["kept_nbytes"] == 0


def test_error_of_vendor_reaches_the_requesting_client():
    def place(value: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    tensors, channel = ResidentTensors(TOY, place), RecordingChannel()
    tensors.answer(StoreTensors(TASK, "a", "1", {"t": X}), channel.send)
    (client, failure), *_ = channel.messages
    assert client == "a"
    assert isinstance(failure, Failure)
    assert failure.task == TASK
    assert isinstance(failure.error, DeviceError)
    assert "illegal memory access" in str(failure.error)
    assert failure.error.data == {
        "device": "TOY",
        "node": "here",
        "cause": "RuntimeError('an illegal memory access was encountered')",
    }
    assert tensors.nbytes == 0


def test_resident_tensors_belong_to_one_client():
    tensors, channel = ResidentTensors(TOY, lambda value: value), RecordingChannel()
    tensors.keep("a", "1", {"t": X})
    tensors.answer(StoreTensors(TASK, "b", "1", {"t": X[:2]}), channel.send)
    tensors.answer(FetchTensors(TASK, "b", "other", {"1": {"x": "t"}}, free=("1",)), channel.send)
    assert [type(message) for _, message in channel.messages] == [Failure, Failure]
    tensors.answer(FetchTensors(TASK, "a", "other", {"1": {"x": "t"}}), channel.send)
    _, message = channel.messages[-1]
    assert isinstance(message, Values)
    np.testing.assert_array_equal(message.tensors["x"], X)


def test_sent_tensors_are_evicted_for_required_ones():
    tensors, channel = ResidentTensors(TOY, lambda value: value), RecordingChannel()
    requests = [Request(deployment="d", id=i, attempt=1, restore_s=1.0) for i in (1, 2)]
    tasks = [Task(request, 0) for request in requests]
    for task in tasks:
        tensors.keep_sent("a", task, {"h": X})
    assert tensors.nbytes == 32
    tensors.keep("a", "1", {"state": X})  # 8 of 40 bytes were free
    assert tensors.nbytes == 32
    tensors.keep("a", "2", {"state": X[:2]})
    assert tensors.nbytes == 40
    tensors.keep("a", "3", {"state": X[:2]})
    assert tensors.nbytes == 32
    tensors.keep_sent(
        "a", tasks[0], {"h": np.tile(X, 3)}
    )  # without room the tensor is not stored, without an error
    for task in tasks:
        expected = {sent_key(*task): {"h": "h"}}
        tensors.answer(FetchTensors(TASK, "a", "other", expected), channel.send)
    assert [type(message) for _, message in channel.messages] == [Failure, Failure]
    with pytest.raises(DeviceMemoryError):
        tensors.keep("a", "4", {"more": np.tile(X, 2)})
    assert tensors.nbytes == 32


def test_oldest_sent_tensors_are_evicted_first():
    tensors, channel = ResidentTensors(TOY, lambda value: value), RecordingChannel()
    requests = [Request(deployment="d", id=i, attempt=1, restore_s=1.0) for i in (1, 2)]
    tasks = [Task(request, 0) for request in requests]
    for task in tasks:
        tensors.keep_sent("a", task, {"h": X})
    tensors.keep("a", "1", {"state": X})  # 8 of 40 bytes were free
    for task in tasks:
        wanted = {sent_key(*task): {"h": "h"}}
        tensors.answer(FetchTensors(TASK, "a", "other", wanted), channel.send)
    assert [type(message) for _, message in channel.messages] == [Failure, Values]


@pytest.mark.parametrize("end", ["its attempt", "its client", None])
def test_sent_tensors_remain_until_attempt_or_client_ends(loop, end):
    device_loop, channel, runs, name = loop
    sends = {0: (Send("next", 1, (name,)),)}
    device_loop.open_stage(StageOpened("d", 0, ("x",), 0, sends, (), client="client", number=1))
    request = Request(deployment="d", id=1, attempt=1, restore_s=1.0)
    device_loop.receive(Values(Task(request, 0), {"x": X}))
    device_loop.run(runs.pop())
    assert [to for to, _ in channel.messages] == ["next"]
    assert device_loop.status()["kept_nbytes"] == 16
    if end == "its attempt":
        device_loop.receive(Dropped(request))
    elif end == "its client":
        device_loop.client_gone("client")
    assert device_loop.status()["kept_nbytes"] == (0 if end else 16)
    if end is None:
        device_loop.receive(
            FetchTensors(TASK, "client", "next", {sent_key(request, 0): {"y": name}})
        )
        np.testing.assert_array_equal(channel.messages[-1][1].tensors["y"], X + 1)


def test_sent_tensors_are_freed_after_an_early_drop(loop):
    """Its result may be delivered and dropped before the device continues."""
    device_loop, _, runs, name = loop
    sends = {0: (Send("next", 1, (name,)),)}
    device_loop.open_stage(StageOpened("d", 0, ("x",), 0, sends, (), client="client", number=1))
    request = Request(deployment="d", id=1, attempt=1, restore_s=1.0)
    device_loop._send = lambda *_: device_loop.receive(FreeTensors((sent_key(request, 0),)))
    device_loop.receive(Values(Task(request, 0), {"x": X}))
    device_loop.run(runs.pop())
    assert device_loop.status()["kept_nbytes"] == 0


def test_replayed_stage_reports_tensors_to_its_client_only(loop):
    device_loop, channel, runs, name = loop
    sends = {0: (Send("next", 1, (name,)),)}
    device_loop.open_stage(
        StageOpened("d", 0, ("x",), 0, sends, (name,), client="client", number=1)
    )
    request = Request(
        deployment="d", id=1, attempt=1, route=REPLAY, restore_s=1.0, resident_outputs=(name,)
    )
    device_loop.receive(Values(Task(request, 0), {"x": X}))
    device_loop.run(runs.pop())
    ((to, outputs),) = channel.messages
    assert (to, outputs.tensors) == ("client", {})
    assert outputs.runs[-1].resident == (("float", (4,), (0,)),)
    assert device_loop.status()["kept_nbytes"] == 32


def test_keep_sent_of_dropped_attempt_leaves_nothing_to_evict():
    class DroppingTensors(ResidentTensors):
        """Drops the attempt as soon as its tensors are stored."""

        def keep(self, *arguments: Any, **options: Any) -> None:
            super().keep(*arguments, **options)
            self.free_attempt(SENT)

    tensors = DroppingTensors(replace(TOY, memory_nbytes=1000), lambda value: value)
    tensors.keep_sent("client", Task(SENT, 0), {"t": np.zeros(100, np.uint8)})
    assert tensors.nbytes == 0
    tensors.keep("client", "a", {"t": np.zeros(600, np.uint8)})
    with pytest.raises(DeviceMemoryError):
        tensors.keep("client", "b", {"t": np.zeros(600, np.uint8)})
