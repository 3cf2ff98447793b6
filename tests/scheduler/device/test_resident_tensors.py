"""What a device keeps for clients: by key and client, counted, and never for dropped attempts."""

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
from hetero.scheduler.device.resident_tensors import KeptTensors
from hetero.scheduler.types.device_descriptor import DeviceDescriptor
from hetero.scheduler.types.events import Run, Send, StageOpened
from hetero.scheduler.types.messages import (
    Dropped,
    Failure,
    Free,
    Give,
    Join,
    Keep,
    Message,
    Outputs,
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


class Told:
    """A channel that notes what is sent."""

    address = "TOY"

    def __init__(self) -> None:
        self.sent: list[tuple[str, Message]] = []

    def send(self, address: str, message: Message) -> None:
        self.sent.append((address, message))

    def close(self) -> None:
        """Have nothing to let go of."""


def test_tensors_are_counted_shared_and_freed_by_key() -> None:
    kept, told = KeptTensors(TOY, lambda value: value), Told()
    for client, key in (("a", "1"), ("a", "2"), ("b", "3"), ("a", "1")):
        kept.answer(Keep(TASK, client, key, {"t": X[:2]}), told.send)
    assert kept.nbytes == 24
    assert told.sent[-1] == ("a", Values(TASK, {}))
    kept.answer(Give(TASK, "a", "other", {"1": {"x": "t"}}, free=("2", "none")), told.send)
    address, values = told.sent[-1]
    assert address == "other"
    assert isinstance(values, Values)
    assert values.tensors["x"] is not None
    assert kept.nbytes == 16
    kept.free_all_of("a")
    assert kept.nbytes == 8
    kept.answer(Give(TASK, "a", "other", {"1": {"x": "t"}, "3": {"y": "t"}}), told.send)
    client, failure = told.sent[-1]
    assert client == "a"
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, TensorError)
    assert failure.error.data["port"] == "x"


def test_awaited_bundle_is_sent_or_dropped_with_its_attempt() -> None:
    kept, told = KeptTensors(TOY, lambda value: value), Told()
    made = Task(Request(deployment="m", id=1, attempt=1, resident_outputs=("t",)), 2)
    reader = Task(Request(deployment="m", id=2, attempt=1, resident_outputs=("t",)), 2)
    give = Give(reader, "a", "other", {bundle_key(*made): {"x": "t"}}, awaits=True)

    def come() -> list[Give]:
        kept.keep_outputs("a", made, {"t": X[:2]})
        due = kept.take_awaited(made)
        kept.free([bundle_key(*made)])
        return due

    kept.answer(give, told.send)
    assert not told.sent
    assert [come(), come()] == [[give], []]
    for over in (reader.request, made.request):
        kept.answer(give, told.send)
        kept.free_attempt(over)
        assert not come()
    kept.answer(give, told.send)
    kept.free_all_of("a")
    assert not come()
    kept.keep_outputs("a", made, {"t": X[:2]})
    kept.answer(give, told.send)  # it is there: no reason to wait
    assert told.sent[-1][0] == "other"


def test_rows_of_resident_tensors_are_joined_in_place() -> None:
    kept, told = KeptTensors(replace(TOY, memory_nbytes=300), lambda value: value), Told()
    a, b = np.arange(12.0).reshape(2, 3, 2), np.arange(100.0, 102).reshape(1, 1, 2)
    kept.answer(Keep(TASK, "a", "1", {"a": a, "b": b}), told.send)
    for at_end in (False, True):
        layout = RowLayout(0, 1, 2, at_end)
        parts = (("1", "b", (0,)), ("1", "a", (1, 0)))
        kept.answer(Join(TASK, "a", "3", {"c": (layout, parts)}), told.send)
        assert told.sent[-1] == ("a", Values(TASK, {}))
        kept.answer(Give(TASK, "a", "other", {"3": {"x": "c"}}), told.send)
        want = np.zeros((3, 2, 2))
        own = slice(1, None) if at_end else slice(2)
        want[0, 1 if at_end else 0], want[1], want[2] = b[0, 0], a[1, own], a[0, own]
        _, values = told.sent[-1]
        assert isinstance(values, Values)
        np.testing.assert_array_equal(values.tensors["x"], want)
    for client, row, error in (("b", 0, TensorError), ("a", 5, DeviceError)):
        message = Join(TASK, client, "4", {"d": (RowLayout(0), (("1", "a", (row,)),))})
        kept.answer(message, told.send)
        to, failure = told.sent[-1]
        assert to == client
        assert isinstance(failure, Failure)
        assert type(failure.error) is error
    assert kept.nbytes == a.nbytes + b.nbytes + 96


