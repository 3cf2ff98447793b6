"""State machine of the client under random events: each request ends once and leaves no state."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hetero.devices.errors import ClusterError, DeviceLostError, HeteroError
from hetero.scheduler import Limits
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.client.transitions import ENDED
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.request_record import RequestState
from tests.support.machine_routes import answered, route

DEVICES = "ABC"
ERRORS = (DeviceLostError("lost on its way"), MemoryError("full"), HeteroError("a plugin's"))
_S = RequestState


class ClientLives(RuleBasedStateMachine):
    """Client with random behaviour of devices and network."""

    @initialize(
        ways=st.lists(st.sets(st.sampled_from(DEVICES), min_size=1), min_size=1, max_size=3),
        requests=st.integers(1, 3),
        waiting=st.integers(0, 3),
        attempts=st.integers(1, 3),
        in_order=st.booleans(),
    )
    def begin(self, ways: list[set[str]], requests: int, waiting: int, **more: Any) -> None:
        self.limits = Limits(requests, 20, waiting, remembered=4, admission_timeout_s=6.0, **more)
        self.ways = ways
        self.m = ClientMachine(self.limits, [route(*sorted(devices)) for devices in ways])
        self.now_s = 0.0
        self.away: set[str] = set()
        #: Request -> its attempts and results.
        self.count = 0
        self.last_attempt: Counter[int] = Counter()
        self.running: dict[int, tuple[int, int]] = {}
        self.attempts: list[tuple[int, int]] = []
        self.ends: Counter[int] = Counter()
        self.delivered: list[int] = []
        self.admitted: list[int] = []

    def notify(self, event: ev.ClientEvent) -> None:
        for instruction in self.m.handle(event):
            match instruction:
                case ev.StartAttempt(request, attempt, way):
                    assert not self.ends[request]
                    assert request not in self.running
                    assert attempt == self.last_attempt[request] + 1
                    assert self.away.isdisjoint(self.ways[way])
                    if attempt == 1:
                        self.admitted.append(request)
                    self.last_attempt[request] = attempt
                    self.running[request] = (attempt, way)
                    self.attempts.append((request, attempt))
                case ev.DropAttempt(request, attempt, way):
                    assert self.running.pop(request) == (attempt, way)
                case ev.Deliver(request, outputs):
                    assert outputs["y"] == (request, self.last_attempt[request])
                    self.running.pop(request, None)
                    self.ends[request] += 1
                    self.delivered.append(request)
                case ev.Fail(request, _):
                    assert request not in self.running
                    self.ends[request] += 1

    @rule(
        nbytes=st.integers(0, 15),
        lasts_s=st.integers(0, 10),
        waits=st.booleans(),
        priority=st.integers(0, 1),
    )
    def submit(self, nbytes: int, lasts_s: int, waits: bool, priority: int) -> None:
        self.count += 1
        deadline_s = self.now_s + lasts_s
        self.notify(ev.Submitted(self.now_s, self.count, nbytes, deadline_s, waits, priority))

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), nbytes=st.integers(0, 15))
    def answer(self, data: st.DataObject, nbytes: int) -> None:
        request, attempt = data.draw(st.sampled_from(self.attempts))
        if self.is_current(request, attempt):
            self.running.pop(request)
        self.notify(answered(self.now_s, request, attempt, (request, attempt), nbytes))

    def is_current(self, request: int, attempt: int) -> bool:
        return self.running.get(request, (0,))[0] == attempt

    def late(self) -> list[tuple[int, int]]:
        """Return the attempts that later attempts of the same requests have replaced."""
        return [(r, a) for r, a in self.attempts if r in self.running and a < self.running[r][0]]

    @precondition(lambda self: self.late())
    @rule(data=st.data())
    def answer_late(self, data: st.DataObject) -> None:
        request, attempt = data.draw(st.sampled_from(self.late()))
        running = dict(self.running)
        self.notify(answered(self.now_s, request, attempt, (request, attempt), 1))
        assert self.running == running

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), error=st.sampled_from(ERRORS))
    def fail(self, data: st.DataObject, error: BaseException) -> None:
        request, attempt = data.draw(st.sampled_from(self.attempts))
        running = dict(self.running)
        late = not self.is_current(request, attempt)
        self.notify(ev.AttemptFailed(self.now_s, request, attempt, error))
        assert self.running == running or not late

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.notify(ev.CancelRequested(self.now_s, data.draw(st.integers(1, self.count))))

    @rule(seconds=st.sampled_from([0.1, 0.3, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.notify(ev.TimePassed(self.now_s))

    @rule(device=st.sampled_from(DEVICES), forever=st.booleans())
    def lose(self, device: str, forever: bool) -> None:
        self.away.add(device)
        kind = ev.DeviceRemoved if forever else ev.DeviceLost
        self.notify(kind(self.now_s, device, "node", "pulled"))

    @rule(device=st.sampled_from(DEVICES))
    def give_back(self, device: str) -> None:
        self.away.discard(device)
        self.notify(ev.DeviceReturned(self.now_s, device))

    @precondition(lambda self: len(self.ways) < 5)
    @rule(devices=st.sets(st.sampled_from(DEVICES), min_size=1))
    def add_route(self, devices: set[str]) -> None:
        self.ways.append(devices)
        self.notify(ev.RoutesAdded(self.now_s, (route(*sorted(devices)),)))

    def states(self) -> Counter[RequestState | None]:
        return Counter(self.m.state(request) for request in range(1, self.count + 1))

    @invariant()
    def what_is_held_is_counted(self) -> None:
        states = self.states()
        assert (
            self.m.num_in_flight
            == states[_S.RUNNING] + states[_S.PARKED] + states[_S.AWAITING_TURN]
        )
        assert self.m.num_in_flight <= self.limits.requests
        assert self.m.num_waiting == states[_S.WAITING] <= self.limits.waiting
        assert states[_S.RUNNING] == len(self.running)
        on_routes = Counter(way for _, way in self.running.values())
        for way in range(len(self.ways)):
            assert self.m._routes.states[way].num_running == on_routes[way]
        if not self.m.num_in_flight:
            assert self.m.nbytes_in_flight == 0

    @invariant()
    def every_request_ends_once_and_is_awaited_till_then(self) -> None:
        for request in range(1, self.count + 1):
            state = self.m.state(request)
            assert self.ends[request] == (state is None or state in ENDED)
        if len(self.ends) < self.count:
            assert self.m.next_deadline_s is not None

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        live = any(self.away.isdisjoint(devices) for devices in self.ways)
        if self.m.num_waiting and live:
            assert self.m.num_in_flight

    @invariant()
    def answers_come_in_order(self) -> None:
        if self.limits.in_order:
            order = [request for request in self.admitted if request in self.delivered]
            assert self.delivered == order

    @rule(how=st.sampled_from(["time", "close", "cluster"]))
    def end(self, how: str) -> None:
        if how == "time":
            self.now_s += 100.0
            self.notify(ev.TimePassed(self.now_s))
        elif how == "close":
            self.notify(ev.Closed(self.now_s))
        else:
            self.notify(ev.ClusterLost(self.now_s, ClusterError("gone")))
        assert self.ends == Counter(range(1, self.count + 1))
        assert self.m.num_in_flight == self.m.num_waiting == self.m.nbytes_in_flight == 0


TestClientLives = ClientLives.TestCase
TestClientLives.settings = settings(stateful_step_count=40)
