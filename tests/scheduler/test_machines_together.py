"""A client and its devices on a network that loses, doubles and reorders, with devices that die.

The client's machine and the devices' loops are the real ones; the network, the hosts and whoever
notices losses are simulated. Each request ends once, with what the model makes of its input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from devices.errors import RequestCancelledError
from devices.model.tensor_spec import TensorSpec
from devices.request.answer import StageRun
from devices.request.request import Request
from scheduler import Limits
from scheduler.channels import envelope
from scheduler.client.machine import ClientMachine
from scheduler.device.loop import DeviceLoop
from scheduler.vocabulary import events as ev
from scheduler.vocabulary.messages import Dropped, Failure, Message, Outputs, Task, Values
from scheduler.vocabulary.placement import Placement, alone, share
from scheduler.vocabulary.plan import Plan, Stage
from tests.scheduler.models import replicate

X, Y = (TensorSpec(name, "i64", (1,)) for name in "xy")


def diamond(a: str, b: str, c: str) -> Plan:
    """Return x -> t, t -> u, t -> v, (u, v) -> y; the last stage on the first one's device."""
    return Plan(
        "diamond",
        (X,),
        (Y,),
        (
            Stage(0, a, ("x",), ("t",), ("t",)),
            Stage(1, b, ("t",), ("u",), ("u",)),
            Stage(2, c, ("t",), ("v",), ("v",)),
            Stage(3, a, ("u", "v"), ("y",), ("y",)),
        ),
    )


PLACEMENTS = (
    alone(diamond("A", "B", "C")),
    share([diamond("A", "B", "C"), diamond("B", "A", "B")], [2, 1]),
    replicate(diamond("A", "B", "C"), {1: {"B": 1.0, "D": 1.0}, 2: {"C": 2.0, "D": 1.0}}),
)


def made(name: str, inputs: Sequence[Any]) -> np.ndarray:
    """What a stage makes: something that only these inputs give."""
    return np.array([crc32(name.encode() + b"".join(i.tobytes() for i in inputs))], np.int64)


def wanted(x: np.ndarray) -> np.ndarray:
    t = made("t", [x])
    return made("y", [made("u", [t]), made("v", [t])])


@dataclass
class Wire:
    """What a party sends goes to the network as bytes, under the party's address."""

    address: str
    network: list[tuple[str, str, Message]]

    def send(self, address: str, message: Message) -> None:
        parts = [bytes(frame) for frame in envelope.frames(message)]
        self.network.append((self.address, address, envelope.message(parts)))

    def close(self) -> None: ...


@dataclass
class Host:
    """A device whose stages make what `made` says."""

    descriptor: Any
    stages: Sequence[Stage]
    ran: Counter[tuple[Request, int]]
    leaves_outputs = False

    def run_stage(
        self,
        request: Request,
        stage: int,
        inputs: Sequence[Any],
        _: Any,
        *,
        ready_s: float,
        left: Any,
    ) -> tuple[dict[str, np.ndarray], StageRun]:
        self.ran[request, stage] += 1
        outputs = {name: made(name, inputs) for name in self.stages[stage].outputs}
        return outputs, StageRun(stage, self.descriptor.name)

    def place(self, value: Any) -> Any: ...


@dataclass
class Named:
    name: str