def test_device_without_shareable_memory_stores_tensors_on_host() -> None:
    class Leaving(ToyPlugin):
        leaves_outputs = True

    assert DeviceHost(TOY, Leaving()).place(X) is X


def test_tensors_beyond_memory_are_refused_without_effect() -> None:
    kept, told = KeptTensors(TOY, lambda value: value), Told()
    kept.keep("a", "1", {"t": X})
    with pytest.raises(DeviceMemoryError, match="TOY on node here stores 16 bytes"):
        kept.keep("b", "2", {"t": X, "u": X})
    assert kept.nbytes == 16
    kept.keep("a", "1", {"t": X, "u": X})  # what it had under the key makes room
    kept.answer(Keep(TASK, "b", "3", {"t": X}), told.send)
    assert isinstance(told.sent[-1][1], Failure)


@pytest.fixture
def loop() -> Any:
    """Return a device's loop with one stage, and what it starts and sends."""
    plan, (source,) = chain("TOY")
    host, told, started = DeviceHost(TOY, ToyPlugin()), Told(), []
    made = DeviceLoop(host, lambda receive: told, lambda _, due: started.append(due))
    host.load_stage("d", 0, source, 1)
    (stage,) = plan.stages
    made.open_stage(StageOpened("d", 0, stage.inputs, 0, {}, stage.outputs, client="client"))
    return made, told, started, stage.outputs[0]


@pytest.mark.parametrize("dropped", ["before", "while it runs", "after", None])
def test_output_stays_resident_unless_its_attempt_was_dropped(
    loop: Any, dropped: str | None
) -> None:
    made, told, started, name = loop
    request = Request(deployment="d", id=1, attempt=1, resident_outputs=(name,))
    if dropped == "before":
        made.receive(Dropped(request))
    made.receive(Values(Task(request, 0), {"x": X}))
    due: Run
    for due in started:
        if dropped == "while it runs":
            made.receive(Dropped(request))
        made.run(due)
    if dropped == "after":
        made.receive(Dropped(request))
    assert made.status()["kept_nbytes"] == (0 if dropped else 16)
    if dropped is None:
        ((_, outputs),) = told.sent
        assert isinstance(outputs, Outputs)
        assert (outputs.tensors, outputs.runs[-1].resident) == ({}, (("float", (4,), (0,)),))
        wanted = {bundle_key(request, 0): {"x": name}}
        made.receive(Give(TASK, "client", "other", wanted))
        np.testing.assert_array_equal(told.sent[-1][1].tensors["x"], X + 1)
        made.close_deployment("d")
        assert made.status()["kept_nbytes"] == 16
        made.client_gone("client")
        assert made.status()["kept_nbytes"] == 0


