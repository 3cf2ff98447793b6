"""Device loop on a direct channel: messages for unloaded stages get a reply."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from hetero.devices.errors import BlobError, DeviceLostError
from hetero.devices.request.request import Request
from hetero.scheduler import DeviceDescriptor
from hetero.scheduler.channels.channel import Receiver
from hetero.scheduler.channels.direct import DirectChannel
from hetero.scheduler.channels.lane import TO_STAGE, LaneHead, lane_key, pack_message
from hetero.scheduler.channels.memory import Switchboard
from hetero.scheduler.device.host import DeviceHost
from hetero.scheduler.device.loop import DeviceLoop
from hetero.scheduler.types.events import Send, StageOpened
from hetero.scheduler.types.messages import Failure, Task, Values
from tests.scheduler.endpoints import LONG_S
from tests.scheduler.models import chain
from tests.scheduler.plugins import ToyPlugin


@pytest.fixture
def device(folder, make_endpoint):
    """Return a loop and its channel, which are closed before the endpoints."""
    channels: list[DirectChannel] = []

    def connect(receive: Receiver) -> DirectChannel:
        channels.append(DirectChannel(receive, folder=folder))
        return channels[0]

    host = DeviceHost(DeviceDescriptor("TOY", "TOY", "0", "local"), ToyPlugin())
    loop = DeviceLoop(host, connect, lambda loop, task: None)
    yield loop, channels[0]
    loop.close()


def opened(loop: DeviceLoop, client: str) -> StageOpened:
    _, (source,) = chain("TOY")
    loop.host.load_stage("key", 0, source, 1)
    return StageOpened("key", 0, ("x",), 0, {}, ("t0",), 1, client, 0.0)


@pytest.mark.parametrize("end", ["closed", "client gone"])
def test_values_for_an_unloaded_stage_report_lost_device(
    end,
    device,
    make_endpoint,
):
    loop, channel = device
    client, before = (
        make_endpoint(),
        make_endpoint(),
    )  # the client receives all failures, other devices none
    loop.open_stage(opened(loop, client.address))
    if end == "closed":
        loop.close_deployment("key")
    else:
        loop.client_gone(client.address)
    task = Task(Request(deployment="key", id=3, attempt=2), 0)
    before.channel.send(loop.address, Values(task, {"x": np.ones(1, np.float32)}))
    while not channel.pump(LONG_S):
        pass
    answer = client.next()
    assert isinstance(answer, Failure)
    assert answer.task == task
    assert isinstance(answer.error, DeviceLostError)


def test_ill_typed_message_is_a_typed_error(device, make_endpoint):
    loop, channel = device
    client = make_endpoint()
    loop.open_stage(opened(loop, client.address))
    ill_typed: Any = 1.5
    request = Request(deployment="key", id=3, attempt=2, priority=ill_typed)
    client.channel.send(loop.address, Values(Task(request, 0), {"x": np.ones(1, np.float32)}))
    while not channel.pump(LONG_S):
        pass
    failure = client.next()
    assert isinstance(failure, Failure)
    assert failure.task == Task(Request(deployment="key", id=3, attempt=2), 0)
    assert isinstance(failure.error, BlobError)
    assert "int" in str(failure.error)


def test_outputs_follow_the_route_of_their_attempt():
    came: dict[str, list[Any]] = {name: [] for name in ("client", "near", "moved", "far")}
    board = Switchboard()
    for name, messages in came.items():
        board.connect(name, messages.append)
    host = DeviceHost(DeviceDescriptor("TOY", "TOY", "0", "local"), ToyPlugin())
    loop = DeviceLoop(host, partial(board.connect, "device"), lambda loop, run: loop.run(run))
    stage = opened(loop, "client")
    wire = {0: (Send("near", 5, ("t0",)),), 1: (Send("far", 6, ("t0",)),)}
    x = np.ones(4, np.float32)

    def failure(route: int, number: int) -> dict[str, list[tuple[str, int]]]:
        request = Request(deployment="key", id=number, attempt=1, route=route)
        loop.receive(Values(Task(request, 0), {"x": x}))
        received = {
            name: [(type(m).__name__, m.task.stage) for m in messages]
            for name, messages in came.items()
        }
        for messages in came.values():
            messages.clear()
        return {name: messages for name, messages in received.items() if messages}

    loop.open_stage(replace(stage, sends=wire))
    assert failure(0, 1) == {"near": [("Values", 5)], "client": [("Outputs", 0)]}
    assert failure(1, 2) == {"far": [("Values", 6)], "client": [("Outputs", 0)]}
    loop.open_stage(replace(stage, sends={0: (Send("moved", 5, ("t0",)),)}, outputs=()))
    assert failure(0, 3) == {"moved": [("Values", 5)]}
    assert failure(1, 4) == {"client": [("Outputs", 0)]}  # the route has no such stage
    loop.close()


def test_task_without_thread_is_reported_and_frees_stream():
    def refuse(loop: DeviceLoop, due: object) -> None:
        raise RuntimeError("can't start new thread")

    came: list[Any] = []
    board = Switchboard()
    board.connect("client", came.append)
    host = DeviceHost(DeviceDescriptor("TOY", "TOY", "0", "local"), ToyPlugin())
    loop = DeviceLoop(host, partial(board.connect, "device"), refuse)
    loop.open_stage(opened(loop, "client"))
    task = Task(Request(deployment="key", id=1, attempt=1), 0)
    loop.receive(Values(task, {"x": np.ones(1, np.float32)}))
    assert [(type(m), m.task) for m in came] == [(Failure, task)]
    assert "can't start new thread" in str(came[0].error)
    assert loop.status()["running"] == loop.status()["tasks"] == 0
    loop.close()


@pytest.mark.parametrize("uses_lanes", [False, True])
def test_next_task_starts_before_the_outputs_are_sent(uses_lanes, device, monkeypatch):
    actions: list[str] = []
    if uses_lanes:
        loop, channel = device

        def send_lane(*arguments: Any) -> bool:
            actions.append("outputs")
            return True

        monkeypatch.setattr(channel, "send_lane", send_lane)
    else:
        board = Switchboard()
        board.connect("client", lambda message: actions.append("outputs"))
        host = DeviceHost(DeviceDescriptor("TOY", "TOY", "0", "local"), ToyPlugin())
        loop = DeviceLoop(host, partial(board.connect, "device"), lambda loop, due: None)
    tasks: list[Any] = []

    def start(_: DeviceLoop, task: Any) -> None:
        tasks.append(task)
        actions.append("start")

    monkeypatch.setattr(loop, "_start", start)
    loop.open_stage(opened(loop, "client"))
    for number in (1, 2):
        request = Request(deployment="key", id=number, attempt=1)
        if uses_lanes and number == 1:
            head = LaneHead(TO_STAGE, 0, 0, lane_key("key"), number, 1, 0, 0, 1, 0)
            parts = pack_message(head, b"", [np.ones(4, np.float32)])
            assert parts is not None
            assert loop._lanes is not None
            monkeypatch.setattr(loop._lanes, "_start", partial(start, loop))
            monkeypatch.setattr(loop._lanes._lanes[lane_key("key"), 0], "consumers", {0: ()})
            loop._lanes.receive(b"".join(parts), 0)
        else:
            loop.receive(Values(Task(request, 0), {"x": np.ones(4, np.float32)}))
    assert actions == ["start"]
    loop.run(tasks[0])
    assert actions == ["start", "start", "outputs"]