class Together(RuleBasedStateMachine):
    """What can happen to requests on their way."""

    @initialize(placed=st.sampled_from(PLACEMENTS), requests=st.integers(1, 4))
    def begin(self, placed: Placement, requests: int) -> None:
        self.placed = placed
        limits = Limits(requests, attempts=1000)
        self.m = ClientMachine(limits, placed.routes)
        self.network: list[tuple[str, str, Message]] = []
        self.wire = Wire("client", self.network)
        self.loops: dict[str, DeviceLoop] = {}
        self.started: dict[str, list[ev.Run]] = {}
        self.starts: Counter[str] = Counter()
        #: How often each life of a device ran each attempt's stages.
        self.ran: list[Counter[tuple[Request, int]]] = []
        self.away: set[str] = set()
        self.now_s = 0.0
        self.count = 0
        #: The attempt of each request that is wanted; None while none is.
        self.requests: dict[int, Request | None] = {}
        #: What came of attempts and is yet to be handed in, as threads may be slow to do it.
        self.told: list[ev.PartArrived | ev.AttemptFailed] = []
        self.ends: dict[int, Any] = {}
        for device in placed.devices:
            self.boot(device)
        self.open_stages()

    # What a deployment does.

    def boot(self, device: str) -> None:
        self.starts[device] += 1
        address = f"{device}{self.starts[device]}"
        self.started[device] = []

        def connect(receive: Callable[[Message], None]) -> Wire:
            return Wire(address, self.network)

        self.ran.append(Counter())
        host: Any = Host(Named(device), self.placed.stages, self.ran[-1])
        take = self.started[device].append
        self.loops[device] = DeviceLoop(host, connect, lambda _, due: take(due))

    def open_stages(self) -> None:
        """Tell each device its stages and where the others are now."""
        for stage in self.placed.stages:
            sends: Mapping[int, Any] = {
                route: tuple(
                    ev.Send(self.loops[self.placed.stages[to].device].address, to, tensors)
                    for to, tensors in targets
                )
                for route, targets in self.placed.sends[stage.index].items()
            }
            outputs = tuple(name for name in stage.outputs if name == "y")
            level = self.placed.levels[stage.index]
            self.loops[stage.device].open_stage(
                ev.StageOpened(
                    "d", stage.index, stage.inputs, level, sends, outputs, client="client"
                )
            )

    def tell(self, event: ev.ClientEvent) -> None:
        for order in self.m.handle(event):
            match order:
                case ev.StartAttempt(number, attempt, route):
                    request = Request(deployment="d", id=number, attempt=attempt, route=route)
                    self.requests[number] = request
                    first = self.placed.stages[self.placed.routes[route].stages[0]]
                    values = Values(Task(request, first.index), {"x": np.array([number])})
                    self.wire.send(self.loops[first.device].address, values)
                case ev.DropAttempt(number, attempt, route):
                    request = self.requests[number]
                    assert request is not None
                    assert (request.attempt, request.route) == (attempt, route)
                    self.requests[number] = None
                    for device in self.placed.routes[route].plan.devices:
                        self.wire.send(self.loops[device].address, Dropped(request))
                case ev.Deliver(number, outputs):
                    assert number not in self.ends
                    self.ends[number] = outputs
                    assert self.requests[number] is not None
                    np.testing.assert_array_equal(outputs["y"], wanted(np.array([number])))
                case ev.Fail(number, error):
                    assert number not in self.ends
                    assert isinstance(error, RequestCancelledError), error
                    self.ends[number] = error

    def arrive(self, message: Message) -> None:
        """Take in what comes to the client."""
        match message:
            case Outputs((request, _), tensors, runs):
                part = (self.now_s, request.id, request.attempt, tensors, runs)
                self.told.append(ev.PartArrived(*part))
            case Failure((request, _), error):
                told = (self.now_s, request.id, request.attempt, error)
                self.told.append(ev.AttemptFailed(*told))

    def carry(self, index: int) -> None:
        """Hand in a message, if its receiver still lives."""
        _, address, message = self.network[index]
        if address == "client":
            self.arrive(message)
        for loop in self.loops.values():
            if loop.address == address:
                loop.receive(message)

    def lost(self, device: str) -> None:
        self.tell(ev.DeviceLost(self.now_s, device, "node", "x"))

    def returned(self, device: str) -> None:
        self.away.discard(device)
        self.tell(ev.DeviceReturned(self.now_s, device))

    # What happens.

    @rule()
    def submit(self) -> None:
        self.count += 1
        self.tell(ev.Submitted(self.now_s, self.count, 8, 1e9))

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.tell(ev.CancelAsked(self.now_s, data.draw(st.integers(1, self.count))))

    @precondition(lambda self: self.network)
    @rule(data=st.data(), twice=st.booleans())
    def deliver(self, data: st.DataObject, twice: bool) -> None:
        index = data.draw(st.integers(0, len(self.network) - 1))
        self.carry(index)
        if not twice:
            del self.network[index]

    @precondition(lambda self: self.told)
    @rule(data=st.data(), twice=st.booleans())
    def hand_in(self, data: st.DataObject, twice: bool) -> None:
        """An attempt's end is told, maybe after the attempt was dropped, maybe again."""
        index = data.draw(st.integers(0, len(self.told) - 1))
        self.tell(self.told[index])
        if not twice:
            del self.told[index]

    @precondition(lambda self: any(self.started.values()))
    @rule(data=st.data())
    def run(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from([d for d, tasks in self.started.items() if tasks]))
        self.loops[device].run(self.started[device].pop(0))

    @precondition(lambda self: self.network)
    @rule(data=st.data())
    def lose_message(self, data: st.DataObject) -> None:
        """A message is lost on its way, and that is noticed."""
        sender, receiver, _ = self.network.pop(data.draw(st.integers(0, len(self.network) - 1)))
        for device, loop in self.loops.items():
            if device not in self.away and loop.address in (sender, receiver):
                self.lost(device)
                self.returned(device)
                return

    @rule(steps=st.integers(1, 15))
    def proceed(self, steps: int) -> None:
        """All goes well for a while, but for ends that are yet to be told."""
        for _ in range(steps):
            if not self.step():
                return

    def step(self) -> bool:
        """Have the first message arrive, or a task run; whether there was any."""
        busy = [device for device, tasks in self.started.items() if tasks]
        if self.network:
            self.carry(0)
            del self.network[0]
        elif busy:
            self.loops[busy[0]].run(self.started[busy[0]].pop(0))
        else:
            return False
        return True

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(self.placed.devices))
        if device not in self.away:
            self.away.add(device)
            self.lost(device)
            self.boot(device)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def bring_back(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(sorted(self.away)))
        self.open_stages()
        self.returned(device)

    def teardown(self) -> None:
        if not hasattr(self, "m"):
            return
        self.open_stages()
        for device in sorted(self.away):
            self.returned(device)
        for _ in range(10_000):
            if self.step():
                continue
            if self.told:
                self.tell(self.told.pop(0))
            elif len(self.ends) < self.count:
                self.now_s = self.m.next_deadline_s or self.now_s
                assert self.now_s < 1e9, "a request hangs"
                self.tell(ev.TimePassed(self.now_s))
            else:
                break
        assert sorted(self.ends) == list(range(1, self.count + 1))
        assert all(times == 1 for ran in self.ran for times in ran.values())
        assert self.m.num_in_flight == self.m.nbytes_in_flight == 0
        assert not any(way.num_running for way in self.m._routes._ways)


TestTogether = Together.TestCase
TestTogether.settings = settings(stateful_step_count=50)
