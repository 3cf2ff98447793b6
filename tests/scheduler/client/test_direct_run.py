"""Direct runs in the client's state machine are counted, stored and adopted like submissions."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    RequestCancelledError,
)
from hetero.devices.request.request import Request
from hetero.scheduler import Limits
from hetero.scheduler.client.direct_run import DirectRun
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.request_record import RequestState
from tests.support.machine_routes import answered, route

ERRORS = (DeviceLostError("lost on its way"), MemoryError("full"), HeteroError("a plugin's"))
LIMITS = Limits(requests=2, nbytes=20, waiting=2, timeout_s=100.0)
_S = RequestState


def direct_run(
    m: ClientMachine, number: int, now_s: float, nbytes: int = 1, *, is_sent: bool = False
) -> DirectRun | None:
    """Return an admitted direct run; None if it is refused."""
    run = DirectRun(Request(), nbytes, now_s, is_sent=is_sent)
    return run if m.begin_direct(run, itertools.count(number)) else None


def submitted(m: ClientMachine, number: int, now_s: float, nbytes: int = 1) -> ev.Submitted:
    """Return the event of the same request."""
    return ev.Submitted(now_s, number, nbytes, m.limits.deadline_s(now_s, None))


def test_direct_run_leaves_the_record_of_a_submission():
    usual, direct = (ClientMachine(LIMITS, [route("A")]) for _ in range(2))
    usual.handle(submitted(usual, 1, 1.0))
    run = direct_run(direct, 1, 1.0)
    assert run is not None
    assert direct.state(1) is _S.DIRECT
    assert direct.num_in_flight == usual.num_in_flight == 1
    assert direct.nbytes_in_flight == usual.nbytes_in_flight == 1
    usual.handle(answered(2.0, 1, 1, "y", 8))
    assert direct.end_direct(run, 2.0, 8)
    assert direct.record(1) == usual.record(1)
    assert direct.num_in_flight == direct.nbytes_in_flight == 0


def test_direct_run_is_refused_while_others_wait():
    m = ClientMachine(LIMITS, [route("A")])
    runs = [direct_run(m, number, 1.0) for number in (1, 2)]
    assert all(runs)
    assert direct_run(m, 3, 1.0) is None
    assert m.handle(submitted(m, 3, 1.0)) == []  # it waits
    assert runs[0] is not None
    m.end_direct(runs[0], 2.0, 0)
    assert direct_run(m, 4, 2.0) is None
    assert m.handle(ev.TimePassed(2.0)) == [ev.StartAttempt(3, 1)]


def test_direct_run_beyond_byte_limit_is_refused():
    m = ClientMachine(LIMITS, [route("A")])
    assert direct_run(m, 1, 1.0, nbytes=15)
    assert direct_run(m, 2, 1.0, nbytes=6) is None
    assert direct_run(m, 2, 1.0, nbytes=5)


def test_direct_run_without_route_or_deployment_is_refused():
    m = ClientMachine(LIMITS, [route("A")])
    m.handle(ev.DeviceLost(0.0, "A", "node", "pulled"))
    assert direct_run(m, 1, 1.0) is None
    m.handle(ev.DeviceReturned(1.0, "A"))
    m.handle(ev.Closed(2.0))
    assert direct_run(m, 1, 2.0) is None
    assert m.num_in_flight == m.nbytes_in_flight == 0


def test_direct_run_adopted_after_close_is_cancelled():
    m = ClientMachine(LIMITS, [route("A")])
    run = direct_run(m, 1, 1.0)
    assert run is not None
    m.handle(ev.Closed(2.0))
    assert not m.end_direct(run, 3.0, 8)
    (instruction,) = m.handle(ev.Adopted(3.0, 1, {"y": 1}))
    assert isinstance(instruction, ev.Fail)
    assert isinstance(instruction.error, RequestCancelledError)
    assert m.state(1) is _S.CANCELLED
    assert m.num_in_flight == m.nbytes_in_flight == 0


def test_adopted_request_expires_at_its_own_deadline():
    m = ClientMachine(LIMITS, [route("A")])
    assert direct_run(m, 1, 1.0)
    assert m.handle(ev.TimePassed(200.0)) == []  # its thread cannot be notified
    assert m.handle(ev.Adopted(200.0, 1, {})) == []
    assert m.next_deadline_s == 101.0
    drop, fail = m.handle(ev.TimePassed(200.0))
    assert drop == ev.DropAttempt(1, 1)
    assert isinstance(fail, ev.Fail)
    assert isinstance(fail.error, DeadlineError)


@pytest.mark.parametrize("kind", [ev.DeviceLost, ev.DeviceRemoved])
def test_sent_run_is_adopted_by_its_own_events(kind):
    m = ClientMachine(LIMITS, [route("A"), route("B")])
    runs = [direct_run(m, number, float(number), is_sent=True) for number in (1, 2)]
    assert [run and run.route for run in runs] == [0, 1]
    assert m.next_deadline_s == 101.0
    (drop, fail) = m.handle(ev.CancelRequested(3.0, 1))
    assert drop == ev.DropAttempt(1, 1, 0)
    assert isinstance(fail, ev.Fail)
    assert m.state(2) is _S.DIRECT
    assert m.next_deadline_s == 102.0
    m.handle(ev.TimePassed(101.0))
    assert m.state(2) is _S.DIRECT
    m.handle(kind(101.0, "B", "node", "pulled"))
    assert m.state(2) is _S.RUNNING  # replayed on the other route
    assert m.num_in_flight == 1


def test_partial_result_does_not_end_a_sent_run():
    m = ClientMachine(LIMITS, [route("A", "B")])
    assert direct_run(m, 1, 1.0, is_sent=True)
    assert not m.end_sent(1, 1, 2.0, 8, num_runs=1, num_outputs=0)
    assert not m.end_sent(1, 2, 2.0, 8, num_runs=2, num_outputs=0)
    assert not m.end_sent(2, 1, 2.0, 8, num_runs=2, num_outputs=0)
    assert m.end_sent(1, 1, 2.0, 8, num_runs=2, num_outputs=0)
    assert not m.end_sent(1, 1, 2.0, 8, num_runs=2, num_outputs=0)
    assert m.num_in_flight == m.nbytes_in_flight == 0


def test_lost_cluster_admits_no_direct_run():
    m = ClientMachine(LIMITS, [route("A")])
    assert direct_run(m, 1, 1.0, is_sent=True)
    assert m.handle(ev.ClusterLost(2.0, ClusterError("gone")))
    assert m.state(1) is _S.FAILED
    assert direct_run(m, 2, 2.0, is_sent=True) is None


def test_close_fails_adopted_and_other_requests_in_order():
    m = ClientMachine(replace(LIMITS, requests=3), [route("A")])
    assert direct_run(m, 1, 1.0, is_sent=True)
    m.handle(submitted(m, 2, 1.0))
    assert direct_run(m, 3, 1.0, is_sent=True)
    done = m.handle(ev.Closed(2.0))
    assert [i.request_id for i in done if isinstance(i, ev.Fail)] == [1, 2, 3]


class Twins(RuleBasedStateMachine):
    """Two state machines with equal events; direct runs of one are submissions in the other.

    In half of the lives devices run them, and events adopt them.
    """

    @initialize(
        ways=st.lists(st.sampled_from(["A", "B", "AB"]), min_size=1, max_size=3),
        requests=st.integers(1, 3),
        waiting=st.integers(0, 3),
        attempts=st.integers(1, 3),
        is_sent=st.booleans(),
    )
    def begin(
        self, ways: list[str], requests: int, waiting: int, attempts: int, is_sent: bool
    ) -> None:
        self.is_sent = is_sent
        limits = Limits(requests, 20, waiting, remembered=4, timeout_s=9.0, attempts=attempts)
        self.usual, self.twin = (ClientMachine(limits, [route(*w) for w in ways]) for _ in "ab")
        self.now_s = 0.0
        self.count = 0
        #: Direct runs that have neither ended nor been adopted.
        self.direct: dict[int, DirectRun] = {}
        #: Request -> its running attempt.
        self.attempts: dict[int, int] = {}

    def notify(self, event: ev.ClientEvent) -> None:
        """Send an event to both, and compare their instructions."""
        self.compare(self.usual.handle(event), self.twin.handle(event))
        for number in [n for n in self.direct if n not in self.twin._direct]:
            del self.direct[number]

    def compare(self, *instruction_lists: list[ev.ClientInstruction]) -> None:
        usual, twin = ([repr(i) for i in instructions] for instructions in instruction_lists)
        assert usual == twin
        for instruction in instruction_lists[0]:
            if isinstance(instruction, ev.StartAttempt):
                self.attempts[instruction.request_id] = instruction.attempt
            elif not isinstance(instruction, ev.Admitted):
                self.attempts.pop(instruction.request_id, None)

    @rule(nbytes=st.integers(0, 15), is_direct=st.booleans())
    def submit(self, nbytes: int, is_direct: bool) -> None:
        self.count += 1
        event = submitted(self.usual, self.count, self.now_s, nbytes)
        run = None
        if is_direct:
            run = direct_run(self.twin, self.count, self.now_s, nbytes, is_sent=self.is_sent)
        if run is None:
            self.notify(event)
            return
        self.direct[self.count] = run
        # The other machine must admit it at once, on the same route.
        assert self.usual.handle(event) == [ev.StartAttempt(self.count, 1, run.route)]
        self.attempts[self.count] = 1

    @precondition(lambda self: self.direct)
    @rule(data=st.data(), nbytes=st.integers(0, 15))
    def answer_directly(self, data: st.DataObject, nbytes: int) -> None:
        number = data.draw(st.sampled_from(sorted(self.direct)))
        run = self.direct.pop(number)
        first, *others = self.usual.handle(answered(self.now_s, number, 1, "y", nbytes))
        assert isinstance(first, ev.Deliver)
        del self.attempts[number]
        if self.is_sent:
            assert self.twin.end_sent(number, 1, self.now_s, nbytes, 5, 1)
        else:
            assert self.twin.end_direct(run, self.now_s, nbytes)
        self.compare(others, self.twin.handle(ev.TimePassed(self.now_s)))

    @precondition(lambda self: self.direct)
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.direct)))
        del self.direct[number]
        assert self.twin.handle(ev.Adopted(self.now_s, number, {})) == []

    def adopted(self) -> list[int]:
        """Return the requests that are attempts in both machines, or that events may adopt."""
        return sorted(self.attempts.keys() - (set() if self.is_sent else self.direct.keys()))

    @precondition(lambda self: self.adopted())
    @rule(data=st.data(), nbytes=st.integers(0, 15))
    def answer(self, data: st.DataObject, nbytes: int) -> None:
        number = data.draw(st.sampled_from(self.adopted()))
        self.notify(answered(self.now_s, number, self.attempts[number], "y", nbytes))

    @precondition(lambda self: self.adopted())
    @rule(data=st.data(), error=st.sampled_from(ERRORS))
    def fail(self, data: st.DataObject, error: BaseException) -> None:
        number = data.draw(st.sampled_from(self.adopted()))
        self.notify(ev.AttemptFailed(self.now_s, number, self.attempts[number], error))

    @precondition(lambda self: self.adopted())
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        self.notify(ev.CancelRequested(self.now_s, data.draw(st.sampled_from(self.adopted()))))

    @rule(seconds=st.sampled_from([0.1, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        # The time limit does not interrupt a caller that runs its own request.
        if self.is_sent or not self.direct:
            self.now_s += seconds
            self.notify(ev.TimePassed(self.now_s))

    @precondition(lambda self: self.is_sent)
    @rule(device=st.sampled_from("AB"), cause=st.sampled_from(["pulled", "", "gone"]))
    def lose(self, device: str, cause: str) -> None:
        if cause:
            kind = ev.DeviceRemoved if cause == "gone" else ev.DeviceLost
            self.notify(kind(self.now_s, device, "node", cause))
        else:
            self.notify(ev.DeviceReturned(self.now_s, device))

    @precondition(lambda self: self.is_sent and self.count > 8)
    @rule()
    def close(self) -> None:
        self.notify(ev.Closed(self.now_s))

    @invariant()
    def both_count_alike(self) -> None:
        if not self.count:
            return
        for name in ("num_in_flight", "num_waiting", "nbytes_in_flight"):
            assert getattr(self.usual, name) == getattr(self.twin, name), name
        assert self.usual._in_flight.num_running == self.twin._in_flight.num_running
        for usual, twin in zip(self.usual._routes.states, self.twin._routes.states, strict=True):
            assert usual.num_running == twin.num_running

    @invariant()
    def both_remember_alike(self) -> None:
        for number in range(1, self.count + 1):
            usual, twin = self.usual.record(number), self.twin.record(number)
            if number in self.direct:
                assert usual is not None
                assert twin is not None
                usual.state, state = _S.DIRECT, usual.state
                try:
                    assert usual == twin
                finally:
                    usual.state = state
            elif usual and twin:  # otherwise one machine has forgotten it an event earlier
                assert repr(usual) == repr(twin)


Twins.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestTwins = Twins.TestCase