def test_error_of_vendor_reaches_the_requesting_client() -> None:
    def place(value: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    kept, told = KeptTensors(TOY, place), Told()
    kept.answer(Keep(TASK, "a", "1", {"t": X}), told.send)
    (client, failure), *_ = told.sent
    assert client == "a"
    assert isinstance(failure, Failure)
    assert isinstance(failure.error, DeviceError)
    assert "illegal memory access" in str(failure.error)
    assert kept.nbytes == 0


def test_resident_tensors_belong_to_one_client() -> None:
    kept, told = KeptTensors(TOY, lambda value: value), Told()
    kept.keep("a", "1", {"t": X})
    kept.answer(Keep(TASK, "b", "1", {"t": X[:2]}), told.send)
    kept.answer(Give(TASK, "b", "other", {"1": {"x": "t"}}, free=("1",)), told.send)
    assert [type(message) for _, message in told.sent] == [Failure, Failure]
    kept.answer(Give(TASK, "a", "other", {"1": {"x": "t"}}), told.send)
    _, message = told.sent[-1]
    assert isinstance(message, Values)
    np.testing.assert_array_equal(message.tensors["x"], X)


def test_sent_tensors_are_evicted_for_required_ones() -> None:
    kept, told = KeptTensors(TOY, lambda value: value), Told()
    requests = [Request(deployment="d", id=i, attempt=1, restore_s=1.0) for i in (1, 2)]
    tasks = [Task(request, 0) for request in requests]
    for task in tasks:
        kept.keep_sent("a", task, {"h": X})
    assert kept.nbytes == 32
    kept.keep("a", "1", {"state": X})  # of 40 bytes 8 were left
    assert kept.nbytes == 32
    kept.keep("a", "2", {"state": X[:2]})
    assert kept.nbytes == 40
    kept.keep("a", "3", {"state": X[:2]})
    assert kept.nbytes == 32
    kept.keep_sent("a", tasks[0], {"h": np.tile(X, 3)})  # there is no room, which is no error
    for task in tasks:
        wanted = {sent_key(*task): {"h": "h"}}
        kept.answer(Give(TASK, "a", "other", wanted), told.send)
    assert [type(message) for _, message in told.sent] == [Failure, Failure]
    with pytest.raises(DeviceMemoryError):
        kept.keep("a", "4", {"more": np.tile(X, 2)})
    assert kept.nbytes == 32


@pytest.mark.parametrize("ended", ["its attempt", "its client", None])
def test_sent_tensors_remain_until_attempt_or_client_ends(loop: Any, ended: str | None) -> None:
    made, told, started, name = loop
    sends = {0: (Send("next", 1, (name,)),)}
    made.open_stage(StageOpened("d", 0, ("x",), 0, sends, (), client="client", number=1))
    request = Request(deployment="d", id=1, attempt=1, restore_s=1.0)
    made.receive(Values(Task(request, 0), {"x": X}))
    made.run(started.pop())
    assert [to for to, _ in told.sent] == ["next"]
    assert made.status()["kept_nbytes"] == 16
    if ended == "its attempt":
        made.receive(Dropped(request))
    elif ended == "its client":
        made.client_gone("client")
    assert made.status()["kept_nbytes"] == (0 if ended else 16)
    if ended is None:
        made.receive(Give(TASK, "client", "next", {sent_key(request, 0): {"y": name}}))
        np.testing.assert_array_equal(told.sent[-1][1].tensors["y"], X + 1)


def test_sent_tensors_are_freed_after_an_early_drop(loop: Any) -> None:
    """Its answer may be there, and be dropped, before the device goes on."""
    made, _, started, name = loop
    sends = {0: (Send("next", 1, (name,)),)}
    made.open_stage(StageOpened("d", 0, ("x",), 0, sends, (), client="client", number=1))
    request = Request(deployment="d", id=1, attempt=1, restore_s=1.0)
    made._send = lambda *_: made.receive(Free((sent_key(request, 0),)))
    made.receive(Values(Task(request, 0), {"x": X}))
    made.run(started.pop())
    assert made.status()["kept_nbytes"] == 0


def test_replayed_stage_reports_tensors_to_its_client_only(loop: Any) -> None:
    made, told, started, name = loop
    sends = {0: (Send("next", 1, (name,)),)}
    made.open_stage(StageOpened("d", 0, ("x",), 0, sends, (name,), client="client", number=1))
    request = Request(
        deployment="d", id=1, attempt=1, route=REPLAY, restore_s=1.0, resident_outputs=(name,)
    )
    made.receive(Values(Task(request, 0), {"x": X}))
    made.run(started.pop())
    ((to, outputs),) = told.sent
    assert (to, outputs.tensors) == ("client", {})
    assert outputs.runs[-1].resident == (("float", (4,), (0,)),)
    assert made.status()["kept_nbytes"] == 32  # for the next run, and for the stage after it


def test_keep_sent_of_dropped_attempt_leaves_nothing_to_evict() -> None:
    class DroppingTensors(KeptTensors):
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
