"""The client's machine: events in, instructions out, and each request answered exactly once."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.errors import (
    DeadlineError,
    DeviceLostError,
    HeteroError,
    OverloadedError,
    RequestCancelledError,
)
from scheduler import Limits
from scheduler import events as ev
from scheduler.client.bytes_in_flight import BytesInFlight
from scheduler.client.machine import (
    TRANSITIONS,
    ClientMachine,
    InvalidTransitionError,
    RequestState,
)


def machine(**limits: float) -> ClientMachine:
    return ClientMachine(Limits(**limits), name="m")


def submitted(
    request_id: int, *, now_s: float = 0.0, nbytes: int = 1, deadline_s: float = 9.0
) -> ev.Submitted:
    return ev.Submitted(now_s, request_id, nbytes, deadline_s)


def failure(instruction: ev.ClientInstruction) -> BaseException:
    assert isinstance(instruction, ev.Fail)
    return instruction.error


def test_a_request_is_started_and_answered() -> None:
    m = machine()
    assert m.handle(submitted(1)) == [ev.StartAttempt(1, 1)]
    assert m.handle(ev.AttemptAnswered(1.0, 1, 1, "y")) == [ev.Deliver(1, "y")]
    assert m.state(1) is RequestState.ANSWERED
    assert [line.what for line in m.story(1)] == ["submitted with 1 bytes", "started", "answered"]
    assert [line.attempt for line in m.story(1)] == [0, 1, 1]


def test_requests_over_the_count_wait_in_order() -> None:
    m = machine(requests=1)
    assert m.handle(submitted(1)) == [ev.StartAttempt(1, 1)]
    assert m.handle(submitted(2)) == []
    assert m.handle(submitted(3)) == []
    assert m.num_waiting == 2
    answer = ev.AttemptAnswered(1.0, 1, 1, "y")
    assert m.handle(answer) == [ev.Deliver(1, "y"), ev.StartAttempt(2, 1)]


def test_requests_over_the_bytes_wait_and_one_alone_never_does() -> None:
    m = machine(nbytes=10)
    assert m.handle(submitted(1, nbytes=25)) == [ev.StartAttempt(1, 1)]
    assert m.handle(submitted(2, nbytes=1)) == []
    assert m.handle(ev.CancelAsked(1.0, 1))[-1] == ev.StartAttempt(2, 1)


def test_what_stages_made_before_counts_for_later_requests() -> None:
    m = machine(nbytes=100)
    m.handle(submitted(1))
    m.handle(ev.AttemptAnswered(1.0, 1, 1, "y", 60))
    assert m.handle(submitted(2)) == [ev.StartAttempt(2, 1)]
    assert m.nbytes_in_flight == 61
    assert m.handle(submitted(3)) == []


def answer(m: ClientMachine, request_id: int, made_nbytes: int, *, nbytes: int = 1) -> None:
    m.handle(submitted(request_id, nbytes=nbytes))
    m.handle(ev.AttemptAnswered(1.0, request_id, 1, "y", made_nbytes))


def test_a_request_that_made_much_does_not_slow_smaller_ones() -> None:
    m = machine(nbytes=1000)
    answer(m, 1, 10)
    answer(m, 2, 900, nbytes=64)
    assert [len(m.handle(submitted(3 + i))) for i in range(32)] == [1] * 32


def test_a_request_that_made_much_once_is_forgotten() -> None:
    m = machine(nbytes=1000)
    answer(m, 1, 900)
    for request_id in range(2, 40):
        answer(m, request_id, 10)
    assert [len(m.handle(submitted(40 + i))) for i in range(32)] == [1] * 32


def test_a_size_not_seen_yet_is_expected_to_make_what_the_next_smaller_one_did() -> None:
    m = machine(nbytes=1000)
    answer(m, 1, 10)
    answer(m, 2, 500, nbytes=16)
    m.handle(submitted(3, nbytes=100))
    assert m.nbytes_in_flight == 600
    assert m.handle(submitted(4, nbytes=100)) == []


def test_machines_that_share_a_count_share_the_bytes_and_none_starves() -> None:
    shared = BytesInFlight()
    one, other = (ClientMachine(Limits(nbytes=100), in_flight=shared) for _ in range(2))
    one.handle(submitted(1, nbytes=60))
    one.handle(submitted(2, nbytes=30))
    assert other.handle(submitted(3, nbytes=50)) == [ev.StartAttempt(3, 1)]  # its only one
    assert other.handle(submitted(4, nbytes=5)) == []
    assert one.handle(ev.CancelAsked(1.0, 1))[0] == ev.DropAttempt(1, 1)
    assert other.handle(ev.TimePassed(1.0)) == [ev.StartAttempt(4, 1)]
    for m in (one, other):
        m.handle(ev.Closed(2.0))
    assert shared.nbytes == 0


def test_a_small_request_does_not_overtake_a_big_one() -> None:
    m = machine(nbytes=10)
    m.handle(submitted(1, nbytes=6))
    assert m.handle(submitted(2, nbytes=9)) == []
    assert m.handle(submitted(3, nbytes=1)) == []


def test_too_many_waiting_callers_are_refused() -> None:
    m = machine(requests=1, waiting=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    error = failure(m.handle(submitted(3))[0])
    assert isinstance(error, OverloadedError)
    assert "1 of 1 requests" in str(error)


def test_a_request_that_does_not_wait_is_refused_where_there_is_no_room() -> None:
    m = machine(requests=1)
    assert m.handle(ev.Submitted(0.0, 1, 1, 9.0, waits=False)) == [ev.StartAttempt(1, 1)]
    refused = m.handle(ev.Submitted(0.0, 2, 1, 9.0, waits=False))
    assert isinstance(failure(refused[0]), OverloadedError)


def test_a_request_without_any_time_left_never_starts() -> None:
    m = machine()
    for request_id, deadline_s in ((1, 0.0), (2, -1.0)):
        (fail,) = m.handle(submitted(request_id, deadline_s=deadline_s))
        assert isinstance(failure(fail), DeadlineError)
        assert m.state(request_id) is RequestState.EXPIRED
    assert m.handle(submitted(3)) == [ev.StartAttempt(3, 1)]


def test_deadlines_end_waiting_and_running_requests() -> None:
    m = machine(requests=1)
    m.handle(submitted(1, deadline_s=3.0))
    m.handle(submitted(2, deadline_s=2.0))
    assert m.next_deadline_s == 2.0
    (waiting,) = m.handle(ev.TimePassed(2.0))
    assert isinstance(failure(waiting), DeadlineError)
    drop, running = m.handle(ev.TimePassed(3.5))
    assert drop == ev.DropAttempt(1, 1)
    assert "no answer after 3.500 s" in str(failure(running))
    assert m.next_deadline_s is None


def test_time_that_passes_early_ends_nothing() -> None:
    m = machine()
    m.handle(submitted(1, deadline_s=3.0))
    assert m.handle(ev.TimePassed(2.9)) == []


def test_cancelling_drops_the_attempt_and_admits_the_next() -> None:
    m = machine(requests=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    drop, fail, start = m.handle(ev.CancelAsked(1.0, 1))
    assert (drop, start) == (ev.DropAttempt(1, 1), ev.StartAttempt(2, 1))
    assert isinstance(failure(fail), RequestCancelledError)
    assert m.handle(ev.CancelAsked(2.0, 1)) == []


def test_answers_of_ended_requests_are_dropped_and_told() -> None:
    m = machine()
    m.handle(submitted(1))
    m.handle(ev.CancelAsked(1.0, 1))
    assert m.handle(ev.AttemptAnswered(2.0, 1, 1, "y")) == []
    assert "came late" in m.story(1)[-1].what


def test_a_retried_failure_starts_another_attempt_and_the_first_ones_answer_is_dropped() -> None:
    m = ClientMachine(Limits(), retry=lambda error, attempt: attempt < 3)
    m.handle(submitted(1))
    again = m.handle(ev.AttemptFailed(1.0, 1, 1, OSError()))
    assert again == [ev.DropAttempt(1, 1), ev.StartAttempt(1, 2)]
    assert m.handle(ev.AttemptAnswered(1.5, 1, 1, "stale")) == []
    assert not m.is_current(1, 1)
    assert m.handle(ev.AttemptFailed(2.0, 1, 2, OSError()))[-1] == ev.StartAttempt(1, 3)
    assert m.handle(ev.AttemptAnswered(3.0, 1, 3, "y")) == [ev.Deliver(1, "y")]


def test_a_lost_device_fails_all_and_those_to_come_until_it_returns() -> None:
    m = machine(requests=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    told = m.handle(ev.DeviceLost(1.0, "ORT.1", "node-7", "killed"))
    errors = [i.error for i in told if isinstance(i, ev.Fail)]
    assert [type(e) for e in errors] == [DeviceLostError, DeviceLostError]
    assert (errors[0].device, errors[0].node, errors[0].attempt) == ("ORT.1", "node-7", 1)
    assert isinstance(failure(m.handle(submitted(3))[0]), DeviceLostError)
    m.handle(ev.DeviceReturned(2.0, "ORT.1"))
    assert m.handle(submitted(4)) == [ev.StartAttempt(4, 1)]


def test_closing_cancels_all_and_those_to_come() -> None:
    m = machine(requests=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    told = m.handle(ev.Closed(1.0))
    assert [type(i) for i in told] == [ev.DropAttempt, ev.Fail, ev.Fail]
    assert isinstance(failure(m.handle(submitted(3))[0]), RequestCancelledError)


def test_impossible_events_are_faults() -> None:
    m = machine(requests=1)
    m.handle(submitted(1))
    with pytest.raises(InvalidTransitionError, match="twice"):
        m.handle(submitted(1))
    m.handle(submitted(2))
    with pytest.raises(InvalidTransitionError, match="waiting"):
        m.handle(ev.AttemptAnswered(1.0, 2, 1, "y"))


def test_the_table_is_closed() -> None:
    reached = {RequestState.NEW} | {state for row in TRANSITIONS.values() for state in row.to}
    assert reached == set(RequestState)
    assert {event for _, event in TRANSITIONS} < set(get_args(ev.ClientEvent))
    for row in TRANSITIONS.values():
        assert callable(getattr(ClientMachine, row.handler))
    leaving = {state for state, _ in TRANSITIONS}
    assert leaving == set(RequestState)


steps = st.lists(
    st.tuples(
        st.sampled_from(["submit", "answer", "fail", "cancel", "time", "lost", "back"]),
        st.integers(0, 9),
        st.integers(1, 3),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 3), st.integers(0, 2), st.booleans())
@settings(max_examples=200, deadline=None)
def test_random_lives_keep_the_invariants(
    life: list[tuple[str, int, int]], requests: int, waiting: int, retries: bool
) -> None:
    m = ClientMachine(
        Limits(requests=requests, nbytes=20, waiting=waiting),
        retry=lambda error, attempt: retries and attempt < 3,
    )
    answers: dict[int, int] = {}
    started: dict[int, int] = {}
    now_s, count = 0.0, 0

    def follow(instructions: list[ev.ClientInstruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ev.StartAttempt(request_id, attempt):
                    assert attempt == started.get(request_id, 0) + 1
                    started[request_id] = attempt
                case ev.Deliver(request_id) | ev.Fail(request_id):
                    answers[request_id] = answers.get(request_id, 0) + 1
                case ev.DropAttempt(request_id, attempt):
                    assert started[request_id] == attempt

    for what, pick, number in life:
        now_s += 0.5
        target = 1 + pick % max(1, count)
        running = m.state(target) is RequestState.RUNNING
        match what:
            case "submit":
                count += 1
                follow(m.handle(ev.Submitted(now_s, count, 4 * number, now_s + pick + 1)))
            case "answer" if running:
                follow(m.handle(ev.AttemptAnswered(now_s, target, number, "y", pick)))
            case "fail" if running:
                follow(m.handle(ev.AttemptFailed(now_s, target, number, HeteroError("x"))))
            case "cancel":
                follow(m.handle(ev.CancelAsked(now_s, target)))
            case "time":
                follow(m.handle(ev.TimePassed(now_s)))
            case "lost":
                follow(m.handle(ev.DeviceLost(now_s, "D", "n", "x")))
            case "back":
                follow(m.handle(ev.DeviceReturned(now_s, "D")))
        states = [m.state(i) for i in range(1, count + 1)]
        assert m.num_in_flight == states.count(RequestState.RUNNING) <= requests
        assert m.num_waiting == states.count(RequestState.WAITING) <= waiting
        assert all(n == 1 for n in answers.values())
        # Nobody waits while there is room for the first in line.
        assert not m.num_waiting or m.num_in_flight
    follow(m.handle(ev.Closed(now_s)))
    assert answers == dict.fromkeys(range(1, count + 1), 1)
    assert m.num_in_flight == m.num_waiting == m.nbytes_in_flight == 0
