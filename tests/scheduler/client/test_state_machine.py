"""State machine of the client: events, instructions, and one result per request."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from hetero.devices.errors import (
    ClusterError,
    DeadlineError,
    DeviceLostError,
    HeteroError,
    OverloadedError,
    RequestCancelledError,
)
from hetero.scheduler import Limits
from hetero.scheduler.client.bytes_in_flight import BytesInFlight
from hetero.scheduler.client.state_machine import ClientMachine
from hetero.scheduler.client.transitions import TRANSITIONS, InvalidTransitionError
from hetero.scheduler.types import events as ev
from hetero.scheduler.types.placement import Route
from hetero.scheduler.types.request_record import RequestState
from tests.support.machine_routes import RUNS, answered, route


def machine(*routes: Route, **limits: Any) -> ClientMachine:
    return ClientMachine(Limits(**limits), routes or (route("A"),), name="m")


def submitted(
    request_id: int, *, now_s: float = 0.0, nbytes: int = 1, deadline_s: float = 9.0
) -> ev.Submitted:
    return ev.Submitted(now_s, request_id, nbytes, deadline_s)


def delivered(request_id: int, answer: Any) -> ev.Deliver:
    return ev.Deliver(request_id, {"y": answer}, RUNS)


def failure(instruction: ev.ClientInstruction) -> BaseException:
    assert isinstance(instruction, ev.Fail)
    return instruction.error


def test_request_starts_and_finishes():
    m = machine()
    assert m.handle(submitted(1)) == [ev.StartAttempt(1, 1)]
    assert m.handle(answered(1.0, 1, 1, "y")) == [delivered(1, "y")]
    assert m.state(1) is RequestState.ANSWERED
    assert [line.event for line in m.story(1)] == ["submitted with 1 bytes", "started", "answered"]
    assert [line.attempt for line in m.story(1)] == [0, 1, 1]


def test_record_of_a_request_keeps_no_error():
    """The error's traceback would keep its callers' variables alive, also resident tensors."""
    m = machine()
    m.handle(submitted(1))
    assert isinstance(failure(m.handle(ev.AttemptFailed(1.0, 1, 1, ValueError()))[-1]), ValueError)
    record = m.record(1)
    assert record is not None
    assert record.error is None


def test_requests_beyond_the_limit_wait_in_order():
    m = machine(requests=1)
    assert m.handle(submitted(1)) == [ev.StartAttempt(1, 1)]
    assert m.handle(submitted(2)) == []
    assert m.handle(submitted(3)) == []
    assert m.num_waiting == 2
    answer = answered(1.0, 1, 1, "y")
    assert m.handle(answer) == [delivered(1, "y"), ev.StartAttempt(2, 1)]


def test_request_beyond_byte_limit_waits_unless_alone():
    m = machine(nbytes=10)
    assert m.handle(submitted(1, nbytes=25)) == [ev.StartAttempt(1, 1)]
    assert m.handle(submitted(2, nbytes=1)) == []
    assert m.handle(ev.CancelRequested(1.0, 1))[-1] == ev.StartAttempt(2, 1)


def test_earlier_output_sizes_count_for_later_requests():
    m = machine(nbytes=100)
    m.handle(submitted(1))
    m.handle(answered(1.0, 1, 1, "y", 60))
    assert m.handle(submitted(2)) == [ev.StartAttempt(2, 1)]
    assert m.nbytes_in_flight == 61
    assert m.handle(submitted(3)) == []


def answer(m: ClientMachine, request_id: int, made_nbytes: int, *, nbytes: int = 1) -> None:
    m.handle(submitted(request_id, nbytes=nbytes))
    m.handle(answered(1.0, request_id, 1, "y", made_nbytes))


def test_request_with_large_outputs_does_not_delay_smaller_ones():
    m = machine(nbytes=1000)
    answer(m, 1, 10)
    answer(m, 2, 900, nbytes=64)
    assert [len(m.handle(submitted(3 + i))) for i in range(32)] == [1] * 32


def test_single_large_output_size_is_forgotten():
    m = machine(nbytes=1000)
    answer(m, 1, 900)
    for request_id in range(2, 40):
        answer(m, request_id, 10)
    assert [len(m.handle(submitted(40 + i))) for i in range(32)] == [1] * 32


def test_unknown_input_size_uses_next_smaller_output_size():
    m = machine(nbytes=1000)
    answer(m, 1, 10)
    answer(m, 2, 500, nbytes=16)
    m.handle(submitted(3, nbytes=100))
    assert m.nbytes_in_flight == 600
    assert m.handle(submitted(4, nbytes=100)) == []


def test_state_machines_share_bytes_without_starvation():
    shared = BytesInFlight()
    one, other = (
        ClientMachine(Limits(nbytes=100), (route("A"),), in_flight=shared) for _ in range(2)
    )
    one.handle(submitted(1, nbytes=60))
    one.handle(submitted(2, nbytes=30))
    assert other.handle(submitted(3, nbytes=50)) == [ev.StartAttempt(3, 1)]  # its only attempt
    assert other.handle(submitted(4, nbytes=5)) == []
    assert one.handle(ev.CancelRequested(1.0, 1))[0] == ev.DropAttempt(1, 1)
    assert other.handle(ev.TimePassed(1.0)) == [ev.StartAttempt(4, 1)]
    for m in (one, other):
        m.handle(ev.Closed(2.0))
    assert shared.nbytes == 0


def test_small_request_does_not_overtake_a_large_one():
    m = machine(nbytes=10)
    m.handle(submitted(1, nbytes=6))
    assert m.handle(submitted(2, nbytes=9)) == []
    assert m.handle(submitted(3, nbytes=1)) == []


def test_too_many_waiting_callers_are_refused():
    m = machine(requests=1, waiting=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    error = failure(m.handle(submitted(3))[0])
    assert isinstance(error, OverloadedError)
    assert "1 of 1 requests" in str(error)


def test_nonwaiting_request_without_room_is_refused():
    m = machine(requests=1)
    assert m.handle(ev.Submitted(0.0, 1, 1, 9.0, waits=False)) == [ev.StartAttempt(1, 1)]
    refusals = m.handle(ev.Submitted(0.0, 2, 1, 9.0, waits=False))
    assert isinstance(failure(refusals[0]), OverloadedError)


def test_expired_request_never_starts():
    m = machine()
    for request_id, deadline_s in ((1, 0.0), (2, -1.0)):
        (fail,) = m.handle(submitted(request_id, deadline_s=deadline_s))
        assert isinstance(failure(fail), DeadlineError)
        assert m.state(request_id) is RequestState.EXPIRED
    assert m.handle(submitted(3)) == [ev.StartAttempt(3, 1)]


def test_deadlines_end_waiting_and_running_requests():
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


def test_early_clock_event_ends_no_request():
    m = machine()
    m.handle(submitted(1, deadline_s=3.0))
    assert m.handle(ev.TimePassed(2.9)) == []


def test_cancellation_drops_the_attempt_and_admits_the_next():
    m = machine(requests=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    drop, fail, start = m.handle(ev.CancelRequested(1.0, 1))
    assert (drop, start) == (ev.DropAttempt(1, 1), ev.StartAttempt(2, 1))
    assert isinstance(failure(fail), RequestCancelledError)
    assert m.handle(ev.CancelRequested(2.0, 1)) == []


def test_results_of_ended_requests_are_dropped_and_reported():
    m = machine()
    m.handle(submitted(1))
    m.handle(ev.CancelRequested(1.0, 1))
    assert m.handle(answered(2.0, 1, 1, "y")) == []
    assert "came late" in m.story(1)[-1].event


def test_retry_starts_an_attempt_and_drops_earlier_results():
    m = machine(route("A"), route("B"))
    m.handle(submitted(1))
    again = m.handle(ev.AttemptFailed(1.0, 1, 1, DeviceLostError("x")))
    assert again == [ev.DropAttempt(1, 1), ev.StartAttempt(1, 2, 1)]
    assert m.handle(answered(1.5, 1, 1, "stale")) == []
    again = m.handle(ev.AttemptFailed(2.0, 1, 2, DeviceLostError("x")))
    assert again == [ev.DropAttempt(1, 2, 1), ev.StartAttempt(1, 3)]
    assert m.handle(answered(3.0, 1, 3, "y")) == [delivered(1, "y")]


LOST = ev.DeviceLost(1.0, "A", "node-7", "killed")
SILENT = ev.DeviceLost(1.0, "A", "node-7", "not heard", may_live=True)
GONE = ev.DeviceRemoved(2.0, "A", "node-7", "unplugged")
BACK = ev.DeviceReturned(3.0, "A")


def test_requests_of_lost_device_are_replayed_after_its_return():
    m = machine(requests=2)
    m.handle(submitted(1))
    m.handle(submitted(2))
    m.handle(submitted(3))
    assert m.handle(LOST) == [ev.DropAttempt(1, 1), ev.DropAttempt(2, 1)]
    assert m.state(1) is RequestState.PARKED
    assert m.handle(submitted(4)) == []
    assert m.num_in_flight == 2  # a parked request keeps its admission
    assert m.handle(answered(1.5, 1, 1, "late")) == []
    assert m.handle(BACK) == [ev.StartAttempt(1, 2), ev.StartAttempt(2, 2)]
    assert m.handle(answered(4.0, 1, 2, "y")) == [delivered(1, "y"), ev.StartAttempt(3, 1)]
    message = "device A on node node-7 is gone: killed"
    restarted = "A device whose node is alive is restarted: send the request again."
    assert [line.event for line in m.story(1)] == [
        "submitted with 1 bytes",
        "started",
        f"failed: request 1, attempt 1: {message}. {restarted}",
        f"parked: {message}",
        "PartArrived came late and was dropped",
        "started",
        "answered",
    ]


def test_request_waits_for_its_lost_device():
    m = machine()
    m.handle(LOST)
    assert m.handle(submitted(1)) == []
    assert "waits: device A on node node-7 is gone" in m.story(1)[-1].event
    for number, waits in ((2, False), (3, None)):
        (refusals,) = m.handle(ev.Submitted(2.0, number, 1, 9.0, waits=waits))
        assert isinstance(failure(refusals), DeviceLostError)
    assert m.handle(BACK) == [ev.StartAttempt(1, 1)]


def test_removed_device_ends_its_waiting_requests():
    m = machine(requests=1)
    for request_id in (1, 2):
        m.handle(submitted(request_id))
    m.handle(LOST)
    instructions = m.handle(GONE)
    errors = [failure(i) for i in instructions]
    assert [type(e) for e in errors] == [DeviceLostError] * 2
    assert errors[0].story[-1].startswith("2000.000 ms, attempt 1: refused: request 1, attempt 1")
    assert any("attempt 1: started" in line for line in errors[0].story)
    assert "unplugged" in str(failure(m.handle(submitted(3))[0]))
    m.handle(BACK)
    assert m.handle(submitted(4)) == [ev.StartAttempt(4, 1)]


def test_loss_on_one_route_moves_its_requests_only():
    m = machine(route("A", "C"), route("B", "C"))
    assert m.handle(submitted(1)) == [ev.StartAttempt(1, 1, 0)]
    assert m.handle(submitted(2)) == [ev.StartAttempt(2, 1, 1)]
    assert m.handle(LOST) == [ev.DropAttempt(1, 1, 0), ev.StartAttempt(1, 2, 1)]
    assert m.handle(submitted(3)) == [ev.StartAttempt(3, 1, 1)]
    assert m.handle(GONE) == []
    assert len(m.handle(ev.DeviceLost(3.0, "C", "n", "x"))) == 3
    assert m.state(1) is RequestState.PARKED
    back = m.handle(ev.DeviceReturned(4.0, "C"))
    assert back == [ev.StartAttempt(2, 2, 1), ev.StartAttempt(3, 2, 1), ev.StartAttempt(1, 3, 1)]


def test_added_routes_take_parked_requests():
    m = machine()
    m.handle(submitted(1))
    m.handle(LOST)
    assert m.handle(ev.RoutesAdded(2.0, (route("B"),))) == [ev.StartAttempt(1, 2, 1)]
    assert m.handle(GONE) == []


def test_request_with_too_many_attempts_raises_with_its_story():
    m = machine(attempts=2)
    m.handle(submitted(1))
    for _ in range(3):
        m.handle(LOST)
        m.handle(BACK)
    drop, failed = m.handle(LOST)
    assert drop == ev.DropAttempt(1, 4)
    error = failure(failed)
    assert isinstance(error, DeviceLostError)
    assert [line.split(": ")[1][:7] for line in error.data["story"]] == [
        "submitt",
        *("started", "failed", "parked") * 3,
        *("started", "failed"),
    ]


@pytest.mark.parametrize("is_silent_first", [False, True])
def test_poison_request_fails_alone(is_silent_first):
    m = machine(attempts=2)
    running = {i for i in range(8) if m.handle(submitted(i))}
    poison, good, failed, num_lost = 0, set(range(1, 8)), {}, 0
    while running:
        if poison in running:  # it runs first, and the device is lost with all its requests
            num_lost += 1
            if is_silent_first:
                instructions = [
                    *m.handle(SILENT),
                    *m.handle(ev.DeviceEnded(2.5, "A")),
                    *m.handle(BACK),
                ]
            else:
                instructions = [*m.handle(LOST), *m.handle(BACK)]
        else:
            record = m.record(min(running))
            assert record is not None
            instructions = m.handle(answered(4.0, record.id, record.attempt, "y"))
        for order in instructions:
            match order:
                case ev.StartAttempt(i):
                    running.add(i)
                case ev.DropAttempt(i) | ev.Deliver(i):
                    running.discard(i)
                    if isinstance(order, ev.Deliver):
                        good.discard(i)
                case ev.Fail(i, error):
                    failed[i] = error
    assert not good
    assert [type(error) for error in failed.values()] == [DeviceLostError]
    assert list(failed) == [poison]
    assert num_lost == 4  # twice with others, which costs no attempt, and twice alone


def test_single_crash_of_a_suspected_device_stops_no_attempt():
    m = machine(route("A"), route("B"))
    m.handle(submitted(1))
    assert m.handle(SILENT) == [ev.DropAttempt(1, 1), ev.StartAttempt(1, 2, 1)]
    assert m.handle(ev.DeviceEnded(2.5, "A")) == []
    record = m.record(1)
    assert record is not None
    assert (record.state, record.num_lost) == (RequestState.RUNNING, 1)


def test_quarantined_requests_run_one_by_one_despite_other_routes():
    m = machine(route("A"), route("B"))
    for i in range(4):
        m.handle(submitted(i))
    on = {device: ev.DeviceLost(1.0, device, "node-7", "killed") for device in "AB"}
    back = {device: ev.DeviceReturned(1.0, device) for device in "AB"}
    for device in "ABA":  # each device is lost with its requests and returns
        m.handle(on[device])
        m.handle(back[device])
    records = list(m.live_records())
    assert all(record.is_quarantined for record in records)
    for num_lost, now_s in enumerate((2.0, 4.0, 6.0)):
        m.handle(ev.TimePassed(now_s))
        (running,) = (record for record in records if record.state is RequestState.RUNNING)
        m.handle(on["AB"[running.route]])  # with this request alone on it
        assert RequestState.RUNNING not in [record.state for record in records]
        m.handle(back["AB"[running.route]])
        assert sum(record.num_failed for record in records) == num_lost + 1


def test_repeatedly_silent_device_costs_no_attempt():
    m = machine(attempts=2)
    for i in (1, 2):
        m.handle(submitted(i))
    for attempt in range(2, 12):
        assert m.handle(SILENT) == [ev.DropAttempt(i, attempt - 1) for i in (1, 2)]
        assert m.handle(BACK) == [ev.StartAttempt(i, attempt) for i in (1, 2)]
    assert m.handle(ev.DeviceEnded(9.0, "A")) == []  # it has responded since
    record = m.record(1)
    assert record is not None
    assert (record.num_failed, record.num_lost, record.is_quarantined) == (0, 0, False)


def test_lost_messages_cost_attempts_without_suspicion():
    m = machine(attempts=2)
    loss = ev.DeviceLost(1.0, "A", "node-7", "cut", on_the_way=True)
    for i in (1, 2):
        m.handle(submitted(i))
    m.handle(loss)
    assert m.handle(BACK) == [ev.StartAttempt(1, 2), ev.StartAttempt(2, 2)]
    assert [type(o) for o in m.handle(loss)] == [ev.DropAttempt, ev.Fail] * 2


def test_messages_lost_by_a_live_device_are_resent():
    m = machine()
    m.handle(submitted(1))
    assert m.handle(ev.AttemptFailed(1.0, 1, 1, DeviceLostError("x"))) == [ev.DropAttempt(1, 1)]
    resume_s = m.next_deadline_s
    assert resume_s is not None
    assert 1.0 < resume_s < 2.0
    assert m.handle(ev.TimePassed(resume_s)) == [ev.StartAttempt(1, 2)]


def test_memory_error_is_retried_on_another_route():
    m = machine(route("A"), route("B"))
    m.handle(submitted(1))
    full = MemoryError("full")
    again = m.handle(ev.AttemptFailed(1.0, 1, 1, full))
    assert again == [ev.DropAttempt(1, 1, 0), ev.StartAttempt(1, 2, 1)]
    drop, failed = m.handle(ev.AttemptFailed(2.0, 1, 2, full))
    assert (drop, failure(failed)) == (ev.DropAttempt(1, 2, 1), full)
    m.handle(submitted(2))
    assert failure(m.handle(ev.AttemptFailed(3.0, 2, 1, HeteroError("bad")))[-1]).args == ("bad",)


def test_parked_requests_end_by_deadline_cancellation_or_close():
    m = machine()
    for request_id, deadline_s in ((1, 3.0), (2, 9.0), (3, 9.0), (4, 9.0)):
        m.handle(submitted(request_id, deadline_s=deadline_s))
    m.handle(LOST)
    (expired,) = m.handle(ev.TimePassed(3.0))
    assert "parked: device A on node node-7 is gone: killed" in str(failure(expired))
    (cancelled,) = m.handle(ev.CancelRequested(3.0, 2))
    assert isinstance(failure(cancelled), RequestCancelledError)
    instructions = m.handle(ev.ClusterLost(4.0, ClusterError("no cluster")))
    assert [str(failure(i)) for i in instructions] == [
        f"request {i}, attempt 1: no cluster" for i in (3, 4)
    ]
    assert isinstance(failure(m.handle(submitted(5))[0]), ClusterError)
    assert m.num_in_flight == m.nbytes_in_flight == 0


def test_admission_has_its_own_timeout():
    m = machine(requests=1, admission_timeout_s=2.0)
    m.handle(submitted(1))
    m.handle(submitted(2, now_s=1.0))
    assert m.next_deadline_s == 3.0
    (late,) = m.handle(ev.TimePassed(3.0))
    assert isinstance(failure(late), OverloadedError)
    assert m.handle(ev.TimePassed(8.0)) == []  # an admitted request has its whole timeout
    m.handle(LOST)
    m.handle(submitted(3, now_s=4.0))
    (away,) = m.handle(ev.TimePassed(6.0))
    assert isinstance(failure(away), DeviceLostError)


def test_greater_priority_is_admitted_first():
    m = machine(requests=1)
    m.handle(submitted(1))
    for request_id, priority in ((2, 0), (3, 1), (4, 1)):
        m.handle(ev.Submitted(0.0, request_id, 1, 9.0, priority=priority))
    order = []
    for done in (1, 3, 4):
        _, start = m.handle(answered(1.0, done, 1, "y"))
        assert isinstance(start, ev.StartAttempt)
        order.append(start.request_id)
    assert order == [3, 4, 2]


def test_results_are_delivered_in_order_if_configured():
    m = machine(in_order=True, requests=3)
    for request_id in (1, 2, 3, 4):
        m.handle(submitted(request_id))
    assert m.handle(answered(1.0, 2, 1, "b")) == []
    assert m.handle(answered(1.0, 3, 1, "c")) == []  # undelivered results keep their admission
    instructions = m.handle(ev.AttemptFailed(2.0, 1, 1, HeteroError("x")))[1:]
    assert isinstance(failure(instructions[0]), HeteroError)
    assert instructions[1:] == [delivered(2, "b"), delivered(3, "c"), ev.StartAttempt(4, 1)]


def test_ended_requests_leave_no_state():
    m = machine(remembered=10)
    for request_id in range(5000):
        m.handle(submitted(request_id, deadline_s=1e6))
        m.handle(answered(1.0, request_id, 1, "y"))
    assert len(m.due.entries) < 200


def test_close_cancels_current_and_later_requests():
    m = machine(requests=1)
    m.handle(submitted(1))
    m.handle(submitted(2))
    instructions = m.handle(ev.Closed(1.0))
    assert [type(i) for i in instructions] == [ev.DropAttempt, ev.Fail, ev.Fail]
    assert isinstance(failure(m.handle(submitted(3))[0]), RequestCancelledError)


def test_impossible_events_raise():
    m = machine(requests=1)
    m.handle(submitted(1))
    with pytest.raises(InvalidTransitionError, match="twice"):
        m.handle(submitted(1))
    m.handle(submitted(2))
    with pytest.raises(InvalidTransitionError, match="waiting"):
        m.handle(answered(1.0, 2, 1, "y"))
    m.handle(answered(1.0, 1, 1, "y"))
    with pytest.raises(InvalidTransitionError, match="request 1 submitted twice"):
        m.handle(submitted(1))  # it has ended


def test_transition_table_is_complete():
    expected_states = {RequestState.NEW, RequestState.DIRECT} | {
        state for row in TRANSITIONS.values() for state in row.to
    }
    assert expected_states == set(RequestState)
    assert {event for _, event in TRANSITIONS} == set(get_args(ev.ClientEvent))
    for row in TRANSITIONS.values():
        assert callable(getattr(ClientMachine, row.handler))
    leaving = {state for state, _ in TRANSITIONS}
    assert leaving == set(RequestState)
